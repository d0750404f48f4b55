"""How many drafted tokens to verify: never more than pays.

The engine asks once per step: ``nodes()`` -> drafter.propose -> ``choose(tree)`` -> verify -> ``record(...)``.
A budget belongs to one request and cannot change the output, only the speed.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from exactspec.draft_names import BESIDE, layer_draft, model_draft
from exactspec.params import Speculation
from exactspec.tree import DraftTree

Cost: TypeAlias = Callable[[int], float]
"""rows (root included) -> time of one forward relative to a forward of one row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CostModel:
    """Time of one target forward by its rows, relative to one row; straight lines between the given points.

    `rows`: increasing, from 1. `cost`: same length, 1.0 first, never falling. Past the last point the last slope
    goes on. `one_s`: seconds of the forward of one row, 0 where it was not measured. The default is what the
    int8 CPU runtime shows with AVX512-VNNI: for a few rows it only reads the weights, then arithmetic costs. Raises
    ValueError on points that make no such line.

    >>> CostModel()(4), CostModel()(12)
    (1.15, 1.65)
    """

    rows: tuple[int, ...] = (1, 4, 8, 12, 16, 24, 32, 48, 64)
    cost: tuple[float, ...] = (1.0, 1.15, 1.35, 1.65, 1.85, 2.5, 3.1, 4.1, 5.1)
    one_s: float = 0.0

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


TABLE = CostModel()
"""The built-in table."""


class Budget(Protocol):
    """Decides the size of a request's drafts, step by step."""

    def nodes(self) -> int:
        """Most nodes a proposal may hold; 0: do not even propose."""
        ...

    def choose(self, tree: DraftTree, *, cost: Cost | None = None) -> DraftTree:
        """The part of the proposal that is worth verifying; may be empty. `cost`: of rows in this step, where it is
        known better than when the budget was made."""
        ...

    def allow(self, tree: DraftTree) -> DraftTree:
        """The part that may be verified, whatever rows cost: for a choice among several requests' trees."""
        ...

    def record(self, *, drafted: int, accepted: int, promised: float | None = None) -> None:
        """What a step verified (nodes) and accepted (nodes). Called after every step, plain ones (0, 0) included.
        `promised`: sum of the scores verified, where others chose them (from what `allow` gave)."""
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

    def choose(self, tree: DraftTree, *, cost: Cost | None = None) -> DraftTree:
        return tree.prune(max_nodes=self._max_nodes)

    def allow(self, tree: DraftTree) -> DraftTree:
        return self.choose(tree)

    def record(self, *, drafted: int, accepted: int, promised: float | None = None) -> None:
        return None


class BackOff:
    """Smaller and fewer drafts while drafts keep failing; the guard for scores that promise what does not come.

    A rejected draft weighs as much as its best node was likely: one of 0.1 that fails says nothing. Once rejected
    drafts in a row weigh `SMALL`, a draft may hold `PROBE` nodes (a few rows cost about as much as one); from
    `PATIENCE` on, 1, 2, 4, .. `LONGEST` steps pass without a draft in between. One accepted node ends all of that. So
    does a draft whose first node is at least `SURE` likely (a long match), at once and in full size; but if that is
    rejected too, only accepted probes end the pauses.
    """

    SMALL = 2.0
    PATIENCE = 4.0
    PROBE = 3
    LONGEST = 32
    SURE = 0.8

    __slots__ = ("_confidence", "_misses", "_pause", "_pauses", "_trust")

    def __init__(self) -> None:
        self._misses = 0.0
        self._pause = 0  # steps of it that are left
        self._pauses = 0
        self._confidence = 0.0  # of the draft at hand
        self._trust = True  # whether sure drafts are still believed

    def allow(self, confidence: float, most: int) -> int:
        """Nodes for this step, of at most `most`. `confidence`: estimated probability of the draft's best node."""
        self._confidence = min(1.0, confidence)
        if self._misses < self.SMALL or (confidence >= self.SURE and self._trust):
            return most
        return 0 if self._pause > 0 else min(most, self.PROBE)

    def record(self, *, drafted: int, accepted: int) -> None:
        """What the step verified and accepted, in nodes; a step without a draft shortens the pause."""
        if accepted > 0:
            self._misses, self._pause, self._pauses, self._trust = 0.0, 0, 0, True
        elif drafted > 0:
            self._misses += self._confidence
            if self._misses >= self.PATIENCE:
                self._pause = min(self.LONGEST, 2 ** min(self._pauses, 16))
                self._pauses += 1
            if self._confidence >= self.SURE and self._misses >= self.SMALL:
                self._trust = False
        elif self._pause > 0:
            self._pause -= 1


