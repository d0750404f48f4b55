"""The reference of one draft pass, against torch where it is there and against what must hold of it."""

from __future__ import annotations

import numpy as np
from tiny_layer import random_layer, tiny_card
from tiny_weights import RandomWeights

from exactspec.drafters.layer.reference import Keys, ReferenceLayer


def _reference(**others: object) -> ReferenceLayer:
    source = RandomWeights()
    layer = random_layer(tiny_card(source, **others))
    return ReferenceLayer(layer, source.config, source.matrix("embed"), source.matrix("head")[layer.head_ids])


def _cross(reference: ReferenceLayer, m: int, positions: np.ndarray) -> Keys:
    rng = np.random.default_rng(5)
    t = reference.card.target
    k, v = rng.standard_normal((2, t.num_kv_heads, m, t.head_dim)).astype(np.float32)
    from exactspec.drafters.layer.reference import rotate

    return Keys(rotate(k, positions, reference._cross_frequency), v, positions)


def _logits(shift: int, *, window: int = 12, own: int = 10) -> np.ndarray:
    """Logits of one row after `own` committed tokens, all positions moved by `shift`."""
    reference = _reference(window=window)
    rng = np.random.default_rng(6)
    positions = np.arange(own) + shift
    x = reference.inputs(np.arange(own), rng.standard_normal((own, 64)).astype(np.float32))
    keys = reference.own_keys(x, positions)
    _, logits = reference.draft(x[-1:], positions[-1:], [keys], _cross(reference, 7, np.arange(7) + shift))
    return logits


def test_only_distances_count() -> None:
    np.testing.assert_allclose(_logits(0), _logits(1000), atol=2e-3)
    assert np.abs(_logits(0)).max() > 0.5


def test_keys_beyond_the_window_do_not_count() -> None:
    reference = _reference(window=4)
    rng = np.random.default_rng(6)
    positions = np.arange(10)
    x = reference.inputs(np.arange(10), rng.standard_normal((10, 64)).astype(np.float32))
    keys, cross = reference.own_keys(x, positions), _cross(reference, 3, np.arange(3))
    _, all_keys = reference.draft(x[-1:], positions[-1:], [keys], cross)
    for first, same in ((6, True), (7, False)):  # a row at 9 sees 6, 7, 8 and itself
        _, some = reference.draft(x[-1:], positions[-1:], [keys.rows(np.arange(first, 10))], cross)
        assert np.allclose(some, all_keys, atol=1e-6) is same


def test_rows_do_not_see_one_another() -> None:
    reference = _reference()
    rng = np.random.default_rng(7)
    x = reference.inputs([3, 4, 5], rng.standard_normal((3, 64)).astype(np.float32))
    positions = np.array([8, 8, 9])
    own = [reference.own_keys(x[i : i + 1], positions[i : i + 1]) for i in range(3)]
    cross = _cross(reference, 5, np.arange(5))
    together = reference.draft(x, positions, own, cross)[1]
    for i in range(3):
        alone = reference.draft(x[i : i + 1], positions[i : i + 1], own[i : i + 1], cross)[1]
        np.testing.assert_allclose(together[i], alone[0], atol=1e-5)


def test_nothing_known_yet() -> None:
    """The first token of all: no feature, no key of the target."""
    reference = _reference()
    x = reference.inputs([3], np.zeros((1, 64), dtype=np.float32))
    np.testing.assert_allclose(x, 0.9 * RandomWeights().matrix("embed")[3:4], rtol=1e-6)
    positions = np.zeros(1, dtype=np.int64)
    out, logits = reference.draft(x, positions, [reference.own_keys(x, positions)], Keys.empty(2, 16))
    assert np.isfinite(out).all()
    assert logits.shape == (1, 200)
