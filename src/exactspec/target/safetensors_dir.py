"""Weights of a folder as transformers writes it: config.json and ``*.safetensors``, one file or sharded.

Files are checked by the ``safetensors`` package and then mapped and viewed here, because that package gives no
bfloat16 to numpy. F32, F16 and BF16 are read; quantised checkpoints are refused.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open

from exactspec.target.base import FloatArray
from exactspec.target.dequant import all_finite
from exactspec.target.families import FAMILIES
from exactspec.target.hf_config import read_config
from exactspec.target.json_file import indexed_files, read_object
from exactspec.target.settings import one_line
from exactspec.target.tensors import check_tensors, hf_name, matrix_shape, row_range, tensor_shapes, vector_size
from exactspec.target.weights import ModelConfig

INDEX = "model.safetensors.index.json"

# Buffers that old checkpoints carry and nothing needs: they follow from the configuration.
_IGNORED = "rotary_emb.inv_freq"


@dataclass(frozen=True, slots=True)
class _Stored:
    """One tensor: its file's bytes from `start` on, `shape` numbers of the safetensors type `dtype`."""

    data: npt.NDArray[np.uint8]
    start: int
    dtype: str
    shape: tuple[int, ...]


def _bfloat16(raw: npt.NDArray[np.uint8]) -> FloatArray:
    return (raw.view("<u2").astype(np.uint32) << np.uint32(16)).view(np.float32)


_READERS: dict[str, tuple[int, Callable[[npt.NDArray[np.uint8]], FloatArray]]] = {
    "F32": (4, lambda raw: raw.view("<f4").astype(np.float32)),
    "F16": (2, lambda raw: raw.view("<f2").astype(np.float32)),
    "BF16": (2, _bfloat16),
}


class SafetensorsSource:
    """A `WeightSource` over a folder. Arguments as of `GgufSource`; raises ValueError, one line, likewise."""

    __slots__ = ("_config", "_files", "_folder", "_sha256", "_shapes", "_tensors")

    def __init__(self, folder: Path, *, sha256: str | None = None) -> None:
        self._folder, self._sha256 = folder, sha256
        self._files = weight_files(folder)
        stored: dict[str, _Stored] = {}
        for file in self._files:
            for name, tensor in _open(file).items():
                if name in stored:
                    raise ValueError(f"tensor {name} is in more than one file")
                stored[name] = tensor
        stored = {_full(name): tensor for name, tensor in stored.items() if not name.endswith(_IGNORED)}
        self._config = _tie(_config(folder), stored)
        if self._config.num_layers > len(stored):
            raise ValueError(f"config.json names {self._config.num_layers} layers, there are {len(stored)} tensors")
        self._shapes = tensor_shapes(self._config)
        named = {name: self._file_name(name) for name in self._shapes}
        check_tensors(self._config, {name: tensor.shape for name, tensor in stored.items()}, named)
        self._tensors: dict[str, _Stored] = {name: stored[file_name] for name, file_name in named.items()}
        for name, tensor in self._tensors.items():
            if tensor.dtype not in _READERS:
                raise ValueError(
                    f"tensor {named[name]} has the type {tensor.dtype}, which cannot be read (F32, F16 and BF16 can); "
                    "take the unquantised model or a GGUF file"
                )

    @property
    def config(self) -> ModelConfig:
        return self._config

    @property
    def sha256(self) -> str:
        if self._sha256 is None:
            self._sha256 = hash_files(self._files)
        return self._sha256

    def matrix(self, name: str, start: int = 0, stop: int | None = None) -> FloatArray:
        """Rows start:stop as float32 [rows, in]; see `WeightSource.matrix`."""
        shape = matrix_shape(self._shapes, name)
        start, stop = row_range(name, shape[0], start, stop)
        return self._read(name, start * shape[1], stop * shape[1]).reshape(-1, shape[1])

    def vector(self, name: str) -> FloatArray:
        """A norm weight or a bias as float32 [n]; see `WeightSource.vector`."""
        values = self._read(name, 0, vector_size(self._shapes, name))
        offset = FAMILIES[self._config.family].norm_offset
        return values + np.float32(offset) if offset and name.endswith("norm") else values

    def close(self) -> None:
        """Let go of the files; reading afterwards is a ValueError."""
        self._tensors = {}

    def _file_name(self, name: str) -> str:
        return hf_name(name, post_norms=self._config.post_norms)

    def _read(self, name: str, start: int, stop: int) -> FloatArray:
        if not self._tensors:
            raise ValueError(f"{self._folder} was closed")
        tensor = self._tensors[name]
        size, reader = _READERS[tensor.dtype]
        values = reader(tensor.data[tensor.start + start * size : tensor.start + stop * size])
        if not all_finite(values):
            raise ValueError(f"tensor {self._file_name(name)} holds values that are not finite; the file is damaged")
        return values


