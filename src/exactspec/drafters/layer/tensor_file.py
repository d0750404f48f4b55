"""safetensors files by numpy alone, bfloat16 included (as uint16: the upper half of a float32).

The safetensors package checks a file but gives no bfloat16 to numpy. The format: eight bytes with the header's length,
a JSON header, the tensors' bytes.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open

from exactspec.target.base import FloatArray

_NAMES: Final[Mapping[str, str]] = {
    "uint16": "BF16",
    "float32": "F32",
    "int8": "I8",
    "uint8": "U8",
    "int32": "I32",
    "int64": "I64",
}
_DTYPES: Final = {name: dtype for dtype, name in _NAMES.items()}


def to_bfloat16(x: FloatArray) -> npt.NDArray[np.uint16]:
    """Upper halves of float32, rounded to nearest, ties to even."""
    bits = np.ascontiguousarray(x, dtype=np.float32).view(np.uint32)
    return ((bits + (((bits >> np.uint32(16)) & np.uint32(1)) + np.uint32(0x7FFF))) >> np.uint32(16)).astype(np.uint16)


def from_bfloat16(x: npt.NDArray[np.uint16]) -> FloatArray:
    return (x.astype(np.uint32) << np.uint32(16)).view(np.float32)


def tensor_bytes(arrays: Mapping[str, npt.NDArray[Any]], metadata: Mapping[str, str]) -> bytes:
    """A whole file. ValueError on a dtype that is not written."""
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    parts, at = [], 0
    for name, array in arrays.items():
        if array.dtype.name not in _NAMES:
            raise ValueError(f"{name} has the type {array.dtype}, one of {', '.join(_NAMES)} is written")
        raw = array.tobytes()
        header[name] = {
            "dtype": _NAMES[array.dtype.name],
            "shape": list(array.shape),
            "data_offsets": [at, at + len(raw)],
        }
        parts.append(raw)
        at += len(raw)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return b"".join([struct.pack("<Q", len(text)), text, *parts])


def map_tensors(path: Path) -> tuple[dict[str, npt.NDArray[Any]], dict[str, str]]:
    """Arrays (read-only views of the mapped file) by name, and the metadata. ValueError if it cannot be read."""
    try:
        with safe_open(path, framework="numpy"):
            pass  # checks the header and the file's length
        data = np.memmap(path, dtype=np.uint8, mode="r")
    except (OSError, SafetensorError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from None
    (size,) = struct.unpack_from("<Q", data[:8].tobytes())
    header = json.loads(data[8 : 8 + size].tobytes())
    metadata: dict[str, str] = header.pop("__metadata__", {})
    arrays = {}
    for name, entry in header.items():
        if entry["dtype"] not in _DTYPES:
            raise ValueError(f"{path}: {name} has the type {entry['dtype']}, which is not read")
        start, stop = entry["data_offsets"]
        # tensors may lie at any byte: numpy reads unaligned views
        arrays[name] = np.frombuffer(
            data[8 + size + start : 8 + size + stop], dtype=np.dtype(_DTYPES[entry["dtype"]])
        ).reshape(entry["shape"])
    return arrays, metadata


def write_whole(path: Path, data: bytes) -> None:
    """The whole file or none: written beside it, forced to disk, renamed."""
    part = path.with_name(path.name + ".part")
    with open(part, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)
