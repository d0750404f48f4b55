"""An independent decoder forward in float64 numpy: no cache, no kernels, no quantisation. Written from the papers."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from exactspec.target.weights import FourBitSource, WeightSource

Float64 = npt.NDArray[np.float64]


def int8_per_channel(matrix: Any) -> Float64:
    """What is left of a matrix that is stored as int8 with one scale per row."""
    w = np.asarray(matrix, dtype=np.float64)
    scale = np.abs(w).max(axis=1, keepdims=True) / 127
    scale[scale == 0] = 1
    return np.rint(w / scale) * scale


def logits(source: WeightSource, tokens: list[int], *, int8_weights: bool = False) -> Float64:
    """[n, vocab] logits of a decoder of any family over one text. `int8_weights`: with the weights rounded as the
    exact target stores them (four-bit ones not at all), so that only the activations' rounding is left."""
    c = source.config
    four = source.four_bit if isinstance(source, FourBitSource) else lambda name: None
    rounded = lambda name: int8_weights and four(name) is None  # noqa: E731
    matrix = lambda name: (int8_per_channel if rounded(name) else np.float64)(source.matrix(name))  # noqa: E731
    vector = lambda name: np.float64(source.vector(name))  # noqa: E731
    n, half = len(tokens), c.head_dim // 2
    embed = matrix("embed")
    x = embed[tokens] * c.embed_scale
    exponent = -np.arange(half) / half
    frequency = c.rope_theta**exponent
    if c.rope_divisors is not None:
        frequency = frequency / c.rope_divisors
    other = c.local_rope_theta**exponent if c.local_rope_theta else np.zeros(half)
    angles = [np.arange(n)[:, None, None] * frequency, np.arange(n)[:, None, None] * other]
    factors = [c.rope_factor, 1.0]

    def norm(rows: Float64, weight: Float64) -> Float64:
        return rows / np.sqrt((rows**2).mean(axis=-1, keepdims=True) + c.rms_norm_eps) * weight

    def rotate(rows: Float64, table: int) -> Float64:
        a, b = rows[..., :half], rows[..., half:]
        cos, sin = factors[table] * np.cos(angles[table]), factors[table] * np.sin(angles[table])
        return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)

    def active(gate: Float64) -> Float64:
        if c.activation == "silu":
            return gate / (1 + np.exp(-gate))
        return 0.5 * gate * (1 + np.tanh(np.sqrt(2 / np.pi) * (gate + 0.044715 * gate**3)))

    distance = np.arange(n)[:, None] - np.arange(n)[None, :]
    query_scale = c.head_dim**-0.5 if c.query_scale is None else c.query_scale
    for i in range(c.num_layers):
        at = f"layers.{i}."
        rows = norm(x, vector(at + "attn_norm"))
        q, k, v = (
            rows @ matrix(at + name).T + (vector(f"{at}{name}_bias") if c.attention_bias else 0.0) for name in "qkv"
        )
        q, k = q.reshape(n, c.num_heads, c.head_dim), k.reshape(n, c.num_kv_heads, c.head_dim)
        if c.qk_norm:
            q, k = norm(q, vector(at + "q_norm")), norm(k, vector(at + "k_norm"))
        table = 0 if c.rope_tables is None else c.rope_tables[i]
        q, k = rotate(q, table), rotate(k, table)
        window = 0 if c.layer_windows is None else c.layer_windows[i]
        hidden = (distance < 0) | (distance >= window) if window else distance < 0
        v = v.reshape(n, c.num_kv_heads, c.head_dim)
        out = np.zeros((n, c.num_heads, c.head_dim))
        for h in range(c.num_heads):
            g = h // (c.num_heads // c.num_kv_heads)
            scores = q[:, h] @ k[:, g].T * query_scale
            scores[hidden] = -np.inf
            weights = np.exp(scores - scores.max(axis=1, keepdims=True))
            out[:, h] = weights / weights.sum(axis=1, keepdims=True) @ v[:, g]
        added = out.reshape(n, -1) @ matrix(at + "o").T
        x = x + c.residual_scale * (norm(added, vector(at + "post_attn_norm")) if c.post_norms else added)
        rows = norm(x, vector(at + "mlp_norm"))
        gate, up = rows @ matrix(at + "gate").T, rows @ matrix(at + "up").T
        added = (active(gate) * up) @ matrix(at + "down").T
        x = x + c.residual_scale * (norm(added, vector(at + "post_mlp_norm")) if c.post_norms else added)
    head = embed if c.tied_head else matrix("head")
    return norm(x, vector("norm")) @ head.T * c.logit_scale
