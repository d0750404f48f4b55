"""Texts shared between requests, to copy from: off unless a request names a store; bounded; least recently used out.

A store is known by its name, and requests that name different stores (or none) see nothing of one another. What a
request leaves is its whole history, prompt and output, so a name must be shared only by those who may see each other's
texts: a proposal taken from a store can show, by its speed, that a text is in there. Output is never changed by it.
"""

from __future__ import annotations

import hashlib
import threading
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from exactspec.drafters.suffix_index import Int32Array, SuffixIndex

TOKEN_BYTES = 34
"""Bytes that a token takes at most: five int32 in the index and half as much again for its room to grow, one in the
text."""

TEXT_BYTES = 512
"""Bytes that a text takes beside its tokens, about: its record, its array's head, its place in tables."""


@dataclass(slots=True)
class _Text:
    tokens: Int32Array
    used: int  # when it was last added or copied from; larger is later


class TextStore:
    """The texts of one name, joined in one index. Thread-safe.

    `max_bytes`: of the texts and their index, `TOKEN_BYTES` a token and `TEXT_BYTES` a text (beside a table of 64 kB;
    an index that was replaced goes when the last request that reads it ends); a longer text is kept by its end. When
    texts go, those that nobody has added or copied from for longest go first, down to three quarters, so that the index
    is built anew only once in a while. Raises ValueError if max_bytes holds no text of one token.
    """

    __slots__ = ("_clock", "_ends", "_index", "_known", "_most", "_texts", "lock")

    def __init__(self, max_bytes: int) -> None:
        if max_bytes < TEXT_BYTES + TOKEN_BYTES:
            least = TEXT_BYTES + TOKEN_BYTES
            raise ValueError(f"a store must hold at least one token of a text ({least} bytes), got {max_bytes}")
        self._most = max_bytes
        self._texts: list[_Text] = []  # in the order in which the index holds them
        self._ends: list[int] = []  # where each of them ends in the index
        self._known: dict[bytes, _Text] = {}  # by what they are: there may be a hundred thousand short ones
        self._index = SuffixIndex()
        self._clock = 0
        self.lock = threading.RLock()
        """Held while the index is read or changed."""

    @property
    def index(self) -> SuffixIndex:
        """What is there now. It grows at its end while others are added; when texts go, another one takes its place."""
        return self._index

    @property
    def nbytes(self) -> int:
        """Of what is held, as `max_bytes` counts it."""
        return TOKEN_BYTES * len(self._index) + TEXT_BYTES * len(self._texts)

    def add(self, tokens: Int32Array) -> None:
        """Keep a text; one that is there already counts as used."""
        text = np.array(tokens[-((self._most - TEXT_BYTES) // TOKEN_BYTES) :], dtype=np.int32)
        with self.lock:
            self._clock += 1
            known = self._known.get(_digest(text))
            if known is not None:
                known.used = self._clock
                return
            self._keep(_Text(text, self._clock))
            if TOKEN_BYTES * self._ends[-1] + TEXT_BYTES * len(self._texts) <= self._most:
                self._index.append(text)
            else:
                self._rebuild()

    def touch(self, index: SuffixIndex, positions: Iterable[int]) -> None:
        """Say that the texts at these positions of `index` were copied from."""
        with self.lock:
            if index is not self._index:
                return
            self._clock += 1
            for position in positions:
                number = bisect_right(self._ends, position)
                if number < len(self._texts):
                    self._texts[number].used = self._clock

    def _rebuild(self) -> None:
        left = self._most * 3 // 4
        kept: list[_Text] = []
        for text in sorted(self._texts, key=lambda t: -t.used):
            left -= TOKEN_BYTES * len(text.tokens) + TEXT_BYTES
            if kept and left < 0:
                break
            kept.append(text)
        self._texts, self._ends, self._known = [], [], {}
        for text in reversed(kept):
            self._keep(text)
        self._index = SuffixIndex(np.concatenate([text.tokens for text in self._texts]))

    def _keep(self, text: _Text) -> None:
        self._texts.append(text)
        self._ends.append(len(text.tokens) + (self._ends[-1] if self._ends else 0))
        self._known[_digest(text.tokens)] = text


def _digest(tokens: Int32Array) -> bytes:
    """Equal for equal texts, and for no others that anybody can find."""
    return hashlib.blake2b(tokens.tobytes(), digest_size=16).digest()


class Stores:
    """The stores of one engine, by name. Thread-safe."""

    __slots__ = ("_lock", "_stores")

    def __init__(self) -> None:
        self._stores: dict[str, TextStore] = {}
        self._lock = threading.Lock()

    def get(self, name: str, *, max_bytes: int) -> TextStore:
        """The store of that name, made with `max_bytes` where there is none yet."""
        with self._lock:
            store = self._stores.get(name)
            if store is None:
                store = self._stores[name] = TextStore(max_bytes)
            return store
