"""Weights of a GGUF file, as llama.cpp writes them: memory-mapped, dequantised row by row on demand.

Two conventions of the format are undone here. Query and key rows of some families (`Family.paired_gguf`) are stored
for interleaved rotary pairs (2d, 2d + 1) and come out in rotate-half order. Scaled rotary frequencies are stored as a
tensor (``rope_freqs.weight``) and come out as divisors of the configuration.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import numpy.typing as npt

from exactspec.target.base import FloatArray, IntArray
from exactspec.target.dequant import Dequantiser, is_readable
from exactspec.target.families import FAMILIES
from exactspec.target.gguf_config import read_config
from exactspec.target.gguf_header import GgufHeader, GgufTensor, read_header
from exactspec.target.tensors import check_tensors, gguf_name, matrix_shape, row_range, tensor_shapes, vector_size
from exactspec.target.weights import FourBitRows, ModelConfig

_ROPE = "rope_freqs.weight"
_FOUR_BIT = {"Q4_0": (18, 1), "Q4_1": (20, 2), "Q4_K": (144, 2)}
"""Bytes of a block, and how many float16 numbers it begins with."""
_LARGEST_Q4_0 = 8188  # of a scale: 8 times it is still a float16


class GgufSource:
    """A `WeightSource` over one GGUF file. `header`: its metadata, the tokenizer's part included.

    `sha256`: the file's hash where
    the caller knows it; else it is computed when first asked for (a second or so a gigabyte).
    Raises ValueError, one line, on anything that is not a model of the supported families.
    """

    __slots__ = ("_config", "_data", "_dequantise", "_path", "_permuted", "_sha256", "_shapes", "_tensors", "header")

    def __init__(self, path: Path, *, sha256: str | None = None) -> None:
        self.header: GgufHeader = read_header(path)
        self._path, self._sha256 = path, sha256
        data = np.asarray(np.memmap(path, dtype=np.uint8, mode="r"))
        self._config = read_config(self.header, _stored_divisors(self.header, data))
        self._shapes = tensor_shapes(self._config)
        self._tensors = _named_tensors(self.header, self._config)
        self._permuted = FAMILIES[self._config.family].paired_gguf
        self._dequantise = Dequantiser()
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

    def block_kind(self, name: str) -> str:
        """See `FourBitSource.block_kind`."""
        return self._tensors[name].kind.name

    def four_bit(self, name: str) -> FourBitRows | None:
        """See `FourBitSource.four_bit`."""
        rows, width = matrix_shape(self._shapes, name)
        tensor = self._tensors[name]
        if tensor.kind.name not in _FOUR_BIT:
            return None
        size, numbers = _FOUR_BIT[tensor.kind.name]
        order = self._stored_rows(name, np.arange(rows))
        stored = self._stored(tensor)
        blocks = stored if order is None else stored[order]
        scales = np.ascontiguousarray(blocks.reshape(-1, size)[:, : 2 * numbers]).view("<f2")
        self._require_finite(tensor, bool(np.isfinite(scales).all()))
        if tensor.kind.name == "Q4_0" and np.abs(scales).max() > _LARGEST_Q4_0:
            return None
        return FourBitRows(tensor.kind.name, blocks, width)

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
        tensor = self._tensors[name]
        values, finite = self._dequantise(self._stored(tensor)[rows], tensor.kind)
        self._require_finite(tensor, finite)
        return values

    def _stored(self, tensor: GgufTensor) -> npt.NDArray[np.uint8]:
        if self._data is None:
            raise ValueError(f"{self._path} was closed")
        return self._data[tensor.start : tensor.start + tensor.nbytes].reshape(-1, tensor.row_bytes)

    @staticmethod
    def _require_finite(tensor: GgufTensor, finite: bool) -> None:
        if not finite:
            raise ValueError(f"tensor {tensor.name} holds values that are not finite; the file is damaged")


def _named_tensors(header: GgufHeader, config: ModelConfig) -> dict[str, GgufTensor]:
    named = {name: gguf_name(name) for name in tensor_shapes(config)}
    found = {t.name: t.shape for t in header.tensors.values() if t.name != _ROPE}
    check_tensors(config, found, named)
    for name in named.values():
        kind = header.tensors[name].kind
        if not is_readable(kind):
            raise ValueError(f"tensor {name} has the type {kind.name}, which cannot be read")
    return {name: header.tensors[file_name] for name, file_name in named.items()}


def _stored_divisors(header: GgufHeader, data: npt.NDArray[np.uint8]) -> npt.NDArray[np.float64] | None:
    tensor = header.tensors.get(_ROPE)
    if tensor is None:
        return None
    if not is_readable(tensor.kind):
        raise ValueError(f"tensor {_ROPE} has the type {tensor.kind.name}, which cannot be read")
    raw = data[tensor.start : tensor.start + tensor.nbytes].reshape(1, -1)
    return Dequantiser()(raw, tensor.kind)[0].reshape(-1).astype(np.float64)
