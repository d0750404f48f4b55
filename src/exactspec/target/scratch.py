"""Working memory of a target: buffers that only grow, addressed by name."""

from __future__ import annotations

from typing import Any

import numpy as np


class Scratch:
    """Named buffers. What is handed out is valid until the same name is asked for a larger size."""

    def __init__(self) -> None:
        self._buffers: dict[str, np.ndarray[Any, Any]] = {}
        self._addresses: dict[str, int] = {}

    def flat(self, name: str, dtype: Any, count: int) -> np.ndarray[Any, Any]:
        """The whole buffer, at least `count` elements."""
        buffer = self._buffers.get(name)
        if buffer is None or len(buffer) < count:
            buffer = self._buffers[name] = np.zeros(max(count, 64), dtype=dtype)
            self._addresses[name] = buffer.ctypes.data
        return buffer

    def address(self, name: str, dtype: Any, count: int) -> int:
        """Address of a buffer of at least `count` elements."""
        self.flat(name, dtype, count)
        return self._addresses[name]

    @property
    def nbytes(self) -> int:
        return sum(buffer.nbytes for buffer in self._buffers.values())
