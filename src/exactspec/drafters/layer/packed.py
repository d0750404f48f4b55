"""A draft layer as its kernels read it: int8 by units of 32 channels, beside what it shares with its target."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from exactspec.drafters.layer.checkpoint import NORMS, Layer
from exactspec.target.base import FloatArray
from exactspec.target.exact import ExactTarget
from exactspec.target.kernels.compile import Packing
from exactspec.target.kernels.products import UNIT
from exactspec.target.pack import Packed, Packer, padded, plain_places, rotary_places


@dataclass(frozen=True, slots=True)
class LayerSizes:
    """Padded sizes. `head_pad`: of own heads, two halves of `half_pad`."""

    width_pad: int
    half_pad: int
    head_pad: int
    inner_pad: int


@dataclass(frozen=True, slots=True, eq=False)
class PackedLayer:
    """`matrices`: by the names of `kernels.frame.MATRICES`. `norms`: float32 [width_pad] by name. `head_ids` int64 [H].
    The trimmed head is a copy of the target's rows, the embedding is the target's own."""

    sizes: LayerSizes
    matrices: dict[str, Packed]
    norms: dict[str, FloatArray]
    head_ids: npt.NDArray[np.int64]

    @property
    def nbytes(self) -> int:
        matrices = sum(matrix.nbytes for matrix in self.matrices.values())
        return matrices + sum(norm.nbytes for norm in self.norms.values()) + self.head_ids.nbytes


def pack_layer(layer: Layer, target: ExactTarget) -> PackedLayer:
    """The layer, whose card must be of this target, with the rows of the target's head that it needs."""
    card, config, its = layer.card, target.config, target.packed.sizes
    s = card.sizes
    half = padded(s.head_dim // 2, 16)
    sizes = LayerSizes(its.width_pad, half, 2 * half, padded(s.inner, 16))
    m = {name: np.ascontiguousarray(matrix, dtype=np.float32) for name, matrix in layer.matrices.items()}
    width = padded(config.hidden_size, UNIT)
    plain, packing = np.arange(config.hidden_size), target.packing
    q = rotary_places(s.heads, s.head_dim, half, 0)
    k = rotary_places(s.kv_heads, s.head_dim, half, s.heads)
    v = plain_places(s.kv_heads, s.head_dim, sizes.head_pad, s.heads + s.kv_heads)
    cross_q = rotary_places(s.cross_heads, config.head_dim, its.half_pad, 0)
    own = plain_places(s.heads, s.head_dim, sizes.head_pad, 0)
    cross = plain_places(s.cross_heads, config.head_dim, its.head_pad, 0)
    inner = np.arange(s.inner)
    gate = inner // 16 * UNIT + inner % 16
    into = sizes.width_pad
    matrices = {
        "feature": _packed(packing, width, into, [(m["feature"] * np.float32(card.feature_gain), plain)]),
        "qkv": _packed(
            packing,
            (s.heads + 2 * s.kv_heads) * sizes.head_pad,
            into,
            [(m["self_q"], q), (m["self_k"], k), (m["self_v"], v)],
        ),
        "self_o": _packed(packing, width, s.heads * sizes.head_pad, [(m["self_o"], plain)], own),
        "cross_q": _packed(packing, s.cross_heads * its.head_pad, into, [(m["cross_q"], cross_q)]),
        "cross_o": _packed(packing, width, s.cross_heads * its.head_pad, [(m["cross_o"], plain)], cross),
        "gate_up": _packed(packing, 2 * sizes.inner_pad, into, [(m["gate"], gate), (m["up"], gate + 16)]),
        "down": _packed(packing, width, sizes.inner_pad, [(m["down"], plain)]),
        "head": trimmed(target.packed.head, layer.head_ids, its.width_pad),
    }
    norms = {}
    for name in NORMS:
        norms[name] = np.zeros(into, dtype=np.float32)
        norms[name][: config.hidden_size] = layer.norms[name]
    return PackedLayer(sizes, matrices, norms, layer.head_ids.astype(np.int64))


def _packed(
    packing: Packing,
    channels: int,
    width_pad: int,
    parts: list[tuple[FloatArray, npt.NDArray[np.int64]]],
    columns: npt.NDArray[np.int64] | None = None,
) -> Packed:
    """Parts [n, inputs] at their channels [n]. `columns`: padded place of each input."""
    packer = Packer(packing, channels, parts[0][0].shape[1], width_pad)
    for rows, places in parts:
        packer.put(rows, places, columns)
    return packer.done()


def trimmed(head: Packed, ids: npt.NDArray[np.int64], width_pad: int) -> Packed:
    """The rows `ids` of a packed table as a table of their own, bit for bit; padding channels are zeros."""
    table = head.stored.reshape(-1, width_pad // 4, UNIT, 4)
    units = padded(len(ids), UNIT) // UNIT
    stored: npt.NDArray[Any] = np.full((units * UNIT, width_pad // 4, 4), 128, dtype=np.uint8)
    stored[: len(ids)] = table[ids // UNIT, :, ids % UNIT, :]
    scale = np.ones(units * UNIT, dtype=np.float32)
    scale[: len(ids)] = head.scale[ids]
    units_first = stored.reshape(units, UNIT, width_pad // 4, 4).transpose(0, 2, 1, 3)
    return Packed(np.ascontiguousarray(units_first).reshape(-1), scale)
