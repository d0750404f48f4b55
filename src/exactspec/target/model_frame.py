"""The part of a frame that is set once per target: sizes, addresses of the packed weights, the table of layers."""

from __future__ import annotations

from typing import Any

import numpy as np

from exactspec.target.cache import PageShape
from exactspec.target.cache_types import cache_type
from exactspec.target.kernels.frame import LAYER, LAYER_FIELDS
from exactspec.target.kernels.nibbles import BLOCK
from exactspec.target.kernels.products import UNIT
from exactspec.target.pack import Packed, PackedModel
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
    widest: int,
) -> None:
    """Write the model's fields of a frame. `layers`: what `layer_table` gave, and `model`'s arrays, must outlive it.
    `widest`: inputs of the widest product."""
    blocks = -(-widest // BLOCK)
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
        "groups": -(-widest // NARROW_GROUP),
        "head_wide": wide.head,
        "activation_stride": 2 * widest,
        "plane": widest,
        "block_stride": blocks * BLOCK,
        "blocks": blocks,
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
            "qkv_bias": x.qkv_bias,
            "mlp_norm": x.mlp_norm,
            "q_norm": x.q_norm,
            "k_norm": x.k_norm,
            "post_attn_norm": x.post_attn_norm,
            "post_mlp_norm": x.post_mlp_norm,
            "rope_table": 0 if tables is None else tables[i],
            "window": 0 if windows is None else windows[i],
        }
        for kind, flag in zip(KINDS, wide.layers[i], strict=True):
            values |= {f"{kind}_{field}": value for field, value in _matrix(getattr(x, kind), flag).items()}
        table[i] = [_entry(values[name]) for name in LAYER_FIELDS]
    return table


def _matrix(packed: Packed, wide: bool) -> dict[str, np.ndarray[Any, Any] | int | None]:
    """A matrix's fields, see kernels.frame."""
    nibbles, units = packed.nibbles, len(packed.scale) // UNIT
    int8_units = units - packed.nibble_units
    unit_bytes = len(packed.stored) // int8_units if int8_units else 0
    return {
        "stored": _address(packed.stored) - packed.nibble_units * unit_bytes,
        "scale": packed.scale,
        "wide": int(wide),
        "int8_units": int8_units,
        "nibbles": None if nibbles is None else nibbles.stored,
        "nibble_units": packed.nibble_units,
        "nibble_form": 0 if nibbles is None else nibbles.form,
    }


def _entry(value: np.ndarray[Any, Any] | int | None) -> int:
    return value if isinstance(value, int) else 0 if value is None else _address(value)


def _address(array: np.ndarray[Any, Any]) -> int:
    return array.ctypes.data
