"""Arrays in one file: written one after the other, checked by blocks, read through a memory map.

Every array begins at a multiple of 64 bytes, zeros before it where needed. A file has a CRC-32 per block of 16 MiB.
Reading it to check it goes through ``read``, not through the map: what a process checks but never uses (most rows of
an embedding table) stays out of its resident memory, and a read error is an OSError, not a signal.
"""

from __future__ import annotations

import mmap
import os
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

ALIGNMENT = 64
# Large, because a thread that checks has to wait for the interpreter lock twice a block.
BLOCK = 16 << 20


@dataclass(frozen=True, slots=True)
class Place:
    """Where an array lies: numpy's name of its type, little endian; byte offset."""

    dtype: str
    shape: tuple[int, ...]
    offset: int


@dataclass(frozen=True, slots=True)
class FileRecord:
    """What is known of a whole file. `crcs`: CRC-32 of each `BLOCK` bytes."""

    bytes: int
    crcs: tuple[int, ...]
    arrays: tuple[Place, ...]


class ArrayWriter:
    """Writes arrays into a new file, in order; nothing is held back. Use it as a context; raises OSError."""

    def __init__(self, path: Path) -> None:
        self._file = open(path, "xb", buffering=0)  # noqa: SIM115 (closed by __exit__)
        self._places: list[Place] = []
        self._crcs: list[int] = []
        self._at = self._crc = 0

    def __enter__(self) -> ArrayWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def put(self, array: np.ndarray[Any, Any]) -> int:
        """Write one array and return its number, counted from 0."""
        self._write(memoryview(bytes(-self._at % ALIGNMENT)))
        self._places.append(Place(array.dtype.newbyteorder("<").str, array.shape, self._at))
        little = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
        self._write(little.reshape(-1).view(np.uint8).data)
        return len(self._places) - 1

    def _write(self, data: memoryview) -> None:
        while data:
            part = data[: BLOCK - self._at % BLOCK]
            done = self._file.write(part)
            self._crc = zlib.crc32(part[:done], self._crc)
            self._at += done
            if self._at % BLOCK == 0:
                self._crcs.append(self._crc)
                self._crc = 0
            data = data[done:]

    def finish(self) -> FileRecord:
        """Flush everything to the disk."""
        os.fsync(self._file.fileno())
        rest = [self._crc] if self._at % BLOCK else []
        return FileRecord(self._at, (*self._crcs, *rest), tuple(self._places))


def is_intact(path: Path, record: FileRecord, *, threads: int = 1) -> bool:
    """Whether the file holds, byte for byte, what was written. Reads all of it, with `threads` threads."""
    try:
        if path.stat().st_size != record.bytes or len(record.crcs) != -(-record.bytes // BLOCK):
            return False

        def check(first: int) -> bool:
            buffer = memoryview(bytearray(min(BLOCK, record.bytes)))
            with open(path, "rb", buffering=0) as file:
                for number in range(first, len(record.crcs), threads):
                    file.seek(number * BLOCK)
                    block = buffer[: min(BLOCK, record.bytes - number * BLOCK)]
                    done = 0
                    while done < len(block):
                        count = file.readinto(block[done:])
                        if not count:
                            return False
                        done += count
                    if zlib.crc32(block) != record.crcs[number]:
                        return False
            return True

        if threads == 1:
            return check(0)
        with ThreadPoolExecutor(threads) as pool:
            return all(pool.map(check, range(threads)))
    except OSError:
        return False


def open_arrays(path: Path, record: FileRecord) -> Callable[[int], np.ndarray[Any, Any]]:
    """The file's arrays by number, read-only and shared with every process that maps it. The file is not checked here
    (see `is_intact`), only its size. Raises OSError, and ValueError on a size or a place that cannot be."""
    with open(path, "rb") as file:
        if os.fstat(file.fileno()).st_size != record.bytes:
            raise ValueError(f"{path} has another size than was written")
        # A map of nothing is an error.
        whole = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if record.bytes else b""
        data = np.frombuffer(whole, dtype=np.uint8)

    def get(number: int) -> np.ndarray[Any, Any]:
        place = record.arrays[number]
        dtype = np.dtype(place.dtype)
        count = int(np.prod(place.shape, dtype=np.int64))
        end = place.offset + count * dtype.itemsize
        if number < 0 or end > record.bytes:
            raise ValueError(f"{path} holds no such array")
        return data[place.offset : end].view(dtype).reshape(place.shape)

    return get
