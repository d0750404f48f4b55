"""The target of a replay, where drafters look at what it computes: it reads every stored answer once, teacher forced.

A draft layer goes by the target's last keys and by its hidden states of accepted tokens. Both are functions of the text
alone, so those of one reading are what every step of a real run would have had.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np

from exactspec.budget import Cost, CostModel
from exactspec.drafters import Models
from exactspec.opening import open_layers
from exactspec.target.base import Cache, FloatArray, Segment, SegmentRows, Target, Want

KEPT_BYTES = 1 << 30
"""Of readings kept for the next drafter; what does not fit is read again."""
_ROWS = 256
Tell: TypeAlias = Callable[[str], None]


@dataclass(frozen=True, slots=True, eq=False)
class Reading:
    """One text of n + 1 tokens as the target read it: `cache` of the first n, their hidden states `features` [n, W]."""

    cache: Cache
    features: FloatArray

    @property
    def nbytes(self) -> int:
        return self.cache.nbytes + self.features.nbytes

    def until(self, length: int) -> Cache:
        """The cache of a history of `length` tokens: it lacks the last one. To read, never to change."""
        twin = self.cache.fork()
        twin.truncate(length - 1)
        return twin

    def rows(self, rows: SegmentRows, length: int, path: Sequence[int]) -> SegmentRows:
        """Rows of a step on a history of `length` tokens with the hidden states of the root and of the accepted nodes
        `path`; those of the others, which nobody may use, are zeros."""
        hidden = np.zeros((len(rows), self.features.shape[1]), dtype=np.float32)
        for i, row in enumerate((0, *(node + 1 for node in path))):
            hidden[row] = self.features[length - 1 + i]
        return replace(rows, hidden=hidden)


class StepClock:
    """Seconds of a replay, for drafters that learn what pays: those that pass, and those that the target would take."""

    __slots__ = ("_ahead", "_clock")

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock, self._ahead = clock, 0.0

    def __call__(self) -> float:
        return self._clock() + self._ahead

    def advance(self, seconds: float) -> None:
        self._ahead += seconds


def teach(target: Any, layers: Sequence[str], *, cost: Cost | None, tell: Tell) -> tuple[Teacher, Models]:
    """A teacher, and layers by their draft names (with the shipped one, if any) that go by its clock. `cost`: of the
    target's rows. Raises ValueError, one line, if a layer is not there or seconds of a row are not known."""
    plain_s = cost.one_s if isinstance(cost, CostModel) else 0.0
    if plain_s <= 0:
        raise ValueError("a layer is asked where that pays, and rows of this model are not measured here")
    clock = StepClock()
    return Teacher(target, plain_s=plain_s, clock=clock), open_layers(layers, target, tell, clock=clock)


class Teacher:
    """Reads texts of at least two tokens with `target`. `plain_s`: seconds of its forward of one row. `clock`: drafters
    must have it too, or they learn that the target takes no time."""

    def __init__(self, target: Target, *, plain_s: float, clock: StepClock, kept_bytes: int = KEPT_BYTES) -> None:
        self._target, self._kept_bytes = target, kept_bytes
        self.plain_s, self.clock = plain_s, clock
        self._kept: dict[tuple[int, ...], Reading] = {}

    def read(self, tokens: tuple[int, ...], what: str) -> Reading:
        """`what`: the text's name, for errors. Raises ValueError if the text is not one of this target's."""
        known = self._kept.get(tokens)
        if known is None:
            known = self._read(tokens, what)
            if sum(one.nbytes for one in self._kept.values()) + known.nbytes <= self._kept_bytes:
                self._kept[tokens] = known
        return known

    def forget(self) -> None:
        """Nothing that was read is needed any more."""
        self._kept.clear()

    def _read(self, tokens: tuple[int, ...], what: str) -> Reading:
        target, n = self._target, len(tokens) - 1
        if max(tokens) >= target.vocab_size:
            raise ValueError(f"{what} holds the id {max(tokens)}, the model has {target.vocab_size}: it is another's")
        if n > target.max_length:
            raise ValueError(f"{what} has {n + 1} tokens, the model's context is {target.max_length}: leave it out")
        ids, cache = np.array(tokens[:-1], dtype=np.int64), target.new_cache()
        parts = []
        for start in range(0, n, _ROWS):
            part = ids[start : start + _ROWS]
            (rows,) = target.forward([Segment.chain(cache, part, Want.NONE)])
            parts.append(rows.hidden.copy())  # a view, valid until the next forward
            cache.keep(range(len(part)))
        return Reading(cache, np.concatenate(parts))
