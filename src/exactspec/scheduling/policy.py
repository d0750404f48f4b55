"""Which waiting requests begin now. A policy decides the order and the moment, never the answer.

`FirstCome` begins them in order of arrival. `Wait` follows WAIT (arXiv 2504.11320): requests are grouped into classes,
and a class begins when as many of it wait as the fluid balance says: in the balance, requests of class c arrive at
rate a(c), and during one step of T seconds a(c) T of them come in and as many leave. T itself follows from the rows of
that step. Below the threshold a class waits for company, so that steps are full when they run. Two things are ours:
nothing waits while nothing runs, and nothing waits longer than `patience_s`.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, log2
from typing import Protocol

from exactspec.budget import TABLE, Cost


@dataclass(frozen=True, slots=True)
class Candidate:
    """A waiting request. `arrived`: time in seconds. `prompt`: tokens to compute. `answer`: tokens expected."""

    arrived: float
    prompt: int
    answer: int


class Policy(Protocol):
    """Asked before every step, by one thread."""

    def arrive(self, candidate: Candidate) -> None:
        """A request joined the queue."""
        ...

    def order(self, waiting: Sequence[Candidate], *, running: int, places: int, now: float) -> list[int]:
        """Indices into `waiting` (oldest first) of those that should begin now, best first; the scheduler begins as
        many of them, in this order, as places and memory allow."""
        ...


class FirstCome:
    """In order of arrival, at once."""

    def arrive(self, candidate: Candidate) -> None:
        return None

    def order(self, waiting: Sequence[Candidate], *, running: int, places: int, now: float) -> list[int]:
        return list(range(min(places, len(waiting))))


class Wait:
    """Thresholds from the fluid balance, by class.

    A class: prompts and expected answers of the same power of two. Rates are of the last `memory` arrivals.
    `cost`, `row_s`: time of a step is ``row_s * cost(rows)``. `patience_s`: nothing waits longer for company.
    """

    def __init__(
        self, *, cost: Cost | None = None, row_s: float = 0.02, patience_s: float = 2.0, memory: int = 64
    ) -> None:
        if row_s <= 0 or patience_s < 0 or memory < 2:
            raise ValueError(f"row_s must be > 0, patience_s >= 0, memory >= 2: got {row_s}, {patience_s}, {memory}")
        self._cost = cost or TABLE
        self._row_s = row_s
        self._patience_s = patience_s
        self._arrivals: deque[Candidate] = deque(maxlen=memory)

    def arrive(self, candidate: Candidate) -> None:
        self._arrivals.append(candidate)

    def thresholds(self) -> dict[tuple[int, int], int]:
        """Requests of each class that begin together."""
        if len(self._arrivals) < 2:
            return {}
        span = max(self._arrivals[-1].arrived - self._arrivals[0].arrived, 1e-6)
        counts: dict[tuple[int, int], int] = defaultdict(int)
        rows_per_s = 0.0  # rows of work that arrive a second
        for candidate in self._arrivals:
            counts[_class(candidate)] += 1
            rows_per_s += (candidate.prompt + candidate.answer) / span
        step_s = self._balance(rows_per_s)
        return {kind: max(1, ceil(n / span * step_s)) for kind, n in counts.items()}

    def _balance(self, rows_per_s: float) -> float:
        """T with T = row_s * cost(rows_per_s * T), or a long step where rows come faster than they can go."""
        step_s = self._row_s
        for _ in range(30):
            longer = self._row_s * self._cost(max(1, ceil(rows_per_s * step_s)))
            if longer > 4 * self._patience_s + self._row_s:
                break
            if longer <= step_s * 1.001:
                return step_s
            step_s = longer
        return step_s

    def order(self, waiting: Sequence[Candidate], *, running: int, places: int, now: float) -> list[int]:
        groups: dict[tuple[int, int], list[int]] = defaultdict(list)
        for i, candidate in enumerate(waiting):
            groups[_class(candidate)].append(i)
        thresholds = self.thresholds()
        ready: list[int] = []
        for kind, members in groups.items():
            oldest = waiting[members[0]].arrived
            full = len(members) >= min(thresholds.get(kind, 1), max(1, places))
            if running == 0 or full or now - oldest >= self._patience_s:
                ready += members
        return sorted(ready)[:places]


def _class(candidate: Candidate) -> tuple[int, int]:
    return int(log2(max(1, candidate.prompt))), int(log2(max(1, candidate.answer)))
