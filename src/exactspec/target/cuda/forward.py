"""The decoder's layers on the device: which kernel follows which."""

from __future__ import annotations

import math
from typing import Any

import torch

from exactspec.target.cuda.cache import CHUNK
from exactspec.target.cuda.launch import Launcher, RowTables
from exactspec.target.cuda.weights import ATTENDED_GROUP, INNER_GROUP, NORM_GROUP, Weights


def embed(weights: Weights, tokens: Any) -> Any:
    """Rows float32 [n, width] of the int8 embedding."""
    table = weights.embed
    return table.q.index_select(0, tokens).to(torch.float32) * table.scale.index_select(0, tokens)[:, None]


def run_layers(launcher: Launcher, weights: Weights, at: RowTables, cos: Any, sin: Any) -> tuple[Any, Any]:
    """All layers and the final norm for the rows; stages keys and values. The normed rows quantised (the
    head's input), and as float32 [n, width]."""
    c, s = weights.config, weights.sizes
    x = embed(weights, at.tokens)
    query_scale = math.log2(math.e) * (c.head_dim**-0.5 if c.query_scale is None else c.query_scale)
    norm: dict[str, Any] = {"count": c.hidden_size, "group": NORM_GROUP, "eps": c.rms_norm_eps}
    for i, layer in enumerate(weights.layers):
        rows, _ = launcher.norm(x, layer.attn_norm, **norm)
        qkv = launcher.product(rows, layer.qkv, bias=layer.qkv_bias)
        queries = launcher.place(
            qkv, cos, sin, at,
            layer=i, heads=c.num_heads, kv_heads=c.num_kv_heads, head=s.head, chunk=CHUNK, query_scale=query_scale,
        )  # fmt: skip
        attended = launcher.attend(queries, at, layer=i, kv_heads=c.num_kv_heads, share=s.share, chunk=CHUNK)
        launcher.product(launcher.quantised(attended, s.attended, ATTENDED_GROUP), layer.o, add_to=x)
        rows, _ = launcher.norm(x, layer.mlp_norm, **norm)
        gated = launcher.gate(launcher.product(rows, layer.gate_up), INNER_GROUP)
        launcher.product(gated, layer.down, add_to=x)
    return launcher.norm(x, weights.final_norm, keep=True, **norm)