class Mood:
    """How far the scores of this request's drafts have come true lately: a factor of at most 1 for the next ones.

    Nodes are chosen for high scores, and what is chosen for its score is overrated on average; where the drafters
    know little of a text it is overrated by a quarter and more.
    """

    KEEP = 0.97
    """What a step leaves of the earlier ones."""

    PRIOR = 5.0
    """Nodes promised and accepted that are taken for granted."""

    __slots__ = ("_accepted", "_promised")

    def __init__(self) -> None:
        self._promised = self._accepted = 0.0

    def factor(self) -> float:
        return min(1.0, (self._accepted + self.PRIOR) / (self._promised + self.PRIOR))

    def record(self, *, promised: float, accepted: int) -> None:
        """`promised`: sum of the scores, before the factor, of the nodes verified."""
        self._promised = self.KEEP * self._promised + promised
        self._accepted = self.KEEP * self._accepted + accepted


class AdaptiveBudget:
    """Verify the nodes that make tokens per time largest, by node scores and the cost of rows.

    `max_nodes` >= 1. `cost`: see `CostModel`. `careful`: scores are held against what came of earlier ones (`Mood`),
    with pauses after misses (`BackOff`). Proposals are asked for in pauses, too, since they cost microseconds and a
    long match must end a pause. But of a small model's step that is two hundredths: where nearly nothing is accepted
    they are asked for in every `EVERY`-th step only, and in every `SELDOM`-th at last. An accepted node pays for
    `PAYS` steps of asking; `IDLE` more of them than were paid for make a text one of that kind, half of which are held
    against it from the start; three times as many are remembered at most.
    """

    IDLE = 48
    PAYS = 24
    EVERY = 3
    SELDOM = 6

    __slots__ = ("_back_off", "_cost", "_costs", "_factor", "_idle", "_max_nodes", "_mood", "_promised", "_steps")

    def __init__(self, max_nodes: int, *, cost: Cost | None = None, careful: bool = True) -> None:
        if max_nodes < 1:
            raise ValueError(f"max_nodes must be >= 1, got {max_nodes}; use FixedBudget(0) to never draft")
        self._max_nodes = max_nodes
        self._cost = TABLE if cost is None else cost
        self._costs = [self._cost(rows) for rows in range(1, max_nodes + 2)]
        self._back_off = BackOff() if careful else None
        self._mood = Mood() if careful else None
        self._factor = 1.0
        self._idle = self.IDLE // 2  # steps of asking that accepted nodes have not paid for; some are taken for granted
        self._steps = 0
        self._promised = 0.0  # by the scores, before the factor, of the tree at hand

    def nodes(self) -> int:
        if self._back_off is not None and self._idle >= self.IDLE:
            every = self.EVERY if self._idle < 2 * self.IDLE else self.SELDOM
            return 0 if self._steps % every else self._max_nodes
        return self._max_nodes

    def choose(self, tree: DraftTree, *, cost: Cost | None = None) -> DraftTree:
        if not len(tree):
            self._promised = 0.0
            return tree
        if cost is not None and cost is not self._cost:
            self._cost, self._costs = cost, [cost(rows) for rows in range(1, self._max_nodes + 2)]
        costs = self._costs
        scores: list[float] = sorted(tree.score.tolist(), reverse=True)
        most = self._most(scores)
        # Expected tokens of a step: the target's own one, and every node that is reached and accepted.
        tokens = best = 1.0
        nodes = 0
        for i in range(most):
            tokens += self._factor * scores[i]
            if tokens > best * costs[i + 1]:
                best, nodes = tokens / costs[i + 1], i + 1
        self._promised = sum(scores[:nodes])
        return tree.prune(max_nodes=nodes)

    def allow(self, tree: DraftTree) -> DraftTree:
        self._promised = 0.0
        if not len(tree):
            return tree
        allowed = tree.prune(max_nodes=self._most(sorted(tree.score.tolist(), reverse=True)))
        return allowed if self._factor == 1.0 else allowed.scaled(self._factor)

    def _most(self, scores: list[float]) -> int:
        """Nodes that may be verified, of the likeliest; takes note that they are at hand."""
        most = min(len(scores), self._max_nodes)
        if self._back_off is None or self._mood is None:
            return most
        self._factor = self._mood.factor()
        return self._back_off.allow(scores[0], most)

    def record(self, *, drafted: int, accepted: int, promised: float | None = None) -> None:
        if self._back_off is not None and self._mood is not None:
            self._back_off.record(drafted=drafted, accepted=accepted)
            self._idle = max(0, min(self._idle + 1, 3 * self.IDLE) - self.PAYS * accepted)
            self._steps += 1
            # Nodes that others chose come from `allow`, with the factor in their scores.
            whole = self._promised if promised is None or self._promised else promised / self._factor
            self._mood.record(promised=whole if drafted else 0.0, accepted=accepted)


