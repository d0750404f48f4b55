"""The numpy reference beside a tiny drafter: what it would draft from the same history."""

from __future__ import annotations

from typing import Any

import numpy as np
from tiny_drafts import SOURCE, read
from tiny_layer import random_layer

from exactspec.drafters.layer.reference import Keys, ReferenceLayer
from exactspec.drafters.layer.reference_drafter import ReferenceDrafter
from exactspec.drafters.longspec import LongSpecDrafter
from exactspec.target.base import FloatArray
from exactspec.target.exact import ExactTarget


def reference_of(
    target: ExactTarget,
    drafter: LongSpecDrafter,
    tokens: np.ndarray,
    features: FloatArray,
    *,
    sharpness: float = 1.0,
) -> tuple[ReferenceDrafter, Keys]:
    """The numpy reference, by the head and embedding that the target reads, and the cache's own keys."""
    card = drafter.runner.card
    layer = random_layer(card)
    layer.matrices["cross_q"] *= np.float32(sharpness)
    head = SOURCE.matrix("head")[layer.head_ids]
    reference = ReferenceDrafter(ReferenceLayer(layer, SOURCE.config, SOURCE.matrix("embed"), head), tokens, features)
    cache, _ = read(target, tokens)
    keys, values = cache.last_layer()  # type: ignore[attr-defined]
    half, size = keys.shape[-1] // 2, SOURCE.config.head_dim
    places = np.concatenate([np.arange(size // 2), half + np.arange(size // 2)])
    cross = Keys(keys[..., places], values[..., :size], np.arange(len(tokens) - 1))
    return reference, cross


def reference_tree(target: ExactTarget, drafter: LongSpecDrafter, tokens: np.ndarray, features: FloatArray) -> Any:
    reference, cross = reference_of(target, drafter, tokens, features)
    return reference.propose(cross, sight=drafter.runner.sight)
