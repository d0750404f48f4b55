"""Growing a draft tree with a drafting model, level by level.

A level is one forward over the likeliest nodes not asked yet. What a forward stages is gone at the next one, so a node
that was asked is either committed to the model's cache (while all that is asked next lies below it) or computed again
as an ancestor in the next segment. Committed nodes are the *spine*: a path from the root down.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from exactspec.drafters.reading import Grown
from exactspec.target.base import Cache, FloatArray, IntArray, Segment, Want

ROOT = -1
LEAST = 0.02  # probability below which a candidate is not worth a row anywhere

Row = tuple[list[int], list[float]]
"""The likeliest next ids after a node, best first, and their probabilities."""

Forward = Callable[[Segment, Sequence[int]], list[Row]]
"""One forward; the rows asked, in order. Where it stages, nothing is committed."""


def probabilities(logits: FloatArray) -> list[float]:
    """Softmax over the best logits, as if the others had no mass.

    >>> probabilities(np.array([1.0, 1.0], dtype=np.float32))
    [0.5, 0.5]
    """
    x = logits.astype(np.float64)
    x = np.exp(x - x.max())
    listed: list[float] = (x / x.sum()).tolist()
    return listed


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What a tree may be. `levels`: forwards after the root's. `width`: nodes asked in one forward. `children` below a
    node. `leaves`: ids that nothing is asked behind (an answer ends there). `fixed`: a chain of all levels, whatever it
    promises."""

    levels: int
    width: int
    children: int
    leaves: frozenset[int] = frozenset()
    fixed: bool = False


class Growth:
    """One tree over a cache whose last token is the root. `worth`: whether another level pays, by the sum of the
    probabilities of its nodes and the rows of its forward."""

    def __init__(
        self, cache: Cache, root: int, forward: Forward, shape: Shape, worth: Callable[[float, int], bool]
    ) -> None:
        self._cache, self._root, self._forward, self._shape, self._worth = cache, root, forward, shape, worth
        self._base = cache.length - 1  # tokens before the root
        self._staged: dict[int, int] = {}  # node -> row of the last forward
        self._spine: list[int] = [ROOT]  # in the cache behind those
        self.tokens: list[int] = []
        self.parents: list[int] = []
        self.probs: list[float] = []
        self._asked: set[int] = set()
        self.levels = 0

    @property
    def grown(self) -> Grown:
        return Grown(self.tokens, self.parents, self.probs)

    @property
    def spine_tokens(self) -> list[int]:
        """What the cache holds from the root on; empty where even the root was dropped to be computed again."""
        return [self._token(node) for node in self._spine]

    def _token(self, node: int) -> int:
        return self._root if node == ROOT else self.tokens[node]

    def run(self, root: Row) -> Grown:
        """Grow from what follows the root."""
        self._add(ROOT, root)
        while self.levels < self._shape.levels:
            frontier = self._frontier()
            if not frontier:
                break
            nodes = self._place(frontier)
            mass = sum(self.probs[node] for node in frontier)
            if not self._shape.fixed and not self._worth(mass, len(nodes)):
                break
            self._level(nodes, frontier)
        self._commit_best()
        return self.grown

    def _commit_best(self) -> None:
        """Keep what the last level computed on the likeliest path: if that is accepted, it is not fed again."""
        below = [n for n in range(len(self.tokens)) if n not in self._asked]
        below = [n for n in below if self._path(n)[: len(self._spine)] == self._spine]
        if below:
            self._place([max(below, key=lambda n: self.probs[n])])

    def _add(self, node: int, row: Row) -> None:
        above = 1.0 if node == ROOT else self.probs[node]
        seen: set[int] = set()
        for token, prob in zip(*row, strict=True):
            if len(seen) == self._shape.children:
                break
            if token in seen or (seen and not self._shape.fixed and above * prob < LEAST):
                continue
            seen.add(token)
            self.tokens.append(token)
            self.parents.append(node)
            self.probs.append(above * prob)

    def _frontier(self) -> list[int]:
        """The likeliest nodes that may be asked; those far below the likeliest wait."""
        open_ = [
            n for n in range(len(self.tokens)) if n not in self._asked and self.tokens[n] not in self._shape.leaves
        ]
        best = sorted(open_, key=lambda n: -self.probs[n])[: self._shape.width]
        return sorted(n for n in best if 3 * self.probs[n] >= self.probs[best[0]])

    def _path(self, node: int) -> list[int]:
        """From the root, which is first, to the node."""
        up = [node]
        while node != ROOT:
            node = self.parents[node]
            up.append(node)
        return up[::-1]

    def _place(self, frontier: Sequence[int]) -> list[int]:
        """Commit or drop until all of `frontier` lies at or below one node that follows the cache: a segment has one
        first row. Returns `frontier` and its ancestors from that node on, in the order of their numbers."""
        paths = [self._path(node) for node in frontier]
        shared = paths[0]
        for path in paths[1:]:
            shared = shared[: _agree(shared, path)]
        above = shared[:-1]  # to be in the cache
        common = _agree(self._spine, above)
        if common < len(self._spine):
            self._cache.truncate(self._base + common)
            del self._spine[common:]
            self._staged.clear()
        rows: list[int] = []
        for node in above[common:]:
            if node not in self._staged:
                break
            rows.append(self._staged[node])
        if rows and rows[0] == 0:
            self._cache.keep(rows)
            self._spine += above[common : common + len(rows)]
            self._staged.clear()
        return sorted({node for path in paths for node in path[len(self._spine) :]})

    def _level(self, nodes: list[int], frontier: Sequence[int]) -> None:
        row_of = {node: row for row, node in enumerate(nodes)}
        tokens: IntArray = np.array([self._token(node) for node in nodes], dtype=np.int64)
        parents: IntArray = np.array(
            [-1 if node == ROOT else row_of.get(self.parents[node], -1) for node in nodes], dtype=np.int64
        )
        want = np.full(len(nodes), Want.NONE, dtype=np.int64)
        asked = [row_of[node] for node in frontier]
        want[asked] = Want.TOPK
        found = self._forward(Segment(self._cache, tokens, parents, want), asked)
        self._staged = row_of
        self._asked.update(frontier)
        self.levels += 1
        for node, row in zip(frontier, found, strict=True):
            self._add(node, row)


def _agree(a: Sequence[int], b: Sequence[int]) -> int:
    """Length of the common prefix."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
