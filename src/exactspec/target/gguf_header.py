"""The header of a GGUF file: metadata and where each tensor lies.

A lean reader of its own: ``gguf.GGUFReader`` makes several numpy views for each of the 300 000 strings of a
vocabulary and takes 5 to 20 s where this takes 0.2 s. Type numbers and block sizes still come from ``gguf``.
Format: github.com/ggml-org/ggml, docs/gguf.md (versions 2 and 3, little endian).
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_DEFAULT_ALIGNMENT = 32
_MAX_DIMENSIONS = 4


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """`shape` as numpy sees it (rows first). `start`: byte offset in the file. `row_bytes`: bytes of one row."""

    name: str
    shape: tuple[int, ...]
    kind: gguf.GGMLQuantizationType
    start: int
    row_bytes: int

    @property
    def nbytes(self) -> int:
        rows = 1
        for n in self.shape[:-1]:
            rows *= n
        return rows * self.row_bytes


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """`metadata`: key -> bool, int, float, str, list of str or of lists, or a numpy array of numbers."""

    version: int
    metadata: dict[str, Any]
    tensors: dict[str, GgufTensor]


class _Cursor:
    """Reads forward through the file's bytes; every length is checked before it is believed."""

    __slots__ = ("at", "data", "size")

    def __init__(self, data: mmap.mmap) -> None:
        self.data, self.at, self.size = data, 0, len(data)

    def take(self, count: int) -> bytes:
        if count > self.size - self.at:
            raise ValueError("the file is truncated: it ends inside its header")
        self.at += count
        return self.data[self.at - count : self.at]

    def number(self, code: str) -> Any:
        return struct.unpack("<" + code, self.take(struct.calcsize("<" + code)))[0]

    def text(self) -> str:
        # Tokens of a vocabulary need not be whole characters; what cannot be decoded is kept as lone surrogates.
        return self.take(self.number("Q")).decode("utf-8", "surrogateescape")

    def texts(self, count: int) -> list[str]:
        """The hot loop: hundreds of thousands of strings, so no call per number."""
        data, at, size, unpack = self.data, self.at, self.size, struct.Struct("<Q").unpack_from
        out: list[str] = []
        if count > (size - at) // 8:
            raise ValueError("the file is truncated: it ends inside its header")
        for _ in range(count):
            if at + 8 > size:
                raise ValueError("the file is truncated: it ends inside its header")
            end = at + 8 + unpack(data, at)[0]
            if end > size:
                raise ValueError("the file is truncated: it ends inside its header")
            item = data[at + 8 : end]
            try:
                out.append(item.decode())
            except UnicodeDecodeError:
                out.append(item.decode("utf-8", "surrogateescape"))
            at = end
        self.at = at
        return out

    def value(self, kind: int, depth: int = 0) -> Any:
        if kind in _SCALARS:
            return self.number(_SCALARS[kind])
        if kind == _STRING:
            return self.text()
        if kind != _ARRAY or depth > 2:
            raise ValueError(f"the header holds a value of unknown type {kind}")
        inner, count = self.number("I"), self.number("Q")
        if inner == _STRING:
            return self.texts(count)
        if inner in _SCALARS:
            dtype = np.dtype("<" + _SCALARS[inner]) if inner != 7 else np.dtype(bool)
            return np.frombuffer(self.take(count * dtype.itemsize), dtype=dtype)
        if count > self.size - self.at:
            raise ValueError("the file is truncated: it ends inside its header")
        return [self.value(inner, depth + 1) for _ in range(count)]


def read_header(path: Path) -> GgufHeader:
    """Header of a GGUF file. ValueError, without the path: not a GGUF, a version or type unknown here, truncated."""
    if path.stat().st_size < 24:
        raise ValueError("not a GGUF file: too short")
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        cursor = _Cursor(data)
        if cursor.take(4) != b"GGUF":
            raise ValueError("not a GGUF file: it does not start with 'GGUF'")
        version = cursor.number("I")
        if version & 0xFFFF == 0:
            raise ValueError("this GGUF file is big endian; convert it to little endian")
        if version not in (2, 3):
            raise ValueError(f"GGUF version {version} is not supported (2 and 3 are); convert the model again")
        num_tensors, num_values = cursor.number("Q"), cursor.number("Q")
        metadata: dict[str, Any] = {}
        for _ in range(num_values):
            key = cursor.text()
            if key in metadata:
                raise ValueError(f"the header holds {key!r} twice")
            metadata[key] = cursor.value(cursor.number("I"))
        raw = [_tensor_info(cursor) for _ in range(num_tensors)]
        alignment = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
        if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
            raise ValueError(f"general.alignment must be a power of two, the file says {alignment!r}")
        base = -(-cursor.at // alignment) * alignment
        return GgufHeader(version, metadata, _place(raw, base, alignment, cursor.size))


def _tensor_info(cursor: _Cursor) -> tuple[str, tuple[int, ...], int, int]:
    name, dimensions = cursor.text(), cursor.number("I")
    if not 1 <= dimensions <= _MAX_DIMENSIONS:
        raise ValueError(f"tensor {name} has {dimensions} dimensions")
    shape = tuple(cursor.number("Q") for _ in range(dimensions))[::-1]
    return name, shape, cursor.number("I"), cursor.number("Q")


def _place(
    raw: list[tuple[str, tuple[int, ...], int, int]], base: int, alignment: int, size: int
) -> dict[str, GgufTensor]:
    tensors: dict[str, GgufTensor] = {}
    for name, shape, number, offset in raw:
        if name in tensors:
            raise ValueError(f"the header holds tensor {name} twice")
        try:
            kind = gguf.GGMLQuantizationType(number)
            weights, nbytes = gguf.GGML_QUANT_SIZES[kind]
        except (ValueError, KeyError):
            raise ValueError(f"tensor {name} has the unknown type {number}; a newer 'gguf' may know it") from None
        if shape[-1] % weights:
            raise ValueError(f"tensor {name}: rows of {shape[-1]} are no whole number of {kind.name} blocks")
        if offset % alignment:
            raise ValueError(f"tensor {name} is not aligned")
        tensor = GgufTensor(name, shape, kind, base + offset, shape[-1] // weights * nbytes)
        end = tensor.start + tensor.nbytes
        if end > size:
            raise ValueError(f"the file is truncated: tensor {name} ends at byte {end}, the file at {size}")
        tensors[name] = tensor
    return tensors
