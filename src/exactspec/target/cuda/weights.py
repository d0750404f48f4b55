"""From float matrices to what the GPU kernels read: int8 per output channel, row-major, quantised on the CPU and moved.

The same integers and scales as the CPU target's (``max|w| / 127`` per output channel, ties to even); only the layout
differs. Inputs are padded with zeros to whole groups, output channels to whole tiles.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from exactspec.target.base import FloatArray
from exactspec.target.cuda.device import Device, moved
from exactspec.target.weights import ModelConfig, WeightSource

# Inputs that share an activation scale, as for the CPU's narrow activations.
NORM_GROUP = 64
ATTENDED_GROUP = 64
INNER_GROUP = 64
CHANNELS = 64  # output channels are padded to this: the widest tile of the product kernel
FAMILIES = ("llama", "qwen2")
ROWS_AT_ONCE = 4096  # output channels quantised at a time: bounds the float copy


def padded(n: int, step: int) -> int:
    return -(-n // step) * step


@dataclass(frozen=True, slots=True)
class Sizes:
    """Padded sizes. `width`: of a row (hidden size). `head`: floats of a query, key or value, a power of two of 16 or
    more, two halves of `half` (rotary partners). `attended`: inputs of the output projection. `inner`: of the down
    projection. `qkv`: outputs of the query-key-value product. `share`: query heads of a kv head, as tiles want them."""

    width: int
    head: int
    half: int
    attended: int
    inner: int
    qkv: int
    vocab: int
    share: int

    @classmethod
    def of(cls, c: ModelConfig) -> Sizes:
        head = power_of_two(c.head_dim)
        return cls(
            width=padded(c.hidden_size, max(NORM_GROUP, CHANNELS)),
            head=head,
            half=head // 2,
            attended=padded(c.num_heads * head, ATTENDED_GROUP),
            inner=padded(c.intermediate_size, max(INNER_GROUP, CHANNELS)),
            qkv=padded((c.num_heads + 2 * c.num_kv_heads) * head, CHANNELS),
            vocab=padded(c.vocab_size, CHANNELS),
            share=power_of_two(c.num_heads // c.num_kv_heads),
        )


def power_of_two(n: int) -> int:
    """The smallest power of two that is at least n, and at least 16."""
    return max(16, 1 << (n - 1).bit_length())


@dataclass(frozen=True, slots=True, eq=False)
class Matrix:
    """`q` int8 [channels, width], `scale` float32 [channels], both on the device; `group`: inputs that share an
    activation scale."""

    q: Any
    scale: Any
    group: int

    @property
    def nbytes(self) -> int:
        return int(self.q.nbytes + self.scale.nbytes)


@dataclass(frozen=True, slots=True, eq=False)
class Layer:
    attn_norm: Any
    qkv: Matrix
    qkv_bias: Any  # float32 [qkv], None where the family has none
    o: Matrix
    mlp_norm: Any
    gate_up: Matrix  # gates, then ups, `inner` channels each
    down: Matrix


@dataclass(frozen=True, slots=True, eq=False)
class Weights:
    """A model on the device. `embed` is `head` itself where the file ties them."""

    config: ModelConfig
    sizes: Sizes
    layers: tuple[Layer, ...]
    embed: Matrix
    final_norm: Any
    head: Matrix

    @property
    def forward_bytes(self) -> int:
        """Bytes that a forward of one row reads: all matrices once, the embedding's one row aside."""
        matrices = [m for x in self.layers for m in (x.qkv, x.o, x.gate_up, x.down)]
        return self.head.nbytes + sum(m.nbytes for m in matrices)


def load_weights(source: WeightSource, device: Device, context: int) -> Weights:
    """Read, quantise and move, matrix by matrix. ValueError, naming the reason, for a model that the GPU target does
    not run at a context of that many tokens."""
    c = source.config
    if c.family not in FAMILIES:
        raise ValueError(f"family {c.family!r} runs on the CPU only so far (on a GPU: {', '.join(FAMILIES)})")
    if other := [name for name, has in _other_parts(c, context).items() if has]:
        raise ValueError(f"this {c.family} model has {', '.join(other)}: it runs on the CPU only so far")
    if c.head_dim % 2:
        raise ValueError(f"head size {c.head_dim} is odd: rotary embedding needs pairs")
    sizes = Sizes.of(c)
    layers = tuple(_layer(source, sizes, device, f"layers.{i}.") for i in range(c.num_layers))
    head = _table(source, "embed" if c.tied_head else "head", sizes, device)
    embed = head if c.tied_head else _table(source, "embed", sizes, device)
    return Weights(c, sizes, layers, embed, _vector(source.vector("norm"), sizes.width, device), head)


