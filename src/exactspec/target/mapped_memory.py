"""Large blocks of memory that go back to the system the moment they are freed.

An allocator that has freed a block of some size keeps the next ones of that size in its arenas, one for each thread
that ever allocated, and what lies between blocks in use stays with the process: a server that makes and drops caches
all day then grows for hours. A mapping of its own has no neighbours.
"""

from __future__ import annotations

import mmap

import numpy as np
import numpy.typing as npt

LEAST = 1 << 19
"""Bytes from which a block is mapped; below, the allocator does better."""

ALIGNMENT = 64
"""Of every block, in bytes: a cache line."""

_PRIVATE = getattr(mmap, "MAP_PRIVATE", 0) | getattr(mmap, "MAP_ANONYMOUS", 0)  # none on Windows


def zeros(nbytes: int) -> npt.NDArray[np.uint8]:
    """uint8 [nbytes] of zeros, aligned to `ALIGNMENT`, private to the process and copied by a fork. Pages are taken as
    they are written. Freed with the last array over it. Raises MemoryError."""
    if nbytes < LEAST or not _PRIVATE:
        raw = np.zeros(nbytes + ALIGNMENT, dtype=np.uint8)
        start = -raw.ctypes.data % ALIGNMENT
        return raw[start : start + nbytes]
    try:
        return np.frombuffer(mmap.mmap(-1, nbytes, flags=_PRIVATE), dtype=np.uint8)
    except OSError as error:
        raise MemoryError(f"{nbytes / 1e6:.1f} MB cannot be had: {error.strerror}") from None
