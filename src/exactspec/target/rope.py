"""Rotary angles (arXiv 2104.09864), computed in float64 and rounded once; the table grows without changing old rows."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from exactspec.target.base import FloatArray
from exactspec.target.weights import ModelConfig

GROW = 1024  # positions added at a time


class RopeTable:
    """`cos`, `sin`: float32 [positions, half_pad]; padding lanes rotate by nothing."""

    def __init__(self, config: ModelConfig, half_pad: int) -> None:
        half = config.head_dim // 2
        frequency = 1.0 / config.rope_theta ** (np.arange(half, dtype=np.float64) * 2 / config.head_dim)
        if config.rope_divisors is not None:
            frequency = frequency / config.rope_divisors
        self._frequency: npt.NDArray[np.float64] = np.zeros(half_pad, dtype=np.float64)
        self._frequency[:half] = frequency
        self.cos: FloatArray = np.empty((0, half_pad), dtype=np.float32)
        self.sin: FloatArray = self.cos.copy()
        self.cos_address = self.sin_address = 0

    def cover(self, positions: int) -> None:
        """Make rows 0 .. positions - 1 available."""
        have = len(self.cos)
        if positions <= have:
            return
        want = -(-positions // GROW) * GROW
        angle = np.arange(have, want, dtype=np.float64)[:, None] * self._frequency[None, :]
        self.cos = np.concatenate([self.cos, np.cos(angle).astype(np.float32)])
        self.sin = np.concatenate([self.sin, np.sin(angle).astype(np.float32)])
        self.cos_address, self.sin_address = self.cos.ctypes.data, self.sin.ctypes.data
