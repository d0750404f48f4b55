"""Contestants that do the same work in turn: round by round, in alternating order, only one at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One answer. `decode_s` and `prefill_s` are separate clocks, in seconds. `extra`: further JSON values."""

    token_ids: tuple[int, ...]
    prefill_s: float
    decode_s: float
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def s_per_token(self) -> float:
        """Decode time per token; tokens are counted by their ids."""
        return self.decode_s / len(self.token_ids) if self.token_ids else 0.0


Contestant: TypeAlias = Callable[[], Measurement]


@dataclass(frozen=True, slots=True)
class Round:
    """One measurement of every contestant; `order`: their names as they ran."""

    repeat: int
    order: tuple[str, ...]
    measurements: Mapping[str, Measurement]


def play(contestants: Mapping[str, Contestant], repeats: Sequence[int]) -> Iterator[Round]:
    """The rounds of the given numbers. Odd rounds run backwards, so that neither place nor drift favours anyone.

    >>> [r.order for r in play({"a": run_a, "b": run_b}, range(2))]        # doctest: +SKIP
    [('a', 'b'), ('b', 'a')]
    """
    for repeat in repeats:
        order = tuple(contestants) if repeat % 2 == 0 else tuple(contestants)[::-1]
        yield Round(repeat, order, {name: contestants[name]() for name in order})


def flags(baseline: Measurement, other: Measurement, *, same_tokens: bool) -> tuple[str, ...]:
    """Why a pair must not be read as a speed-up.

    "count": the two did not emit the same number of tokens. "tokens": they should have emitted the same tokens
    (`same_tokens`) and did not. "empty": nothing was decoded, or in no time.
    """
    found = []
    if baseline.s_per_token <= 0 or other.s_per_token <= 0:
        found.append("empty")
    if len(baseline.token_ids) != len(other.token_ids):
        found.append("count")
    elif same_tokens and baseline.token_ids != other.token_ids:
        found.append("tokens")
    return tuple(found)
