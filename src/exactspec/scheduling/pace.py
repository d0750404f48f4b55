"""How many rows a step may have, so that nobody waits longer than a set time.

The shape of the cost curve is the engine's (`budget.Cost`, measured once a machine); its unit, seconds of a forward of
one row, is learned here from the steps themselves: the median of the last few of each kind, so that one disturbed
step changes nothing (before the first, what the machine's measurement said). Steps with prompt rows have a unit of
their own: their rows attend to long contexts, and they may lie past the end of the measured curve.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from statistics import median

from exactspec.budget import TABLE, Cost
from exactspec.live_cost import LiveCost

RECENT = 15
LEAST = 16
"""Prompt rows of a step that go on however slow the machine is: a prompt must come to its end."""


class Pace:
    """`cost`: of rows, relative to one. `stall_s`: the longest a step may take while answers are running."""

    __slots__ = ("_cost", "_mixed", "_plain", "_stall_s")

    def __init__(self, *, cost: Cost | None, stall_s: float) -> None:
        self._cost = cost or TABLE
        self._stall_s = stall_s
        self._plain: deque[float] = deque(maxlen=RECENT)
        self._mixed: deque[float] = deque(maxlen=RECENT)

    def cost_at(self, context: int) -> Cost:
        """Of rows behind `context` tokens, relative to one."""
        return self._cost.at(context) if isinstance(self._cost, LiveCost) else self._cost

    def record(self, *, rows: int, prompt_rows: int, seconds: float) -> None:
        """A forward of `rows`, `prompt_rows` among them, took that long."""
        if rows > 0:
            (self._mixed if prompt_rows else self._plain).append(seconds / self._cost(rows))

    def unit_s(self, *, mixed: bool) -> float | None:
        """Seconds of a forward of one row, as far as known. `mixed`: as steps with prompt rows show it."""
        first, second = (self._mixed, self._plain) if mixed else (self._plain, self._mixed)
        known = first or second
        if known:
            return median(known)
        told = self._cost.plain_s(0) if isinstance(self._cost, LiveCost) else 0.0
        return told or None

    def fitting(self, most: int, *, mixed: bool) -> int:
        """The most rows, up to `most`, of a step within `stall_s`; `most` while nothing was measured."""
        unit = self.unit_s(mixed=mixed)
        low, high = 0, most
        while unit is not None and low < high:  # by halving: the cost never falls with the rows
            middle = (low + high + 1) // 2
            if unit * self._cost(middle) <= self._stall_s:
                low = middle
            else:
                high = middle - 1
        return high

    def prompt_rows(self, *, beside: int, most: int) -> int:
        """Prompt rows of a step with `beside` rows of running answers; `most` where there are none to be held up."""
        if not beside:
            return most
        if self.unit_s(mixed=True) is None:
            return min(most, LEAST)
        return min(most, max(LEAST, self.fitting(beside + most, mixed=True) - beside))


def divide(rows: int, left: Sequence[int]) -> list[int]:
    """Prompt rows of one step for each of several prompts, oldest first, of which `left` rows are left.

    A quarter goes to the oldest, so that none starves; the rest to the shortest first, which then begin to answer.

    >>> divide(100, [400, 30, 90])
    [25, 30, 45]
    """
    shares = [0] * len(left)
    if not left:
        return shares
    shares[0] = min(left[0], max(1, rows // 4))
    free = rows - shares[0]
    for i in sorted(range(len(left)), key=lambda i: left[i]):
        more = min(free, left[i] - shares[i])
        shares[i] += more
        free -= more
    return shares
