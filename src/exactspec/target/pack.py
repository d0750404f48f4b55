"""From a model file's matrices to what the kernels read, stored by units of 32 output channels.

A layer's matrices that the file holds in blocks of four bits are kept as they are (see nibble_pack). All others become
int8 with one scale per output channel, ``max|w| / 127``; requantising a file's blocks (Q6_K, Q8_0, ...) so loses a
little; docs/numerics.md states how much.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from exactspec.target.base import FloatArray
from exactspec.target.kernels.compile import Packing
from exactspec.target.kernels.products import K_STEP, UNIT
from exactspec.target.nibble_pack import Group, Nibbles, pack_nibbles
from exactspec.target.weights import ModelConfig, WeightSource

ROWS_AT_ONCE = 4096  # output channels quantised at a time: bounds the float copy


def padded(n: int, step: int) -> int:
    return -(-n // step) * step


@dataclass(frozen=True, slots=True, eq=False)
class Packed:
    """`stored` uint8 [int8 channels_pad * width_pad] (see kernels.products), `scale` float32 [channels_pad]. `nibbles`:
    four-bit units, which come before the int8 ones; their scales here are factors of whole channels."""

    stored: npt.NDArray[np.uint8]
    scale: FloatArray
    nibbles: Nibbles | None = None

    @property
    def nibble_units(self) -> int:
        return 0 if self.nibbles is None else self.nibbles.units

    @property
    def nbytes(self) -> int:
        four = 0 if self.nibbles is None else self.nibbles.stored.nbytes
        return self.stored.nbytes + self.scale.nbytes + four


class Packer:
    """Fills one packed matrix in any order of channels. `width`: inputs, unpadded; `channels`: padded to 32.
    `packing`: the compiled functions."""

    def __init__(self, packing: Packing, channels: int, width: int, width_pad: int | None = None) -> None:
        self._pack_rows = packing.rows
        self.width_pad = padded(width, K_STEP) if width_pad is None else width_pad
        self._units = padded(channels, UNIT) // UNIT
        self._stored = np.full((self._units, self.width_pad // 4, UNIT, 4), 128, dtype=np.uint8)
        self._scale = np.ones(self._units * UNIT, dtype=np.float32)

    def put(
        self, rows: FloatArray, places: npt.NDArray[np.int64], columns: npt.NDArray[np.int64] | None = None
    ) -> None:
        """Quantise `rows` [n, width] into channels `places` [n]; input j goes to padded input ``columns[j]``."""
        if columns is None:
            columns = np.arange(rows.shape[1])
        self._pack_rows(rows, places, columns, self._stored, self._scale)

    def done(self) -> Packed:
        return Packed(self._stored.reshape(-1), self._scale)


@dataclass(frozen=True, slots=True, eq=False)
class Layer:
    attn_norm: FloatArray
    qkv: Packed
    qkv_bias: FloatArray
    o: Packed
    mlp_norm: FloatArray
    gate_up: Packed
    down: Packed
    q_norm: FloatArray | None = None
    k_norm: FloatArray | None = None
    post_attn_norm: FloatArray | None = None
    post_mlp_norm: FloatArray | None = None


@dataclass(frozen=True, slots=True)
class Sizes:
    """Padded sizes. `head_pad`: two halves of `half_pad` (rotary partners), each a multiple of 16."""

    width_pad: int
    half_pad: int
    head_pad: int
    inner_pad: int
    vocab_pad: int

    @classmethod
    def of(cls, c: ModelConfig) -> Sizes:
        half = padded(c.head_dim // 2, 16)
        return cls(
            padded(c.hidden_size, 16), half, 2 * half, padded(c.intermediate_size, 16), padded(c.vocab_size, UNIT)
        )


@dataclass(frozen=True, slots=True, eq=False)
class PackedModel:
    """A model as the kernels read it. `embed` is `head` itself where the file ties them; where one of the two has a
    factor of its own, they share their weights and have scales of their own."""

    config: ModelConfig
    sizes: Sizes
    layers: Sequence[Layer]
    embed: Packed
    final_norm: FloatArray
    head: Packed

    @property
    def embed_bytes(self) -> int:
        """Bytes of the embedding alone: 0 where the head holds its weights."""
        return 0 if self.embed.stored is self.head.stored else self.embed.nbytes

    @property
    def four_bit_shares(self) -> dict[int, float]:
        """Of a row's multiply-adds, those with four-bit weights, by form (see kernels.nibbles); empty if none."""
        four: dict[int, int] = {}
        total = len(self.head.stored)
        for layer in self.layers:
            for matrix in (layer.qkv, layer.o, layer.gate_up, layer.down):
                total += len(matrix.stored)
                if matrix.nibbles is not None:
                    form, count = matrix.nibbles.form, matrix.nibbles.weights
                    four[form] = four.get(form, 0) + count
                    total += count
        return {form: count / total for form, count in four.items()}

    @property
    def nbytes(self) -> int:
        total = self.head.nbytes + self.embed_bytes
        for layer in self.layers:
            total += layer.qkv.nbytes + layer.o.nbytes + layer.gate_up.nbytes + layer.down.nbytes
        return total


