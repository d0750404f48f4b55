"""What a model file gives the target: a configuration and named matrices, whatever the file format.

Canonical names, i the layer: ``embed``, ``norm``, ``head``, ``layers.i.attn_norm``, ``layers.i.mlp_norm``,
``layers.i.{q,k,v,o,gate,up,down}``, ``layers.i.{q,k,v}_bias``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from exactspec.target.base import FloatArray


@dataclass(frozen=True, slots=True, eq=False)
class ModelConfig:
    """Sizes of a decoder. All counts are of the unpadded model.

    `family`: "llama" or "qwen2". `vocab_size`: rows of the embedding. `rope_divisors` [head_dim / 2] float64 or
    None: each inverse frequency is divided by its entry (``rope_freqs`` of GGUF files, Llama 3 scaling).
    `max_position`: context length the file states. `tied_head`: the head is the embedding (no ``head`` matrix).
    `attention_bias`: q, k and v have biases.
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
        """A norm weight or a bias as float32."""
        ...

    def close(self) -> None: ...
