"""What rows cost while a model is at work: the measured curve, corrected by the steps themselves.

The curve of `measured_cost` is of an empty context. At long contexts attention, whose time grows with every row, takes
a share of its own; and the machine may not be what it was when it was measured. So the times of real steps are kept,
the last few of each range of contexts and of rows, and their medians correct the curve: a disturbed step moves nothing,
and a range that was not visited goes by its neighbours. This changes how much is drafted, never what comes out.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from statistics import median

from exactspec.budget import Cost, CostModel

ROWS = (1, 2, 4, 8, 16, 32, 64)
"""Upper ends of the ranges of rows, but for the last, which has none."""

CONTEXTS = (512, 1024, 2048, 4096, 8192, 16384, 32768)
"""Upper ends of the ranges of contexts, but for the last."""

KEPT = 9
"""Steps of one range that are remembered."""

LEAST = 5
"""Steps of a range before they count."""

WIDEST = 4.0
"""A range is never taken to cost more than that many times, or less than that part of, what the curve says."""

REFRESH = 16
"""Steps after which a corrected curve is made anew."""

STALE = 512
"""Steps after which a range that was not visited again goes by the curve: what it showed may have been a bad moment."""


class _Range:
    """Ratios of the seconds taken to the curve's cost, the last few, and when the last one came."""

    __slots__ = ("last", "ratios")

    def __init__(self) -> None:
        self.ratios: deque[float] = deque(maxlen=KEPT)
        self.last = 0


class LiveCost:
    """`measured`: the curve to correct, which is also the cost where no context is given (``cost(rows)``). `plain_s`:
    seconds of a forward of one row at an empty context; 0: unknown, learned from the steps.

    >>> cost = LiveCost(CostModel(), plain_s=0.01)
    >>> cost(4) == cost.at(3000)(4) == 1.15
    True
    """

    __slots__ = ("_curves", "_measured", "_plain_s", "_ranges", "_steps")

    def __init__(self, measured: Cost, *, plain_s: float = 0.0) -> None:
        self._measured = measured
        self._plain_s = plain_s
        self._ranges: dict[tuple[int, int], _Range] = {}
        self._curves: dict[int, tuple[int, Cost, float]] = {}  # by context: when made, the curve, seconds of one row
        self._steps = 0

    @classmethod
    def of(cls, measured: Cost | None) -> LiveCost | None:
        """Over a measured curve; None where there is none."""
        return None if measured is None else cls(measured, plain_s=getattr(measured, "one_s", 0.0))

    @property
    def measured(self) -> Cost:
        """The curve without corrections."""
        return self._measured

    def __call__(self, rows: int) -> float:
        return self._measured(rows)

    def record(self, *, rows: int, context: int, seconds: float) -> None:
        """A forward of `rows` of one request, behind `context` tokens, took so long."""
        if rows < 1 or not seconds > 0:
            return
        self._steps += 1
        key = (bisect_left(CONTEXTS, context), bisect_left(ROWS, rows))
        seen = self._ranges.setdefault(key, _Range())
        seen.ratios.append(seconds / self._measured(rows))
        seen.last = self._steps

    def at(self, context: int) -> Cost:
        """The cost of rows behind `context` tokens, relative to one row there."""
        return self._curve(bisect_left(CONTEXTS, context))[1]

    def plain_s(self, context: int) -> float:
        """Seconds of a forward of one row behind `context` tokens; 0 where nothing is known."""
        return self._curve(bisect_left(CONTEXTS, context))[2]

    def _curve(self, context: int) -> tuple[int, Cost, float]:
        made = self._curves.get(context)
        if made is None or self._steps - made[0] >= REFRESH:
            made = self._curves[context] = (self._steps, *self._corrected(context))
        return made

    def _corrected(self, context: int) -> tuple[Cost, float]:
        known = {
            rows: median(seen.ratios)
            for (where, rows), seen in self._ranges.items()
            if where == context and len(seen.ratios) >= LEAST and self._steps - seen.last <= STALE
        }
        if not known:
            return self._measured, self._plain_s
        one = known[min(known)]
        sizes: list[int] = []
        costs: list[float] = []
        for i, rows in enumerate(ROWS):
            nearest = min(known, key=lambda j: abs(j - i))
            ratio = min(WIDEST, max(1 / WIDEST, known[nearest] / one))
            sizes.append(rows)
            costs.append(max(1.0 if not costs else costs[-1], self._measured(rows) * ratio))
        first = costs[0]
        return CostModel(rows=tuple(sizes), cost=(1.0, *(c / first for c in costs[1:]))), one * self._measured(1)
