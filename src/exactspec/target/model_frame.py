"""The part of a frame that is set once per target: sizes, addresses of the packed weights, the table of layers."""

from __future__ import annotations

from typing import Any

import numpy as np

from exactspec.target.cache import PageShape
from exactspec.target.cache_types import cache_type
from exactspec.target.kernels.frame import LAYER, LAYER_FIELDS
from exactspec.target.pack import PackedModel
from exactspec.target.precision import KINDS, NARROW_GROUP, WIDE_GROUP, Wide
from exactspec.target.tasks import most_pairs

TOP_K = 8

_ACTIVATIONS = {"silu": 0, "gelu_tanh": 1}


def set_model(
    frames: np.ndarray[Any, Any],
    model: PackedModel,
    layers: np.ndarray[Any, Any],
    page: PageShape,
    wide: Wide,
    groups: int,
    widest: int,
) -> None:
    """Write the model's fields of a frame. `layers`: what `layer_table` gave, and `model`'s arrays, must outlive it."""
    c, s = model.config, model.sizes
    for name, value in {
        "layers": c.num_layers,
        "layer_table": _address(layers),
        "width": c.hidden_size,
        "width_pad": s.width_pad,
        "heads": c.num_heads,
        "kv_heads": c.num_kv_heads,
        "head_pad": s.head_pad,
        "half_pad": s.half_pad,
        "head_dim": c.head_dim,
        "gate_activation": _ACTIVATIONS[c.activation],
        "inner_pad": s.inner_pad,
        "vocab": c.vocab_size,
        "vocab_pad": s.vocab_pad,
        "embed": _address(model.embed.stored),
        "embed_scale": _address(model.embed.scale),
        "final_norm": _address(model.final_norm),
        "head": _address(model.head.stored),
        "head_scale": _address(model.head.scale),
        "layer_bytes": page.layer_bytes,
        "head_bytes": page.head_bytes,
        "cache_kind": cache_type(page.dtype).kind,
        "pairs": most_pairs(s.head_pad),
        "top_k": TOP_K,
        "narrow_group": NARROW_GROUP,
        "wide_group": WIDE_GROUP,
        "groups": groups,
        "head_wide": wide.head,
        "activation_stride": 2 * widest,
        "plane": widest,
        "eps": c.rms_norm_eps,
        # log2(e): the kernels use powers of two
        "query_scale": np.log2(np.e) / np.sqrt(c.head_dim) if c.query_scale is None else np.log2(np.e) * c.query_scale,
    }.items():
        frames[name] = value


def set_flags(frames: np.ndarray[Any, Any], layers: np.ndarray[Any, Any], wide: Wide) -> None:
    """Other wide products than `layer_table` and `set_model` were given; between two forwards."""
    layers[:, [LAYER[f"{kind}_wide"] for kind in KINDS]] = wide.layers
    frames["head_wide"] = wide.head


def layer_table(model: PackedModel, wide: Wide) -> np.ndarray[Any, Any]:
    """int64 [layers, LAYER_FIELDS]; an array that a family lacks is 0."""
    table = np.zeros((len(model.layers), len(LAYER_FIELDS)), dtype=np.int64)
    tables, windows = model.config.rope_tables, model.config.layer_windows
    for i, x in enumerate(model.layers):
        values: dict[str, np.ndarray[Any, Any] | int | None] = {
            "attn_norm": x.attn_norm,
            "qkv": x.qkv.stored,
            "qkv_scale": x.qkv.scale,
            "qkv_bias": x.qkv_bias,
            "o": x.o.stored,
            "o_scale": x.o.scale,
            "mlp_norm": x.mlp_norm,
            "gate_up": x.gate_up.stored,
            "gate_up_scale": x.gate_up.scale,
            "down": x.down.stored,
            "down_scale": x.down.scale,
            "q_norm": x.q_norm,
            "k_norm": x.k_norm,
            "post_attn_norm": x.post_attn_norm,
            "post_mlp_norm": x.post_mlp_norm,
            "rope_table": 0 if tables is None else tables[i],
            "window": 0 if windows is None else windows[i],
        }
        values |= {f"{kind}_wide": int(flag) for kind, flag in zip(KINDS, wide.layers[i], strict=True)}
        table[i] = [_entry(values[name]) for name in LAYER_FIELDS]
    return table


def _entry(value: np.ndarray[Any, Any] | int | None) -> int:
    return value if isinstance(value, int) else 0 if value is None else _address(value)


def _address(array: np.ndarray[Any, Any]) -> int:
    return array.ctypes.data
