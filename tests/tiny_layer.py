"""Tiny random draft layers for the tiny random targets of `tiny_weights`."""

from __future__ import annotations

import numpy as np

from exactspec.drafters.layer.card import Card, CardSizes, CardTarget
from exactspec.drafters.layer.checkpoint import NORMS, Layer, matrix_shapes
from exactspec.target.weights import WeightSource


def tiny_card(source: WeightSource, *, head: int = 200, **others: object) -> Card:
    """A card for a source, most sizes other than the target's own."""
    sizes = CardSizes(heads=6, kv_heads=3, head_dim=8, cross_heads=2 * source.config.num_kv_heads, inner=48, head=head)
    fields: dict[str, object] = {
        "window": 12,
        "anchors": 4,
        "depth": 5,
        "rope_theta": 10000.0,
        "eps": 1e-5,
        "embed_gain": 0.9,
        "feature_gain": 0.7,
        "draft_feature": "verified",
        "precision": "bfloat16",
    }
    target = CardTarget.of(source.config, sha256=source.sha256, name="tiny")
    return Card(target=target, sizes=sizes, **{**fields, **others})  # type: ignore[arg-type]


def random_layer(card: Card, seed: int = 0) -> Layer:
    rng = np.random.default_rng(seed)
    matrices = {
        name: (rng.standard_normal(shape) / np.sqrt(shape[1])).astype(np.float32)
        for name, shape in matrix_shapes(card).items()
    }
    norms = {name: (1 + 0.1 * rng.standard_normal(card.target.hidden_size)).astype(np.float32) for name in NORMS}
    ids = np.sort(rng.choice(card.target.vocab_size, size=card.sizes.head, replace=False)).astype(np.int64)
    return Layer(card, matrices, norms, ids)
