"""The draft: a tree of tokens below the root. No model, no device.

The root is not a node. Node i becomes row i + 1 of the verify segment (row 0 is the root).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from exactspec.target.base import FloatArray, IntArray

ROOT = -1
"""Parent of the nodes directly below the root."""


@dataclass(frozen=True, slots=True, eq=False)
class DraftTree:
    """n drafted tokens.

    `tokens` [n] ids; `parents` [n] index of the parent node, ROOT (-1) below the root, ``parents[i] < i``.
    `source` [n] index into `sources`, the names of the drafters that proposed the nodes.
    `score` [n] float32: estimated probability that the node is reached and accepted; never above its parent's.
    `origin` [n]: where the token was copied from: an index into the history (prompt + output), or into the
    prediction text's ids for source "prediction"; -1 for drafters that do not copy.
    Siblings hold distinct tokens.

    >>> t = DraftTree.chain([5, 6], source="copy", scores=[0.9, 0.8], origins=[3, 4])
    >>> t.parents.tolist(), t.depths().tolist()
    ([-1, 0], [1, 2])
    """

    tokens: IntArray
    parents: IntArray
    source: IntArray
    score: FloatArray
    origin: IntArray
    sources: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.tokens)

    @classmethod
    def empty(cls) -> DraftTree:
        none = np.empty(0, dtype=np.int64)
        return cls(none, none, none, np.empty(0, dtype=np.float32), none, ())

    @classmethod
    def chain(
        cls,
        tokens: Sequence[int] | IntArray,
        *,
        source: str,
        scores: Sequence[float] | FloatArray | None = None,
        origins: Sequence[int] | IntArray | None = None,
    ) -> DraftTree:
        ids = np.asarray(tokens, dtype=np.int64)
        n = len(ids)
        return cls(
            ids,
            np.arange(-1, n - 1, dtype=np.int64),
            np.zeros(n, dtype=np.int64),
            np.ones(n, dtype=np.float32) if scores is None else np.asarray(scores, dtype=np.float32),
            np.full(n, -1, dtype=np.int64) if origins is None else np.asarray(origins, dtype=np.int64),
            (source,),
        )

    def depths(self) -> IntArray:
        """[n] depth of every node; 1 directly below the root. A step that accepts node i emits depth + 1 tokens."""
        n = len(self)
        if self._is_chain():
            return np.arange(1, n + 1, dtype=np.int64)
        depth: list[int] = []
        for parent in self.parents.tolist():
            depth.append(1 if parent < 0 else depth[parent] + 1)
        return np.array(depth, dtype=np.int64)

    def children(self, node: int = ROOT) -> list[int]:
        """Indices of the nodes below `node` (ROOT: the first level), in order."""
        return [int(i) for i in np.nonzero(self.parents == node)[0]]

    def child(self, node: int, token: int) -> int | None:
        """The node below `node` that holds `token`, or None: one step of the walk down from ROOT."""
        hits = np.nonzero((self.parents == node) & (self.tokens == token))[0]
        return int(hits[0]) if len(hits) else None

    def path(self, node: int) -> IntArray:
        """Nodes from the first level down to `node`, which is last; empty for ROOT.

        >>> DraftTree.chain([5, 6, 7], source="copy").path(1).tolist()
        [0, 1]
        """
        up: list[int] = []
        while node >= 0:
            up.append(node)
            node = int(self.parents[node])
        return np.array(up[::-1], dtype=np.int64)

    def prune(self, *, max_nodes: int | None = None, max_depth: int | None = None) -> DraftTree:
        """At most `max_nodes` nodes of depth at most `max_depth`: the best by score, with all their ancestors.

        A node counts as no likelier than its parent, and of equals the earlier stays, so what is left is a tree.
        """
        n = len(self)
        nodes = n if max_nodes is None else max(0, max_nodes)
        depth = n if max_depth is None else max(0, max_depth)
        if self._is_chain():
            k = min(nodes, depth)
            return self if n <= k else self._first(k)
        if depth >= n:
            if nodes >= n:
                return self
            if bool((self.score[1:] <= self.score[:-1]).all()):  # likeliest first, parents earlier: the first ones
                return self._first(nodes)
        keep = np.nonzero(self.depths() <= depth)[0]
        if len(keep) > nodes:
            score = self._monotone()
            # A parent is no less likely and stands earlier: a stable sort puts it before its children.
            keep = np.sort(keep[np.argsort(-score[keep], kind="stable")][:nodes])
        return self if len(keep) == n else self._take(keep)

    def restrict(self, nodes: IntArray) -> DraftTree:
        """The nodes listed: increasing indices, each with its parent among them.

        >>> DraftTree.chain([5, 6, 7], source="copy").restrict(np.array([0, 1])).tokens.tolist()
        [5, 6]
        """
        return self._take(nodes)

    def scaled(self, factor: float) -> DraftTree:
        """All scores times `factor`, which is in 0..1."""
        return self._with_score(self.score * np.float32(factor))

    def merge(self, other: DraftTree) -> DraftTree:
        """Both trees as one below the same root. A path that both hold is there once, credited (source, score,
        origin) to whichever scored it higher; to `self` where equal."""
        if not len(other):
            return self
        if not len(self):
            return other
        sources = self.sources + tuple(s for s in other.sources if s not in self.sources)
        rename = [sources.index(s) for s in other.sources]
        rows = [list(r) for r in zip(*(a.tolist() for a in self._columns()), strict=True)]
        at = {(row[1], row[0]): i for i, row in enumerate(rows)}
        place: list[int] = []  # node of `other` -> node of the result
        for token, parent, source, score, origin in zip(*(a.tolist() for a in other._columns()), strict=True):
            key = (ROOT if parent < 0 else place[parent], token)
            here = at.get(key)
            row = [token, key[0], rename[source], score, origin]
            if here is None:
                here = at[key] = len(rows)
                rows.append(row)
            elif score > rows[here][3]:
                rows[here] = row
            place.append(here)
        columns = list(zip(*rows, strict=True))
        tokens, parents, source_ids, origins = (np.array(columns[c], dtype=np.int64) for c in (0, 1, 2, 4))
        merged = DraftTree(tokens, parents, source_ids, np.array(columns[3], dtype=np.float32), origins, sources)
        # A parent scored only by the less hopeful source may stand below a child of the other one.
        return merged._with_score(merged._raised())

    def sanitise(self, vocab_size: int, *, max_nodes: int | None = None, max_depth: int | None = None) -> DraftTree:
        """What of this tree a target can verify; never raises, whatever the arrays hold.

        Drops, with their descendants: nodes whose token is no integer in 0..vocab_size-1, whose parent is neither
        ROOT nor an earlier node, or that repeat a sibling's token. Unusable sources, scores (not in 0..1) and
        origins cost no node: they become "unknown", 0 and -1. Then prunes to `max_nodes` and `max_depth`.
        """
        clean = self if self._is_clean(vocab_size) else _rebuild(self, vocab_size)
        return clean.prune(max_nodes=max_nodes, max_depth=max_depth)

    def _columns(self) -> tuple[IntArray, IntArray, IntArray, FloatArray, IntArray]:
        return self.tokens, self.parents, self.source, self.score, self.origin

    def _first(self, k: int) -> DraftTree:
        t, p, s = self.tokens[:k], self.parents[:k], self.source[:k]
        return DraftTree(t, p, s, self.score[:k], self.origin[:k], self.sources)

    def _take(self, keep: IntArray) -> DraftTree:
        """The nodes `keep`, increasing and closed under parents."""
        new = np.full(len(self) + 1, ROOT, dtype=np.int64)  # the last slot stands for ROOT
        new[keep] = np.arange(len(keep))
        tokens, parents, source = self.tokens[keep], new[self.parents[keep]], self.source[keep]
        return DraftTree(tokens, parents, source, self.score[keep], self.origin[keep], self.sources)

    def _with_score(self, score: FloatArray) -> DraftTree:
        return DraftTree(self.tokens, self.parents, self.source, score, self.origin, self.sources)

    def _is_chain(self) -> bool:
        return bool((self.parents == np.arange(-1, len(self) - 1)).all())

    def _monotone(self) -> FloatArray:
        """Scores lowered to the parent's where they exceed it."""
        score = self.score.tolist()
        for i, parent in enumerate(self.parents.tolist()):
            if parent >= 0 and score[parent] < score[i]:
                score[i] = score[parent]
        return np.array(score, dtype=np.float32)

    def _raised(self) -> FloatArray:
        """Scores raised to the best child's: a node is reached whenever its child is."""
        score, parents = self.score.tolist(), self.parents.tolist()
        for i in range(len(score) - 1, -1, -1):
            if parents[i] >= 0 and score[parents[i]] < score[i]:
                score[parents[i]] = score[i]
        return np.array(score, dtype=np.float32)

    def _is_clean(self, vocab_size: int) -> bool:
        """Cheap test for the usual case: a well-formed tree."""
        columns = self._columns()
        n = len(self.tokens) if isinstance(self.tokens, np.ndarray) and self.tokens.ndim == 1 else -1
        if n < 0 or not isinstance(self.sources, tuple):
            return False
        if any(
            not isinstance(c, np.ndarray) or c.shape != (n,) or c.dtype.kind != k
            for c, k in zip(columns, "iiifi", strict=True)
        ):
            return False
        # A loop over lists: for the few dozen nodes of a draft it takes a third of the time of array operations.
        kinds, edges = len(self.sources), set()
        for i, (token, parent, source, score, origin) in enumerate(zip(*(c.tolist() for c in columns), strict=True)):
            if not (
                0 <= token < vocab_size
                and ROOT <= parent < i
                and 0 <= source < kinds
                and 0 <= score <= 1  # False for NaN
                and origin >= -1
            ):
                return False
            edges.add((parent, token))
        return len(edges) == n