def rotary_places(heads: int, head_dim: int, half_pad: int, first_head: int) -> npt.NDArray[np.int64]:
    """Channel of each query or key dimension: a unit holds dimensions d .. d + 15 and their rotary partners."""
    half = head_dim // 2
    d = np.arange(half)
    low = d // 16 * UNIT + d % 16
    one = np.concatenate([low, low + 16])
    places: npt.NDArray[np.int64] = (first_head + np.arange(heads))[:, None] * (2 * half_pad) + one[None, :]
    return places.reshape(-1)


def plain_places(heads: int, head_dim: int, head_pad: int, first_head: int) -> npt.NDArray[np.int64]:
    return ((first_head + np.arange(heads))[:, None] * head_pad + np.arange(head_dim)[None, :]).reshape(-1)


def pack_model(source: WeightSource, packing: Packing, threads: int) -> PackedModel:
    """Read, quantise and pack, matrix by matrix, `threads` layers or blocks of the tables at a time."""
    return from_parts(source.config, dict(pack_parts(source, packing, threads)))


def pack_parts(source: WeightSource, packing: Packing, threads: int) -> Iterator[tuple[str, Any]]:
    """The parts of a `PackedModel` by name as they are done: ``layers.0``, ... and its other fields. At most `threads`
    layers are ahead of who takes them, so that a part that was written to disk need not stay in memory."""
    c = source.config
    if c.head_dim % 2:
        raise ValueError(f"head size {c.head_dim} is odd: rotary embedding needs pairs")
    sizes = Sizes.of(c)
    with ThreadPoolExecutor(threads) as pool:
        ahead: deque[Future[Layer]] = deque()
        for i in range(c.num_layers + threads):
            if i < c.num_layers:
                ahead.append(pool.submit(_pack_layer, source, packing, c, sizes, f"layers.{i}."))
            if i >= threads:
                yield f"layers.{i - threads}", ahead.popleft().result()
        yield "head", _pack_table(source, packing, pool, "embed" if c.tied_head else "head", c, sizes)
        if not c.tied_head:
            yield "embed", _pack_table(source, packing, pool, "embed", c, sizes)
    yield "final_norm", _vector(source.vector("norm"), sizes.width_pad)


def from_parts(config: ModelConfig, parts: Mapping[str, Any]) -> PackedModel:
    """The model of what `pack_parts` gave. KeyError if a part is missing."""
    fields = {name: part for name, part in parts.items() if not name.startswith("layers.")}
    layers = [parts[f"layers.{i}"] for i in range(config.num_layers)]
    embed, head = fields.pop("embed", fields["head"]), fields.pop("head")
    fields["embed"], fields["head"] = _scaled(embed, config.embed_scale), _scaled(head, config.logit_scale)
    return PackedModel(config=config, sizes=Sizes.of(config), layers=layers, **fields)


def _scaled(table: Packed, factor: float) -> Packed:
    """The same weights with all channels times `factor`; the very same object for a factor of 1."""
    return table if factor == 1 else replace(table, scale=table.scale * np.float32(factor))


def _vector(x: FloatArray, size: int) -> FloatArray:
    out = np.zeros(size, dtype=np.float32)
    out[: len(x)] = x
    return out