def weight_files(folder: Path) -> list[Path]:
    """The files of a folder's model, in the order of their names: those of the index if there is one."""
    index = folder / INDEX
    if not index.exists():
        files = sorted(folder.glob("*.safetensors"))
        if not files:
            raise ValueError("the folder holds no *.safetensors")
        if len(files) > 1 and folder / "model.safetensors" in files:
            return [folder / "model.safetensors"]
        return files
    files = [folder / name for name in indexed_files(index)]
    for file in files:
        if file.parent != folder or not file.is_file():
            raise ValueError(f"{INDEX} names {file.name}, which is missing")
    return files


def _full(name: str) -> str:
    """Names as in a causal model; a bare decoder's (``layers.0...``) lack the prefix."""
    return name if name.startswith(("model.", "lm_head.")) else f"model.{name}"


def _open(file: Path) -> dict[str, _Stored]:
    try:
        with safe_open(file, framework="numpy"):  # sizes, overlaps and holes are the package's to judge
            pass
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{file.name} is damaged or truncated: {one_line(error)}") from None
    data = np.asarray(np.memmap(file, dtype=np.uint8, mode="r"))
    (length,) = struct.unpack("<Q", data[:8].tobytes())
    header = json.loads(data[8 : 8 + length].tobytes())
    return {
        name: _Stored(data, 8 + length + entry["data_offsets"][0], entry["dtype"], tuple(entry["shape"]))
        for name, entry in header.items()
        if name != "__metadata__"
    }


def _tie(config: ModelConfig, stored: dict[str, _Stored]) -> ModelConfig:
    """Settle a head that is both tied by config.json and stored: as transformers 5 does, equal values are one
    matrix (the copy is dropped from `stored`), different ones are two."""
    head, embed = stored.get(hf_name("head")), stored.get(hf_name("embed"))
    if not config.tied_head or head is None or embed is None:
        return config
    if head.dtype != embed.dtype or head.shape != embed.shape:
        return replace(config, tied_head=False)
    step, size = 1 << 24, int(np.prod(head.shape)) * _READERS.get(head.dtype, (1, None))[0]
    for at in range(0, size, step):
        end = min(at + step, size)
        if not np.array_equal(
            head.data[head.start + at : head.start + end], embed.data[embed.start + at : embed.start + end]
        ):
            return replace(config, tied_head=False)
    del stored[hf_name("head")]
    return config


def _config(folder: Path) -> ModelConfig:
    try:
        return read_config(read_object(folder / "config.json"))
    except FileNotFoundError:
        raise ValueError("the folder has no config.json") from None


def hash_files(files: list[Path]) -> str:
    """SHA-256 in hex of one file; of several, that of the lines ``sha256sum`` would print."""
    digests = []
    for file in files:
        with open(file, "rb") as stream:
            digests.append(hashlib.file_digest(stream, "sha256").hexdigest())
    if len(files) == 1:
        return digests[0]
    lines = "".join(f"{digest}  {file.name}\n" for digest, file in zip(digests, files, strict=True))
    return hashlib.sha256(lines.encode()).hexdigest()
