"""How much of a run is left, from what its rounds have taken so far."""

from __future__ import annotations

import time
from collections.abc import Callable


class Remaining:
    """Counts rounds of a run of `total` rounds. `measured` ends one that was run now, `skipped` leaves out those that
    a file holds already. The time left is that of the rounds to come at the mean of those that were run."""

    __slots__ = ("_clock", "_left", "_run", "_start", "total")

    def __init__(self, total: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.total = total
        self._left, self._run = total, 0
        self._clock, self._start = clock, clock()

    def skipped(self, rounds: int) -> None:
        self._left -= rounds

    def measured(self) -> str:
        """One round is done: a few words for the person."""
        self._left -= 1
        self._run += 1
        left = max(self._left, 0) * (self._clock() - self._start) / self._run
        return f"{self.total - self._left}/{self.total}, {told(left)} left"


def told(seconds: float) -> str:
    """A rough length of time.

    >>> told(12), told(200), told(9000)
    ('12 s', '3 min', '2 h 30 min')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"
