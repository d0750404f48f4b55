"""Weights of a GGUF file, as llama.cpp writes them: memory-mapped, dequantised row by row on demand.

Two conventions of the format are undone here. Query and key rows of llama-family files are stored for interleaved
rotary pairs (2d, 2d + 1) and come out in rotate-half order. Scaled rotary frequencies are stored as a tensor
(``rope_freqs.weight``) and come out as divisors of the configuration.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from exactspec.target.base import FloatArray, IntArray
from exactspec.target.dequant import dequantise, half_values, is_readable
from exactspec.target.families import (
    check_config,
    check_tensors,
    check_window,
    family_of,
    gguf_name,
    linear_divisors,
    matrix_shape,
    row_range,
    tensor_shapes,
    vector_size,
)
from exactspec.target.gguf_header import GgufHeader, GgufTensor, read_header
from exactspec.target.weights import ModelConfig

_ROPE = "rope_freqs.weight"


class GgufSource:
    """A `WeightSource` over one GGUF file. `header`: its metadata, the tokenizer's part included.

    `context`: tokens in use, to judge a sliding window (None: all the file allows). `sha256`: the file's hash where
    the caller knows it; else it is computed when first asked for (a second or so a gigabyte).
    Raises ValueError, one line, on anything that is not a model of the supported families.
    """

    __slots__ = ("_config", "_data", "_half", "_path", "_permuted", "_sha256", "_shapes", "_tensors", "header")

    def __init__(self, path: Path, *, context: int | None = None, sha256: str | None = None) -> None:
        self.header: GgufHeader = read_header(path)
        self._path, self._sha256 = path, sha256
        data = np.asarray(np.memmap(path, dtype=np.uint8, mode="r"))
        self._config = _config(self.header, _stored_divisors(self.header, data), context)
        self._shapes = tensor_shapes(self._config)
        self._tensors = _named_tensors(self.header, self._config)
        self._permuted = self.header.metadata["general.architecture"] == "llama"
        self._half = half_values()
        self._data: npt.NDArray[np.uint8] | None = data

    @property
    def config(self) -> ModelConfig:
        return self._config

    @property
    def sha256(self) -> str:
        if self._sha256 is None:
            with open(self._path, "rb") as file:
                self._sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        return self._sha256

    def matrix(self, name: str, start: int = 0, stop: int | None = None) -> FloatArray:
        """Rows start:stop as float32 [rows, in]; see `WeightSource.matrix`."""
        shape = matrix_shape(self._shapes, name)
        start, stop = row_range(name, shape[0], start, stop)
        order = self._stored_rows(name, np.arange(start, stop))
        return self._read(name, slice(start, stop) if order is None else order).reshape(-1, shape[1])

    def vector(self, name: str) -> FloatArray:
        """A norm weight or a bias as float32 [n]."""
        size = vector_size(self._shapes, name)
        values = self._read(name, slice(None)).reshape(-1)
        order = self._stored_rows(name, np.arange(size))
        return values if order is None else values[order]

    def close(self) -> None:
        """Let go of the file; reading afterwards is a ValueError."""
        self._data = None

    def _stored_rows(self, name: str, rows: IntArray) -> IntArray | None:
        """Where these rows lie in the file; None where the file keeps their order."""
        if not self._permuted or name.rpartition(".")[2] not in ("q", "k", "q_bias", "k_bias"):
            return None
        # Stored row h * d + 2j + p holds row h * d + p * d/2 + j: a reshape to [heads, 2, d/2], axes swapped.
        d = self._config.head_dim
        head, inner = rows // d * d, rows % d
        return head + 2 * (inner % (d // 2)) + inner // (d // 2)

    def _read(self, name: str, rows: slice | IntArray) -> FloatArray:
        if self._data is None:
            raise ValueError(f"{self._path} was closed")
        tensor = self._tensors[name]
        stored = self._data[tensor.start : tensor.start + tensor.nbytes].reshape(-1, tensor.row_bytes)
        values, finite = dequantise(stored[rows], tensor.kind, self._half)
        if not finite:
            raise ValueError(f"tensor {tensor.name} holds values that are not finite; the file is damaged")
        return values


def _named_tensors(header: GgufHeader, config: ModelConfig) -> dict[str, GgufTensor]:
    named = {name: gguf_name(name) for name in tensor_shapes(config)}
    found = {t.name: t.shape for t in header.tensors.values() if t.name != _ROPE}
    check_tensors(config, found, named)
    for name in named.values():
        kind = header.tensors[name].kind
        if not is_readable(kind):
            raise ValueError(f"tensor {name} has the type {kind.name}, which cannot be read")
    return {name: header.tensors[file_name] for name, file_name in named.items()}


def _config(header: GgufHeader, stored_divisors: npt.NDArray[np.float64] | None, context: int | None) -> ModelConfig:
    metadata, tensors = header.metadata, header.tensors
    kind = metadata.get("general.type", "model")
    if kind != "model":
        raise ValueError(f"this GGUF file is not a language model but of the type {kind!r}")
    if "general.architecture" not in metadata:
        raise ValueError("this GGUF file names no architecture")
    arch = str(metadata["general.architecture"])
    family = family_of(arch)
    parts = metadata.get("split.count", 1)
    if parts not in (0, 1):
        raise ValueError(f"this GGUF file is one of {parts} parts; join them first: llama-gguf-split --merge")
    get = _Keys(arch, metadata)
    _refuse_variants(get, tensors)
    hidden, heads = get.size("embedding_length"), get.size("attention.head_count")
    kv_heads = get.size("attention.head_count_kv", heads)
    head_dim = get.size("attention.key_length", hidden // max(heads, 1))
    if get.size("attention.value_length", head_dim) != head_dim:
        raise ValueError("keys and values of different sizes are not supported")
    rotary = get.size("rope.dimension_count", head_dim)
    if rotary != head_dim:
        raise ValueError(f"rotary embedding over a part of the head ({rotary} of {head_dim}) is not supported")
    if get.size("block_count") > len(tensors):
        raise ValueError(f"the file names {get.size('block_count')} layers and holds only {len(tensors)} tensors")
    max_position = get.size("context_length")
    check_window(get.size("attention.sliding_window", 0), context, max_position)
    if "token_embd.weight" not in tensors:
        raise ValueError("tensor token_embd.weight is missing")
    return check_config(
        ModelConfig(
            family=family,
            vocab_size=tensors["token_embd.weight"].shape[0],
            hidden_size=hidden,
            num_layers=get.size("block_count"),
            num_heads=heads,
            num_kv_heads=kv_heads,
            head_dim=head_dim,
            intermediate_size=get.size("feed_forward_length"),
            rms_norm_eps=get.real("attention.layer_norm_rms_epsilon"),
            rope_theta=get.real("rope.freq_base", 10000.0),
            rope_divisors=_rope_divisors(get, stored_divisors, head_dim),
            max_position=max_position,
            tied_head="output.weight" not in tensors,
            attention_bias="blk.0.attn_q.bias" in tensors or family == "qwen2",
        )
    )


class _Keys:
    """Metadata under the architecture's own prefix: ``get.size("block_count")`` reads ``llama.block_count``."""

    __slots__ = ("_metadata", "_prefix")

    def __init__(self, prefix: str, metadata: Mapping[str, Any]) -> None:
        self._prefix, self._metadata = prefix, metadata

    def value(self, key: str, default: Any = None) -> Any:
        return self._metadata.get(f"{self._prefix}.{key}", default)

    def size(self, key: str, default: int | None = None) -> int:
        value = int(self._number(key, default))
        if not 0 <= value < 2**31:
            raise ValueError(f"{self._prefix}.{key} is out of range: {value}")
        return value

    def real(self, key: str, default: float | None = None) -> float:
        # The file's float32 is the model's own value rounded: 1e-5 is stored as 9.999999747378752e-06.
        return float(self._number(key, default))

    def _number(self, key: str, default: float | None) -> Any:
        value = self.value(key, default)
        if value is None:
            raise ValueError(f"the header lacks {self._prefix}.{key}")
        if isinstance(value, np.ndarray):  # one number per layer; the families here have the same in all
            if value.size == 0 or not (value == value[0]).all():
                raise ValueError(f"{self._prefix}.{key} differs between layers, which is not supported")
            value = value[0].item()
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise ValueError(f"{self._prefix}.{key} should be a number, the file says {value!r}")
        return value