def _head_vector(x: FloatArray, sizes: Sizes) -> FloatArray:
    """A norm weight of a head [head_dim] in the order of a padded query: two halves of rotary partners."""
    out = np.zeros((2, sizes.half_pad), dtype=np.float32)
    out[:, : len(x) // 2] = x.reshape(2, -1)
    return out.reshape(-1)


def _pack_table(
    source: WeightSource, packing: Packing, pool: ThreadPoolExecutor, name: str, c: ModelConfig, sizes: Sizes
) -> Packed:
    packer = Packer(packing, c.vocab_size, c.hidden_size, sizes.width_pad)

    def put(start: int) -> None:
        stop = min(start + ROWS_AT_ONCE, c.vocab_size)
        packer.put(source.matrix(name, start, stop), np.arange(start, stop))

    list(pool.map(put, range(0, c.vocab_size, ROWS_AT_ONCE)))
    return packer.done()


def _pack_matrix(
    source: WeightSource,
    packing: Packing,
    groups: Sequence[Group],
    width: int,
    width_pad: int,
    columns: npt.NDArray[np.int64] | None = None,
) -> Packed:
    """`columns`: see `Packer.put`; a matrix with padding among its inputs keeps no four-bit blocks."""
    count, nibbles = (0, None) if columns is not None else pack_nibbles(source, packing, groups)
    start = 0 if nibbles is None else UNIT * nibbles.units
    packer = Packer(packing, groups[-1].stop - start, width, width_pad)
    for group in groups[count:]:
        for name, places in group.tensors:
            packer.put(source.matrix(name), places - start, columns)
    packed = packer.done()
    if nibbles is None:
        return packed
    return Packed(packed.stored, np.concatenate([np.ones(start, dtype=np.float32), packed.scale]), nibbles)


def _pack_layer(source: WeightSource, packing: Packing, c: ModelConfig, sizes: Sizes, prefix: str) -> Layer:
    heads, kv = c.num_heads, c.num_kv_heads
    q = rotary_places(heads, c.head_dim, sizes.half_pad, 0)
    k = rotary_places(kv, c.head_dim, sizes.half_pad, heads)
    v = plain_places(kv, c.head_dim, sizes.head_pad, heads + kv)
    bias = np.zeros((heads + 2 * kv) * sizes.head_pad, dtype=np.float32)
    groups = []
    for name, places, stop in (("q", q, heads), ("k", k, heads + kv), ("v", v, heads + 2 * kv)):
        groups.append(Group([(prefix + name, places)], stop * sizes.head_pad))
        if c.attention_bias:
            bias[places] = source.vector(f"{prefix}{name}_bias")
    qkv = _pack_matrix(source, packing, groups, c.hidden_size, sizes.width_pad)
    width, attended = padded(c.hidden_size, UNIT), heads * sizes.head_pad
    columns = None if sizes.head_pad == c.head_dim else plain_places(heads, c.head_dim, sizes.head_pad, 0)
    rows = Group([(prefix + "o", np.arange(c.hidden_size))], width)
    o = _pack_matrix(source, packing, [rows], heads * c.head_dim, attended, columns)
    channel = np.arange(c.intermediate_size)
    pairs = [(prefix + name, channel // 16 * UNIT + channel % 16 + half) for name, half in (("gate", 0), ("up", 16))]
    gate_up = _pack_matrix(source, packing, [Group(pairs, 2 * sizes.inner_pad)], c.hidden_size, sizes.width_pad)
    rows = Group([(prefix + "down", np.arange(c.hidden_size))], width)
    down = _pack_matrix(source, packing, [rows], c.intermediate_size, sizes.inner_pad)

    def norm(name: str) -> FloatArray:
        return _vector(source.vector(prefix + name), sizes.width_pad)

    return Layer(
        attn_norm=norm("attn_norm"),
        qkv=qkv,
        qkv_bias=bias,
        o=_scaled(o, 1.0 if c.post_norms else c.residual_scale),
        mlp_norm=norm("mlp_norm"),
        gate_up=gate_up,
        down=_scaled(down, 1.0 if c.post_norms else c.residual_scale),
        q_norm=_head_vector(source.vector(prefix + "q_norm"), sizes) if c.qk_norm else None,
        k_norm=_head_vector(source.vector(prefix + "k_norm"), sizes) if c.qk_norm else None,
        post_attn_norm=norm("post_attn_norm") * np.float32(c.residual_scale) if c.post_norms else None,
        post_mlp_norm=norm("post_mlp_norm") * np.float32(c.residual_scale) if c.post_norms else None,
    )
