"""How many drafted tokens to verify: never more than pays.

The engine asks once per step: ``nodes()`` -> drafter.propose -> ``choose(tree)`` -> verify -> ``record(...)``.
A budget belongs to one request and cannot change the output, only the speed.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np

from exactspec.params import Speculation
from exactspec.tree import DraftTree

Cost: TypeAlias = Callable[[int], float]
"""rows (root included) -> time of one forward relative to a forward of one row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CostModel:
    """Time of one target forward by its rows, relative to one row; straight lines between the given points.

    `rows`: increasing, from 1. `cost`: same length, 1.0 first, never falling. Past the last point the last slope
    goes on. The default is what the int8 CPU runtime shows: for a few rows it only reads the weights, then
    arithmetic costs. Raises ValueError on points that make no such line.

    >>> CostModel()(4), CostModel()(12)
    (1.05, 1.9)
    """

    rows: tuple[int, ...] = (1, 4, 8, 16, 32, 48)
    cost: tuple[float, ...] = (1.0, 1.05, 1.4, 2.4, 4.0, 5.5)

    def __post_init__(self) -> None:
        if len(self.rows) != len(self.cost) or len(self.rows) < 2 or self.rows[0] != 1 or self.cost[0] != 1.0:
            raise ValueError("a cost model needs two or more points, the first being (1 row, cost 1.0)")
        if any(b <= a for a, b in zip(self.rows, self.rows[1:], strict=False)):
            raise ValueError(f"the rows of a cost model must increase, got {self.rows}")
        if any(not b >= a for a, b in zip(self.cost, self.cost[1:], strict=False)):
            raise ValueError(f"the costs of a cost model must not fall, got {self.cost}")

    def __call__(self, rows: int) -> float:
        i = min(max(bisect_left(self.rows, rows), 1), len(self.rows) - 1)
        r0, r1, c0, c1 = self.rows[i - 1], self.rows[i], self.cost[i - 1], self.cost[i]
        return c0 + (c1 - c0) * (rows - r0) / (r1 - r0)


class Budget(Protocol):
    """Decides the size of a request's drafts, step by step."""

    def nodes(self) -> int:
        """Most nodes a proposal may hold; 0: do not even propose."""
        ...

    def choose(self, tree: DraftTree) -> DraftTree:
        """The part of the proposal that is worth verifying; may be empty."""
        ...

    def record(self, *, drafted: int, accepted: int) -> None:
        """What a step verified (nodes) and accepted (nodes). Called after every step, plain ones (0, 0) included."""
        ...


class FixedBudget:
    """Verify whatever is proposed, up to `max_nodes`; 0 never drafts."""

    __slots__ = ("_max_nodes",)

    def __init__(self, max_nodes: int) -> None:
        if max_nodes < 0:
            raise ValueError(f"max_nodes must be >= 0, got {max_nodes}")
        self._max_nodes = max_nodes

    def nodes(self) -> int:
        return self._max_nodes

    def choose(self, tree: DraftTree) -> DraftTree:
        return tree.prune(max_nodes=self._max_nodes)

    def record(self, *, drafted: int, accepted: int) -> None:
        return None


class BackOff:
    """Fewer and smaller drafts while drafts keep failing.

    After a fully rejected draft the next may hold `PROBE` nodes (a few rows cost about as much as one); from the
    second on, 1, 2, 4, .. `LONGEST` steps pass without a draft in between. An accepted token ends all of that, and
    a draft whose first node is at least `SURE` likely (a long match) is let through at once.
    """

    PROBE = 3
    LONGEST = 32
    SURE = 0.8

    __slots__ = ("_misses", "_pause")

    def __init__(self) -> None:
        self._misses = 0
        self._pause = 0

    def allow(self, confidence: float, most: int) -> int:
        """Nodes for this step, of at most `most`. `confidence`: estimated probability of the draft's first node."""
        if self._misses == 0 or confidence >= self.SURE:
            return most
        return 0 if self._pause > 0 else min(most, self.PROBE)

    def record(self, *, drafted: int, accepted: int) -> None:
        if accepted > 0:
            self._misses = self._pause = 0
        elif drafted > 0:
            self._misses += 1
            self._pause = min(self.LONGEST, 2 ** (self._misses - 2)) if self._misses > 1 else 0
        elif self._pause > 0:
            self._pause -= 1


class AdaptiveBudget:
    """Verify the nodes that make tokens per time largest, by node scores and the cost of rows.

    `max_nodes` >= 1. `cost`: see `CostModel`. `back_off`: also pause after misses, for when scores promise what
    does not come. A proposal is always asked for (copying costs microseconds): a long match must end a pause.
    """

    __slots__ = ("_back_off", "_costs", "_max_nodes")

    def __init__(self, max_nodes: int, *, cost: Cost | None = None, back_off: bool = True) -> None:
        if max_nodes < 1:
            raise ValueError(f"max_nodes must be >= 1, got {max_nodes}; use FixedBudget(0) to never draft")
        self._max_nodes = max_nodes
        model = CostModel() if cost is None else cost
        self._costs = np.array([model(rows) for rows in range(1, max_nodes + 2)])
        self._back_off = BackOff() if back_off else None

    def nodes(self) -> int:
        return self._max_nodes

    def choose(self, tree: DraftTree) -> DraftTree:
        if not len(tree):
            return tree
        score = np.sort(tree.score)[::-1][: self._max_nodes]
        most = len(score)
        if self._back_off is not None:
            most = self._back_off.allow(float(score[0]), most)
        # Expected tokens of a step: the target's own one, and every node that is reached and accepted.
        gain = np.concatenate(([1.0], 1.0 + np.cumsum(score[:most], dtype=np.float64)))
        return tree.prune(max_nodes=int(np.argmax(gain / self._costs[: most + 1])))

    def record(self, *, drafted: int, accepted: int) -> None:
        if self._back_off is not None:
            self._back_off.record(drafted=drafted, accepted=accepted)


def make_budget(speculation: Speculation, *, cost: Cost | None = None) -> Budget:
    """A new budget for one request: `none` never drafts, `copyspec` verifies its whole block, `copy` takes the
    nodes that pay, `auto` pauses after misses as well."""
    match speculation.draft:
        case "none":
            return FixedBudget(0)
        case "copyspec":
            return FixedBudget(min(speculation.block, speculation.max_nodes))
        case draft:
            return AdaptiveBudget(speculation.max_nodes, cost=cost, back_off=draft == "auto")