def _items(values: object) -> list[object]:
    """Any one-dimensional sequence as a list; anything else as an empty one."""
    try:
        listed = values.tolist() if isinstance(values, np.ndarray) else list(values)  # type: ignore[call-overload]
    except Exception:
        return []
    return listed if isinstance(listed, list) else []


def _integer(value: object) -> int | None:
    """An int, or None: bools, floats and strings are no ids."""
    if isinstance(value, (int, np.integer)) and not isinstance(value, (bool, np.bool_)):
        return int(value)
    return None


def _rebuild(tree: DraftTree, vocab_size: int) -> DraftTree:
    """`DraftTree.sanitise` for trees that are no well-formed chain, node by node."""
    source, score, origin = _items(tree.source), _items(tree.score), _items(tree.origin)
    names = (*(str(name) for name in _items(tree.sources)), "unknown")
    place: list[int | None] = []  # old index -> new index, None where dropped
    at: set[tuple[int, int]] = set()
    rows: list[tuple[int, int, int, float, int]] = []
    for i, (raw_token, raw_parent) in enumerate(zip(_items(tree.tokens), _items(tree.parents), strict=False)):
        token, parent = _integer(raw_token), _integer(raw_parent)
        place.append(None)
        if token is None or parent is None or not 0 <= token < vocab_size or not ROOT <= parent < i:
            continue
        above = ROOT if parent == ROOT else place[parent]
        if above is None or (above, token) in at:
            continue
        at.add((above, token))
        name = _integer(source[i]) if i < len(source) else None
        value = score[i] if i < len(score) else None
        sure = float(value) if isinstance(value, (int, float)) and 0 <= value <= 1 else 0.0
        where = _integer(origin[i]) if i < len(origin) else None
        place[i] = len(rows)
        rows.append(
            (
                token,
                above,
                name if name is not None and 0 <= name < len(names) else len(names) - 1,
                sure,
                where if where is not None and -1 <= where < 2**62 else -1,
            )
        )
    if not rows:
        return DraftTree.empty()
    columns = list(zip(*rows, strict=True))
    tokens, parents, sources, origins = (np.array(columns[c], dtype=np.int64) for c in (0, 1, 2, 4))
    used = names if len(names) - 1 in columns[2] else names[:-1]
    return DraftTree(tokens, parents, sources, np.array(columns[3], dtype=np.float32), origins, used)