def _other_parts(c: ModelConfig, context: int) -> dict[str, bool]:
    """What a model may have that the forward here does not do."""
    return {
        "norms of queries and keys": c.qk_norm,
        "norms after attention and feed-forward": c.post_norms,
        f"{c.activation} gates": c.activation != "silu",
        "layers with other rotations": any(c.rope_tables or ()),
        "layers with attention windows": any(0 < window < context for window in c.layer_windows or ()),
        "scaled embeddings, layers or logits": (c.embed_scale, c.residual_scale, c.logit_scale) != (1.0, 1.0, 1.0),
    }


class _Filling:
    """One matrix on the CPU while its rows come in."""

    def __init__(self, channels: int, width: int, group: int) -> None:
        self._q = np.zeros((channels, width), dtype=np.int8)
        self._scale = np.ones(channels, dtype=np.float32)
        self._group = group

    def put(
        self, rows: FloatArray, places: npt.NDArray[np.int64], columns: npt.NDArray[np.int64] | None = None
    ) -> None:
        """Quantise `rows` [n, width] into channels `places` [n]; input j goes to padded input ``columns[j]``."""
        values = torch.from_numpy(np.ascontiguousarray(rows))
        step = values.abs().amax(dim=1) / 127
        step = torch.where(step > 0, step, 1.0)
        whole = torch.round(values / step[:, None]).clamp_(-127, 127).to(torch.int8).numpy()
        if columns is None:
            self._q[places, : whole.shape[1]] = whole
        else:
            self._q[places[:, None], columns[None, :]] = whole
        self._scale[places] = step.numpy()

    def done(self, device: Device) -> Matrix:
        return Matrix(moved(self._q, device), moved(self._scale, device), self._group)


def _vector(x: FloatArray, size: int, device: Device) -> Any:
    out = np.zeros(size, dtype=np.float32)
    out[: len(x)] = x
    return moved(out, device)


def _table(source: WeightSource, name: str, sizes: Sizes, device: Device) -> Matrix:
    vocab = source.config.vocab_size
    filling = _Filling(sizes.vocab, sizes.width, NORM_GROUP)
    for start in range(0, vocab, ROWS_AT_ONCE):
        stop = min(start + ROWS_AT_ONCE, vocab)
        filling.put(source.matrix(name, start, stop), np.arange(start, stop))
    return filling.done(device)


def _places(first: int, heads: int, head_dim: int, sizes: Sizes, *, rotary: bool) -> npt.NDArray[np.int64]:
    """Channel of each dimension of `heads` heads from head number `first` on; `rotary`: the halves `half` apart."""
    d = np.arange(head_dim)
    if rotary:
        d = np.concatenate([d[: head_dim // 2], sizes.half + d[: head_dim // 2]])
    places: npt.NDArray[np.int64] = (first + np.arange(heads))[:, None] * sizes.head + d[None, :]
    return places.reshape(-1)


def _layer(source: WeightSource, sizes: Sizes, device: Device, prefix: str) -> Layer:
    c = source.config
    heads, kv = c.num_heads, c.num_kv_heads
    qkv = _Filling(sizes.qkv, sizes.width, NORM_GROUP)
    bias = np.zeros(sizes.qkv, dtype=np.float32)
    for name, first, count in (("q", 0, heads), ("k", heads, kv), ("v", heads + kv, kv)):
        places = _places(first, count, c.head_dim, sizes, rotary=name != "v")
        qkv.put(source.matrix(prefix + name), places)
        if c.attention_bias:
            bias[places] = source.vector(f"{prefix}{name}_bias")
    o = _Filling(sizes.width, sizes.attended, ATTENDED_GROUP)
    hidden = np.arange(c.hidden_size)
    o.put(source.matrix(prefix + "o"), hidden, _places(0, heads, c.head_dim, sizes, rotary=False))
    gate_up = _Filling(2 * sizes.inner, sizes.width, NORM_GROUP)
    for name, first in (("gate", 0), ("up", sizes.inner)):
        gate_up.put(source.matrix(prefix + name), first + np.arange(c.intermediate_size))
    down = _Filling(sizes.width, sizes.inner, INNER_GROUP)
    down.put(source.matrix(prefix + "down"), hidden)
    norms = (_vector(source.vector(prefix + name), sizes.width, device) for name in ("attn_norm", "mlp_norm"))
    attn_norm, mlp_norm = norms
    return Layer(
        attn_norm=attn_norm,
        qkv=qkv.done(device),
        qkv_bias=moved(bias, device) if c.attention_bias else None,
        o=o.done(device),
        mlp_norm=mlp_norm,
        gate_up=gate_up.done(device),
        down=down.done(device),
    )
