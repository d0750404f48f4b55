"""The reference drafter: its state is that of a run from scratch, its tree a beam over its own passes."""

from __future__ import annotations

import numpy as np
import pytest
from tiny_layer import random_layer, tiny_card
from tiny_weights import RandomWeights

from exactspec.drafters.layer.reference import Keys, ReferenceLayer
from exactspec.drafters.layer.reference_drafter import ReferenceDrafter, ReferenceTree, accepted


def _layer(draft_feature: str) -> ReferenceLayer:
    source = RandomWeights()
    layer = random_layer(tiny_card(source, draft_feature=draft_feature))
    return ReferenceLayer(layer, source.config, source.matrix("embed"), source.matrix("head")[layer.head_ids])


def _features(n: int) -> np.ndarray:
    return np.random.default_rng(1).standard_normal((n, 64)).astype(np.float32)


def _cross(n: int) -> Keys:
    k, v = np.random.default_rng(2).standard_normal((2, 2, n, 16)).astype(np.float32)
    return Keys(k, v, np.arange(n))


@pytest.mark.parametrize("draft_feature", ["verified", "own"])
def test_state_after_steps_is_that_of_a_fresh_start(draft_feature: str) -> None:
    """Field case 9, and the window: 30 tokens, of which the layer's own attention keeps 12."""
    layer = _layer(draft_feature)
    tokens, features = np.arange(30) * 7 % 256, _features(30)
    drafter = ReferenceDrafter(layer, tokens[:5], features[:4])
    at = 5
    for step in (1, 4, 2, 6, 1, 8):
        drafter.propose(_cross(at - 1), widths=(2, 3))
        drafter.commit(tokens[at : at + step], features[at - 1 : at - 1 + step])
        at += step
        fresh = ReferenceDrafter(layer, tokens[:at], features[: at - 1])
        a, b = (d.propose(_cross(at - 1), widths=(4, 6, 6)) for d in (drafter, fresh))
        assert a.tokens.tolist() == b.tokens.tolist()
        assert a.parents.tolist() == b.parents.tolist()
        np.testing.assert_allclose(a.scores, b.scores, rtol=1e-4)


@pytest.mark.parametrize("draft_feature", ["verified", "own"])
def test_scores_are_products_along_the_path(draft_feature: str) -> None:
    """A node's score is its parent's times what one pass over its path alone says."""
    layer = _layer(draft_feature)
    tokens, features = np.arange(9) * 5, _features(9)
    drafter = ReferenceDrafter(layer, tokens, features[:8])
    tree = drafter.propose(_cross(8), widths=(3, 5, 5))
    x = layer.inputs(tokens, np.concatenate([np.zeros((1, 64), dtype=np.float32), features[:8]]))
    keys = layer.own_keys(x, np.arange(9))
    node = len(tree.tokens) - 1  # a node of the last depth
    path = [node]
    while tree.parents[path[0]] >= 0:
        path.insert(0, int(tree.parents[path[0]]))
    row, score = x[-1:], 1.0
    for depth, at in enumerate(path):
        out, logits = layer.draft(row, np.array([8 + depth]), [keys], _cross(8))
        shares = np.exp(logits[0] - logits[0].max())
        score *= (shares / shares.sum())[np.searchsorted(layer.layer.head_ids, tree.tokens[at])]
        assert tree.scores[at] == pytest.approx(score, rel=1e-3)
        feature = features[7:8] if draft_feature == "verified" else out
        row = layer.inputs(tree.tokens[at : at + 1], feature)
        keys = keys.joined(layer.own_keys(row, np.array([9 + depth])))
    assert len(path) == 3


def test_best_nodes_are_a_tree_and_paths_are_found() -> None:
    tree = ReferenceTree(
        np.array([5, 6, 7, 8, 9]), np.array([-1, -1, 0, 1, 2]), np.array([0.6, 0.4, 0.5, 0.1, 0.3], dtype=np.float32)
    )
    kept = tree.best(4)
    assert kept.tokens.tolist() == [5, 6, 7, 9]
    assert kept.parents.tolist() == [-1, -1, 0, 2]
    assert accepted(kept, [5, 7, 9, 1]) == [0, 2, 3]
    assert accepted(kept, [6, 8]) == [1]
    assert accepted(kept, [7]) == []
