"""What one pass of the draft layer computes, in plain numpy: the oracle of every other implementation.

Shapes: n rows, W the target's hidden size; the layer's own attention has Hs query and Ks kv heads of size D, the
cross-attention Hc query heads over the target's Kt kv heads of size Dt. Row i is a token at a position with a feature
(a vector of W: docs/longspec.md says which). All arrays float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from exactspec.drafters.layer.checkpoint import Layer
from exactspec.target.base import FloatArray
from exactspec.target.rope import frequencies
from exactspec.target.weights import ModelConfig

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Keys:
    """Keys, rotated, and values [heads, m, size], and the positions [m] they are of."""

    keys: FloatArray
    values: FloatArray
    positions: Ints

    @classmethod
    def empty(cls, heads: int, size: int) -> Keys:
        nothing = np.zeros((heads, 0, size), dtype=np.float32)
        return cls(nothing, nothing, np.zeros(0, dtype=np.int64))

    def joined(self, other: Keys) -> Keys:
        return Keys(
            np.concatenate([self.keys, other.keys], axis=1),
            np.concatenate([self.values, other.values], axis=1),
            np.concatenate([self.positions, other.positions]),
        )

    def rows(self, which: Ints) -> Keys:
        return Keys(self.keys[:, which], self.values[:, which], self.positions[which])


class ReferenceLayer:
    """`embed` [vocab, W]: the target's embedding rows as its own forward reads them, factors included; `head` [H, W]:
    the rows `layer.head_ids` of its head likewise. `config`: the target's."""

    def __init__(self, layer: Layer, config: ModelConfig, embed: FloatArray, head: FloatArray) -> None:
        self.layer, self.card = layer, layer.card
        self._embed, self._head = embed, head
        self._cross_frequency = frequencies(config, 0 if config.rope_tables is None else config.rope_tables[-1])
        self._cross_factor = config.rope_factor if config.rope_tables is None or not config.rope_tables[-1] else 1.0
        size = self.card.sizes.head_dim
        self._own_frequency = 1.0 / self.card.rope_theta ** (np.arange(size // 2, dtype=np.float64) * 2 / size)

    def inputs(self, tokens: Ints | Sequence[int], features: FloatArray) -> FloatArray:
        """x [n, W] of tokens [n] with their features [n, W] (zeros where none is known)."""
        card, m = self.card, self.layer.matrices
        x: FloatArray = np.float32(card.embed_gain) * self._embed[np.asarray(tokens)]
        x += (np.float32(card.feature_gain) * features) @ m["feature"].T
        return x

    def own_keys(self, x: FloatArray, positions: Ints) -> Keys:
        """Keys and values of rows, which depend on their inputs alone: [Ks, n, D]."""
        s, m = self.card.sizes, self.layer.matrices
        a = self._norm(x, "self_norm")
        k = _heads(a @ m["self_k"].T, s.kv_heads)
        v = _heads(a @ m["self_v"].T, s.kv_heads)
        return Keys(rotate(k, positions, self._own_frequency), v, positions)

    def draft(self, x: FloatArray, positions: Ints, own: Sequence[Keys], cross: Keys) -> tuple[FloatArray, FloatArray]:
        """One pass over n rows: outputs [n, W] (after the final norm) and logits [n, H] over `head_ids`.

        `own[i]`: what row i sees of the layer's own keys, itself and its ancestors included, in any order; those
        `window` or more before it are left out here. `cross`: the target's last layer, [Kt, m, Dt], as it lies in its
        cache; every row sees all of it.
        """
        m = self.layer.matrices
        added = self._own_attention(x, positions, own)
        q = self._cross_queries(x + added, positions)
        added = added + attend(q, cross) @ m["cross_o"].T
        a = self._norm(x + added, "mlp_norm")
        gate = a @ m["gate"].T
        added = added + (gate / (1 + np.exp(-gate)) * (a @ m["up"].T)) @ m["down"].T
        out = self._norm(added, "final_norm")  # without x: see docs/longspec.md
        return out, out @ self._head.T

    def masses(self, x: FloatArray, positions: Ints, own: Sequence[Keys], means: FloatArray) -> FloatArray:
        """What the cross-attention of one row would give to chunks [c] if their keys were all like their means
        [Kt, c, Dt], summed over query heads."""
        q = self._cross_queries(x + self._own_attention(x, positions, own), positions)
        scores = (q @ np.repeat(means, len(q) // len(means), axis=0).transpose(0, 2, 1))[:, 0]
        weights = np.exp((scores - scores.max(axis=1, keepdims=True)) / np.float32(np.sqrt(q.shape[-1])))
        masses: FloatArray = (weights / weights.sum(axis=1, keepdims=True)).sum(axis=0)
        return masses

    def _own_attention(self, x: FloatArray, positions: Ints, own: Sequence[Keys]) -> FloatArray:
        """What it adds to x [n, W]."""
        s, m = self.card.sizes, self.layer.matrices
        n = len(x)
        q = rotate(_heads(self._norm(x, "self_norm") @ m["self_q"].T, s.heads), positions, self._own_frequency)
        seen = np.zeros((n, s.heads * s.head_dim), dtype=np.float32)
        for i in range(n):
            near = own[i].positions > positions[i] - self.card.window
            seen[i] = attend(q[:, i : i + 1], own[i].rows(np.flatnonzero(near)))[0]
        added: FloatArray = seen @ m["self_o"].T
        return added

    def _cross_queries(self, x: FloatArray, positions: Ints) -> FloatArray:
        """[Hc, n, Dt], rotated."""
        q = _heads(self._norm(x, "cross_norm") @ self.layer.matrices["cross_q"].T, self.card.sizes.cross_heads)
        return rotate(q, positions, self._cross_frequency) * np.float32(self._cross_factor)

    def _norm(self, x: FloatArray, name: str) -> FloatArray:
        scale = 1 / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + np.float32(self.card.eps))
        normed: FloatArray = (x * scale * self.layer.norms[name]).astype(np.float32)
        return normed


def _heads(x: FloatArray, heads: int) -> FloatArray:
    """[n, heads * size] -> [heads, n, size]."""
    return x.reshape(len(x), heads, -1).transpose(1, 0, 2)


def rotate(x: FloatArray, positions: Ints, frequency: npt.NDArray[np.float64]) -> FloatArray:
    """x [heads, n, size] turned to its positions [n]; dimension d pairs with d + size / 2."""
    angle = positions[:, None].astype(np.float64) * frequency
    cos, sin = np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)
    low, high = np.split(x, 2, axis=-1)
    return np.concatenate([low * cos - high * sin, high * cos + low * sin], axis=-1)


def attend(q: FloatArray, seen: Keys) -> FloatArray:
    """q [heads, n, size] over all of `seen`: [n, heads * size]. Without keys the answer is zeros."""
    heads, n, size = q.shape
    if not len(seen.positions):
        return np.zeros((n, heads * size), dtype=np.float32)
    group = heads // len(seen.keys)
    k, v = np.repeat(seen.keys, group, axis=0), np.repeat(seen.values, group, axis=0)
    scores = q @ k.transpose(0, 2, 1) / np.float32(np.sqrt(size))
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    seen_values: FloatArray = (weights @ v).transpose(1, 0, 2).reshape(n, heads * size)
    return seen_values