def choose_batch(
    trees: Sequence[DraftTree], *, cost: Cost, max_rows: int | None = None, other_rows: int = 0
) -> list[DraftTree]:
    """The nodes to verify in one forward of several requests: one tree each, of the nodes given, by one choice.

    Every request takes a row for its root; nodes of all trees are taken in order of score while expected tokens per
    time (requests + scores of the nodes taken) / cost(rows) are largest, which may be at no node at all.
    `max_rows`: most rows of the forward, roots and `other_rows` included (those of prompts, which run along and yield
    no token). Among equal scores the earlier request and the earlier node come first.

    >>> a, b = (DraftTree.chain([1, 2], source="copy", scores=s) for s in ([0.9, 0.8], [0.3, 0.1]))
    >>> [len(t) for t in choose_batch([a, b], cost=CostModel(), max_rows=5)]
    [2, 1]
    """
    if not trees:
        return []
    offers = sorted((-score, i) for i, tree in enumerate(trees) for score in tree.score.tolist())
    rows = len(trees) + other_rows
    most = len(offers) if max_rows is None else max(0, min(len(offers), max_rows - rows))
    tokens = float(len(trees))
    best, nodes = tokens / cost(rows), 0
    for n, (score, _) in enumerate(offers[:most], 1):
        tokens -= score
        if (rate := tokens / cost(rows + n)) > best:
            best, nodes = rate, n
    taken = [0] * len(trees)
    for _, i in offers[:nodes]:
        taken[i] += 1
    return [tree.prune(max_nodes=k) for tree, k in zip(trees, taken, strict=True)]


def make_budget(speculation: Speculation, *, cost: Cost | None = None) -> Budget:
    """A new budget for one request: `none` never drafts, `copyspec` verifies its whole block, `copy` takes the
    nodes that pay, the others are careful as well."""
    asked = model_draft(speculation.draft)
    if asked is not None and (speculation.draft_length or asked.first == "copyspec"):
        # Published protocols verify whatever is drafted; a model's trees choose for themselves what pays.
        return FixedBudget(speculation.max_nodes)
    match speculation.draft:
        case "none":
            return FixedBudget(0)
        case "copyspec":
            return FixedBudget(min(speculation.block, speculation.max_nodes))
        case draft:
            careful = (
                draft in ("recycle", BESIDE, "auto")
                or layer_draft(draft) is not None
                or (asked is not None and asked.first == "auto")
            )
            return AdaptiveBudget(speculation.max_nodes, cost=cost, careful=careful)
