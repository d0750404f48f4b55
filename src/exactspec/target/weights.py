"""What a model file gives the target: a configuration and named matrices, whatever the file format.

Canonical names, i the layer: ``embed``, ``norm``, ``head``, ``layers.i.attn_norm``, ``layers.i.mlp_norm``,
``layers.i.{q,k,v,o,gate,up,down}``, ``layers.i.{q,k,v}_bias``, ``layers.i.{q,k}_norm``,
``layers.i.{post_attn,post_mlp}_norm``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from exactspec.target.base import FloatArray


@dataclass(frozen=True, slots=True, eq=False)
class ModelConfig:
    """Sizes of a decoder. All counts are of the unpadded model.

    `family`: a name in `exactspec.target.families`. `vocab_size`: rows of the embedding. `max_position`: context
    length that the file allows. `tied_head`: the head is the embedding (no ``head`` matrix). `attention_bias`: q, k
    and v have biases. `qk_norm`: each head of q and k is normed before its rotation. `post_norms`: what attention and
    feed-forward give is normed before it is added. `activation` of the gate: "silu" or "gelu_tanh".

    Rotation: inverse frequencies of `rope_theta`, each divided by its entry of `rope_divisors` [head_dim / 2] float64
    (None: all 1), cos and sin times `rope_factor`. `rope_tables`: one entry a layer, 0 for that table, 1 for the plain
    frequencies of `local_rope_theta` (0: such layers do not rotate); None: 0 everywhere.
    `layer_windows`: one entry a layer, the tokens that a token sees, itself included; 0: all. None: 0 everywhere.

    Scalars: embeddings times `embed_scale`, scores times `query_scale` (None: head_dim**-0.5), what a layer adds
    times `residual_scale`, logits times `logit_scale`.
    """

    family: str
    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    rms_norm_eps: float
    rope_theta: float
    rope_divisors: npt.NDArray[np.float64] | None
    max_position: int
    tied_head: bool
    attention_bias: bool
    qk_norm: bool = False
    post_norms: bool = False
    activation: str = "silu"
    rope_factor: float = 1.0
    local_rope_theta: float | None = None
    rope_tables: tuple[int, ...] | None = None
    layer_windows: tuple[int, ...] | None = None
    embed_scale: float = 1.0
    query_scale: float | None = None
    residual_scale: float = 1.0
    logit_scale: float = 1.0


@dataclass(frozen=True, slots=True, eq=False)
class FourBitRows:
    """A matrix as blocks of ggml. `kind`: "Q4_0", "Q4_1" or "Q4_K"; `rows` uint8 [rows, bytes of a row], in the order
    of `WeightSource.matrix`; `width`: weights of a row. All scales are finite."""

    kind: str
    rows: npt.NDArray[np.uint8]
    width: int


@runtime_checkable
class FourBitSource(Protocol):
    """What a `WeightSource` can do besides if its file holds four-bit blocks."""

    def block_kind(self, name: str) -> str:
        """ggml's name of the type in which a matrix is stored."""
        ...

    def four_bit(self, name: str) -> FourBitRows | None:
        """The stored blocks of a matrix, or None where it has other ones (or some that the products cannot take).
        Raises ValueError and KeyError as `WeightSource.matrix`."""
        ...


class WeightSource(Protocol):
    """An open model file, read matrix by matrix so that no full float copy of the model ever exists."""

    @property
    def config(self) -> ModelConfig: ...

    @property
    def sha256(self) -> str:
        """Hash of the weights file (of several: of their names and hashes, in order)."""
        ...

    def matrix(self, name: str, start: int = 0, stop: int | None = None) -> FloatArray:
        """Rows start:stop of a matrix as float32 [rows, in]. Row = output channel; for ``embed`` and ``head``
        row = token id. Query and key rows are in rotate-half order (dimension d pairs with d + head_dim / 2).
        Raises ValueError, naming the tensor, on non-finite values or a wrong shape; KeyError if absent.
        """
        ...

    def vector(self, name: str) -> FloatArray:
        """A bias, or a norm weight (what the normed row is multiplied with), as float32."""
        ...

    def close(self) -> None: ...
