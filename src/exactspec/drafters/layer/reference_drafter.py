"""Drafting with the layer in plain numpy: state, tree, commit. The oracle of the drafter, and what training measures
acceptance of trees with; slow, and of one request alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from exactspec.drafters.layer.reference import Ints, Keys, ReferenceLayer
from exactspec.drafters.layer.sight import SINKS, Sight
from exactspec.target.base import FloatArray
from exactspec.target.kernels.pages import CHUNK

PAPER_WIDTHS = (4, 16, 16, 16, 16)
"""Nodes kept at each depth, as in LongSpec."""


@dataclass(frozen=True, slots=True, eq=False)
class ReferenceTree:
    """`tokens`, `parents` [n]: parents[i] < i, -1 the root. `scores` [n]: product of the probabilities on the path."""

    tokens: Ints
    parents: Ints
    scores: FloatArray

    def best(self, nodes: int) -> ReferenceTree:
        """The `nodes` with the highest scores, ties to the earlier: a tree, for no child scores above its parent."""
        kept = np.sort(np.argsort(-self.scores, kind="stable")[:nodes])
        place = np.full(len(self.tokens) + 1, -1)  # the last entry: of parent -1
        place[kept] = np.arange(len(kept))
        return ReferenceTree(self.tokens[kept], place[self.parents[kept]], self.scores[kept])


class ReferenceDrafter:
    """State of one request: the layer's keys of the committed tokens, the last feature, and the root.

    `tokens` [n]: the history; the last is the root. `features` [n - 1, W]: the target's hidden states of all but it.
    """

    def __init__(self, layer: ReferenceLayer, tokens: Sequence[int] | Ints, features: FloatArray) -> None:
        self._layer = layer
        card = layer.card
        self._keys = Keys.empty(card.sizes.kv_heads, card.sizes.head_dim)
        self._feature: FloatArray = np.zeros((1, card.target.hidden_size), dtype=np.float32)
        self._length = 0
        self._root: FloatArray = self._feature
        self.commit(tokens, features)

    def commit(self, tokens: Sequence[int] | Ints, features: FloatArray) -> None:
        """Take in tokens [a + 1] that a step appended, with the features [a + 1, W] of the old root and the accepted
        ones (at the start: [a, W], for there is no old root)."""
        before = features if self._length else np.concatenate([self._feature, features])
        x = self._layer.inputs(np.asarray(tokens), before)
        positions = self._length + np.arange(len(x))
        self._keys = self._keys.joined(self._layer.own_keys(x, positions))
        self._length += len(x)
        self._feature, self._root = before[-1:], x[-1:]
        window = self._layer.card.window
        if len(self._keys.positions) > window:
            self._keys = self._keys.rows(np.arange(len(self._keys.positions) - window, len(self._keys.positions)))

    def masses(self, cross: Keys, sight: Sight) -> FloatArray:
        """What the root's queries give to the chunks `sight.between` [c], by the means of their keys."""
        between = sight.between(len(cross.positions))
        bounds = [(chunk * CHUNK if chunk else SINKS, (chunk + 1) * CHUNK) for chunk, _, _ in between]
        means = np.stack([cross.keys[:, start:end].mean(axis=1) for start, end in bounds], axis=1)
        return self._layer.masses(self._root, np.array([self._length - 1]), [self._keys], means)

    def sees(self, cross: Keys, sight: Sight) -> Ints:
        """Positions of the target's keys, of which `cross` holds all, that the rows of a tree see."""
        n = len(cross.positions)
        pieces, between = sight.fixed(n), sight.between(n)
        if between:
            best = np.argsort(-self.masses(cross, sight), kind="stable")[: sight.top]
            pieces = pieces + [between[i] for i in sorted(best.tolist())]
        return np.concatenate([np.arange(first, end) + chunk * CHUNK for chunk, first, end in pieces])

    def propose(
        self,
        cross: Keys,
        *,
        widths: Sequence[int] = PAPER_WIDTHS,
        branch: int = 16,
        sight: Sight = Sight(None),  # noqa: B008 - frozen
    ) -> ReferenceTree:
        """A beam: at each depth the best of all children of the nodes kept at the depth before, `branch` of each.
        `cross`: the target's last layer, all committed positions: one fewer than the history. `sight`: which of
        these rows see."""
        if sight.recent is not None:
            cross = cross.rows(self.sees(cross, sight))
        layer, card = self._layer, self._layer.card
        tokens: list[int] = []
        parents: list[int] = []
        scores: list[float] = []
        frontier = [-1]
        x, own = self._root, [self._keys]
        for depth, width in enumerate(widths):
            positions = np.full(len(x), self._length - 1 + depth)
            out, logits = layer.draft(x, positions, own, cross)
            shares = np.exp(logits - logits.max(axis=1, keepdims=True))
            shares /= shares.sum(axis=1, keepdims=True)
            above = np.array([1.0 if node < 0 else scores[node] for node in frontier])
            places = np.argsort(-shares, axis=1, kind="stable")[:, :branch]
            found = above[:, None] * np.take_along_axis(shares, places, axis=1)
            order = np.argsort(-found.reshape(-1), kind="stable")[:width]
            chosen = [
                (int(i) // places.shape[1], int(places.reshape(-1)[i]), float(found.reshape(-1)[i])) for i in order
            ]
            first = len(tokens)
            for parent, place, score in chosen:
                tokens.append(int(layer.layer.head_ids[place]))
                parents.append(frontier[parent])
                scores.append(score)
            if depth + 1 < len(widths):
                above_rows = np.array([parent for parent, _, _ in chosen])
                feature = (
                    np.repeat(self._feature, len(chosen), axis=0)
                    if card.draft_feature == "verified"
                    else out[above_rows]
                )
                x = layer.inputs(np.array(tokens[first:]), feature)
                fresh = layer.own_keys(x, np.full(len(x), self._length + depth))
                own = [own[parent].joined(fresh.rows(np.array([i]))) for i, parent in enumerate(above_rows)]
                frontier = list(range(first, len(tokens)))
        return ReferenceTree(np.array(tokens), np.array(parents), np.array(scores, dtype=np.float32))


def accepted(tree: ReferenceTree, continuation: Sequence[int] | Ints) -> list[int]:
    """Node numbers from the root down that hold a text's own next tokens."""
    path: list[int] = []
    at = -1
    for token in continuation:
        below = np.flatnonzero((tree.parents == at) & (tree.tokens == token))
        if not len(below):
            break
        at = int(below[0])
        path.append(at)
    return path
