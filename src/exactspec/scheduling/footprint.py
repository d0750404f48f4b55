"""Bytes of keys and values: of a target's caches before they exist, and of several caches that share."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from exactspec.target.base import Cache, Target


class Footprint:
    """What a cache of n tokens takes. Asks the target (``cache_bytes(tokens)``); of one that does not say, the largest
    share per token seen so far, 0 before the first."""

    __slots__ = ("_ask", "_token_bytes")

    def __init__(self, target: Target) -> None:
        self._ask: Any = getattr(target, "cache_bytes", None)
        self._token_bytes = 0.0

    def see(self, cache: Cache) -> None:
        if self._ask is None and cache.length:
            self._token_bytes = max(self._token_bytes, cache.nbytes / cache.length)

    def __call__(self, tokens: int) -> int:
        return int(self._token_bytes * tokens) if self._ask is None else int(self._ask(tokens))


def parts(cache: Cache) -> list[tuple[int, int]]:
    """(identity, bytes) of every piece that forks may share. A cache that does not say is one piece."""
    ask = getattr(cache, "parts", None)
    return [(id(cache), cache.nbytes)] if ask is None else ask()


def shared_bytes(caches: Iterable[Cache]) -> int:
    """Bytes that these caches hold together, shared pieces counted once."""
    return sum(dict(part for cache in caches for part in parts(cache)).values())
