"""Whether asking a drafting model pays, by measured times.

A call costs forwards of the drafting model, one a level of the tree, and rows of the target. It pays where tokens come
faster with it than without. All times are seconds of one clock; nothing here can change an output.
"""

from __future__ import annotations

from collections import deque
from statistics import median

from exactspec.budget import TABLE, Cost

_WINDOW = 15  # measurements a median is taken of
_LEVELS = 4  # of a first call
_AGREES = 0.7  # how often a model says what the target says, before any was seen
_HORIZON = 128  # tokens of an answer over which reading its prompt must pay


class ModelTimes:
    """Seconds of the drafting model's forwards, shared by its requests. `row_s`: of one row, measured at load (None:
    not known yet). `cost`: of its rows, relative to one. Medians, so that a disturbed forward does not count."""

    __slots__ = ("_cost", "_levels", "_row", "_seed")

    def __init__(self, *, row_s: float | None = None, cost: Cost | None = None) -> None:
        self._cost: Cost = TABLE if cost is None else cost
        self._seed = row_s
        self._row: deque[float] = deque(maxlen=_WINDOW)
        self._levels: list[deque[float]] = []

    def record(self, level: int, rows: int, seconds: float) -> None:
        """A forward of `rows` rows, the `level`-th of its call (0 first)."""
        self._row.append(seconds / self._cost(rows))
        while len(self._levels) <= level:
            self._levels.append(deque(maxlen=_WINDOW))
        self._levels[level].append(seconds)

    def forward_s(self, rows: int) -> float | None:
        """Of a forward of so many rows; None while nothing was measured."""
        if self._row:
            return median(self._row) * self._cost(rows)
        return None if self._seed is None else self._seed * self._cost(rows)

    def call_s(self, levels: int, *, missing: int = 1) -> float:
        """Of a call of `levels` levels that first reads `missing` tokens; 0.0 while nothing was measured."""
        row = self.forward_s(1)
        if row is None or levels < 1:
            return 0.0
        first = row * self._cost(missing) if missing > 4 or not self._levels else median(self._levels[0])
        later = (median(self._levels[i]) if i < len(self._levels) else row for i in range(1, levels))
        return first + sum(later)


class Pays:
    """For one request: draft in this step? One more level? Both by tokens per second.

    Drafting is given up after `TRIALS` calls that did not pay, and tried again after `PAUSE` steps, then twice as many,
    up to `LONGEST`; what it gains in a trial decides anew.
    """

    TRIALS = 6
    PAUSE = 16
    LONGEST = 256
    BLEND = 0.2  # weight of the newest step in averages

    __slots__ = (
        "_cost",
        "_draft_s",
        "_drafts",
        "_gain",
        "_levels",
        "_pause",
        "_plain_s",
        "_share",
        "_skip",
        "_told",
        "_verify_s",
    )

    def __init__(self) -> None:
        self._cost: Cost = TABLE  # of the target's rows
        self._plain_s: float | None = None  # a step without a draft
        self._told = False  # that is what `costs` said, not what was measured here
        self._draft_s = self._verify_s = self._gain = 0.0  # averages of steps with a draft
        self._levels = float(_LEVELS)
        self._share = 0.7  # accepted of what was promised
        self._drafts = 0
        self._skip = 0
        self._pause = self.PAUSE

    @property
    def levels(self) -> int:
        """What a call is expected to take."""
        return max(1, round(self._levels))

    def costs(self, cost: Cost, plain_s: float) -> None:
        """What is known of the target beforehand: the cost of its rows, and seconds of one (0: unknown)."""
        self._cost = cost
        if plain_s > 0 and (self._told or self._plain_s is None):
            self._plain_s, self._told = plain_s, True

    def call(self) -> bool:
        """Whether to draft in this step; counts the steps of a pause."""
        if self._skip > 0:
            self._skip -= 1
            return False
        return True

    def worth_reading(self, read_s: float, level_s: float | None) -> bool:
        """Whether reading a history first, in `read_s`, can be expected to pay within an answer of ordinary length,
        with chains of the best length by forwards of `level_s`."""
        if level_s is None or self._plain_s is None:
            return True
        plain, tokens, probability, best_s = self._plain_s, 1.0, 1.0, self._plain_s
        for levels in range(1, 9):
            probability *= _AGREES
            tokens += probability
            best_s = min(best_s, (levels * level_s + plain * self._cost(levels + 1)) / tokens)
        return (plain - best_s) * _HORIZON > read_s

    def another_level(self, mass: float, rows: int, forward_s: float | None) -> bool:
        """Whether a forward of `rows` rows of the drafting model is worth it for nodes that are reached with `mass`
        in all. Each such node gives about one candidate, as likely as those before it were."""
        if forward_s is None or self._plain_s is None:
            return mass > 0.3
        token_s = self._plain_s
        if self._drafts:
            token_s = min(token_s, (self._draft_s + self._verify_s) / (1 + self._gain))
        row_s = self._plain_s * (self._cost(9) - self._cost(1)) / 8
        return mass * self._share * token_s > forward_s + row_s

    def plain(self, seconds: float) -> None:
        """A step without a draft took the target so long."""
        if self._plain_s is None or self._told:
            self._plain_s, self._told = seconds, False
        else:
            self._plain_s = self._mix(self._plain_s, min(seconds, 3 * self._plain_s))

    def drafted(self, *, levels: int, draft_s: float, verify_s: float, rows: int, promised: float, agreed: int) -> None:
        """A step with a draft: the call's levels and seconds; the target's seconds and rows; the sum of the offered
        nodes' probabilities, and how many of them the target said."""
        if self._plain_s is None or self._told:
            self._plain_s, self._told = verify_s / self._cost(rows), False
        self._drafts += 1
        if self._drafts == 1:
            self._draft_s, self._verify_s, self._gain, self._levels = draft_s, verify_s, float(agreed), float(levels)
        else:
            # One disturbed step must not end drafting: it counts at most three times the average.
            self._draft_s = self._mix(self._draft_s, min(draft_s, 3 * self._draft_s))
            self._verify_s = self._mix(self._verify_s, min(verify_s, 3 * self._verify_s))
            self._gain = self._mix(self._gain, agreed)
            self._levels = self._mix(self._levels, levels)
        if promised > 0:
            self._share = min(1.0, max(0.2, self._mix(self._share, agreed / promised)))
        if self._drafts >= self.TRIALS:
            self._judge()

    def _judge(self) -> None:
        assert self._plain_s is not None
        if (1 + self._gain) * self._plain_s >= self._draft_s + self._verify_s:
            self._pause = self.PAUSE
            return
        self._skip, self._pause = self._pause, min(self.LONGEST, 2 * self._pause)
        self._drafts = self.TRIALS - 2  # a trial has two calls

    def _mix(self, old: float, new: float) -> float:
        return (1 - self.BLEND) * old + self.BLEND * new
