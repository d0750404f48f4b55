"""Working memory of a target: buffers that only grow, addressed by name."""

from __future__ import annotations

from typing import Any

import numpy as np


class Scratch:
    """Named buffers. What is handed out is valid until the same name is asked for a larger size."""

    def __init__(self) -> None:
        # Buffer and address in one value: an interrupt between two assignments would leave an address of nothing.
        self._buffers: dict[str, tuple[np.ndarray[Any, Any], int]] = {}

    def _get(self, name: str, dtype: Any, count: int) -> tuple[np.ndarray[Any, Any], int]:
        known = self._buffers.get(name)
        if known is None or len(known[0]) < count:
            buffer = np.zeros(max(count, 64), dtype=dtype)
            known = self._buffers[name] = (buffer, buffer.ctypes.data)
        return known

    def flat(self, name: str, dtype: Any, count: int) -> np.ndarray[Any, Any]:
        """The whole buffer, at least `count` elements."""
        return self._get(name, dtype, count)[0]

    def address(self, name: str, dtype: Any, count: int) -> int:
        """Address of a buffer of at least `count` elements."""
        return self._get(name, dtype, count)[1]

    @property
    def nbytes(self) -> int:
        return sum(buffer.nbytes for buffer, _ in self._buffers.values())
