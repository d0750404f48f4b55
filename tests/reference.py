"""An independent decoder forward in float64 numpy: no cache, no kernels, no quantisation. Written from the papers."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from exactspec.target.weights import WeightSource

Float64 = npt.NDArray[np.float64]


def int8_per_channel(matrix: Any) -> Float64:
    """What is left of a matrix that is stored as int8 with one scale per row."""
    w = np.asarray(matrix, dtype=np.float64)
    scale = np.abs(w).max(axis=1, keepdims=True) / 127
    scale[scale == 0] = 1
    return np.rint(w / scale) * scale


def logits(source: WeightSource, tokens: list[int], *, int8_weights: bool = False) -> Float64:
    """[n, vocab] logits of a llama or qwen2 decoder over one text. `int8_weights`: with the weights rounded as the
    exact target stores them, so that only the activations' rounding is left as a difference."""
    c = source.config
    matrix = lambda name: (int8_per_channel if int8_weights else np.float64)(source.matrix(name))  # noqa: E731
    vector = lambda name: np.float64(source.vector(name))  # noqa: E731
    n, half = len(tokens), c.head_dim // 2
    embed = matrix("embed")
    x = embed[tokens]
    frequency = c.rope_theta ** (-np.arange(half) / half)
    if c.rope_divisors is not None:
        frequency = frequency / c.rope_divisors
    angle = np.arange(n)[:, None] * frequency[None, :]
    cos, sin = np.cos(angle)[:, None, :], np.sin(angle)[:, None, :]

    def norm(rows: Float64, weight: Float64) -> Float64:
        return rows / np.sqrt((rows**2).mean(axis=1, keepdims=True) + c.rms_norm_eps) * weight

    def rotate(rows: Float64) -> Float64:
        a, b = rows[..., :half], rows[..., half:]
        return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)

    hidden_from = np.triu(np.ones((n, n), dtype=bool), 1)
    for i in range(c.num_layers):
        at = f"layers.{i}."
        rows = norm(x, vector(at + "attn_norm"))
        q, k, v = (
            rows @ matrix(at + name).T + (vector(f"{at}{name}_bias") if c.attention_bias else 0.0) for name in "qkv"
        )
        q = rotate(q.reshape(n, c.num_heads, c.head_dim))
        k = rotate(k.reshape(n, c.num_kv_heads, c.head_dim))
        v = v.reshape(n, c.num_kv_heads, c.head_dim)
        out = np.zeros((n, c.num_heads, c.head_dim))
        for h in range(c.num_heads):
            g = h // (c.num_heads // c.num_kv_heads)
            scores = q[:, h] @ k[:, g].T / np.sqrt(c.head_dim)
            scores[hidden_from] = -np.inf
            weights = np.exp(scores - scores.max(axis=1, keepdims=True))
            out[:, h] = weights / weights.sum(axis=1, keepdims=True) @ v[:, g]
        x = x + out.reshape(n, -1) @ matrix(at + "o").T
        rows = norm(x, vector(at + "mlp_norm"))
        gate, up = rows @ matrix(at + "gate").T, rows @ matrix(at + "up").T
        x = x + (gate / (1 + np.exp(-gate)) * up) @ matrix(at + "down").T
    head = embed if c.tied_head else matrix("head")
    return norm(x, vector("norm")) @ head.T