def _refuse_variants(get: _Keys, tensors: Mapping[str, GgufTensor]) -> None:
    """Keys that change the arithmetic of a supported architecture; ignoring one gives wrong text in silence."""
    if get.size("expert_count", 0) > 0 or any("_exps." in name for name in tensors):
        raise ValueError("the model has mixture-of-experts layers, which are not supported yet")
    if get.value("attention.causal", True) is False:
        raise ValueError("the model is not causal (an embedding model); it cannot generate text")
    for key in ("logit_scale", "embedding_scale", "residual_scale"):
        if get.real(key, 0.0) not in (0.0, 1.0):
            raise ValueError(f"{key} {get.value(key)} is not supported")
    for key in ("attention.scale", "attention.clamp_kqv", "attn_logit_softcapping", "final_logit_softcapping"):
        if get.real(key, 0.0):
            raise ValueError(f"{key} {get.value(key)} is not supported")


def _rope_divisors(get: _Keys, stored: npt.NDArray[np.float64] | None, head_dim: int) -> npt.NDArray[np.float64] | None:
    kind = str(get.value("rope.scaling.type", "linear"))
    if kind not in ("none", "linear"):
        raise ValueError(f"rope scaling {kind!r} is not supported (linear and Llama 3's are)")
    factor = get.real("rope.scaling.factor", get.real("rope.scale_linear", 0.0)) if kind == "linear" else 0.0
    if factor in (0.0, 1.0):
        return stored
    linear = linear_divisors(factor, head_dim)
    return linear if stored is None else linear * stored


def _stored_divisors(header: GgufHeader, data: npt.NDArray[np.uint8]) -> npt.NDArray[np.float64] | None:
    tensor = header.tensors.get(_ROPE)
    if tensor is None:
        return None
    raw = data[tensor.start : tensor.start + tensor.nbytes].reshape(1, -1)
    return dequantise(raw, tensor.kind, half_values())[0].reshape(-1).astype(np.float64)
