"""Rotary angles (arXiv 2104.09864), computed in float64 and rounded once; the table grows without changing old rows."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from exactspec.target.base import FloatArray
from exactspec.target.weights import ModelConfig

GROW = 1024  # positions added at a time


def frequencies(config: ModelConfig, table: int = 0) -> npt.NDArray[np.float64]:
    """Radians a position, float64 [head_dim / 2]. `table`: 0 the model's, 1 that of its local layers."""
    theta = config.rope_theta if table == 0 else config.local_rope_theta
    exponent = np.arange(config.head_dim // 2, dtype=np.float64) * 2 / config.head_dim
    if not theta:
        return np.zeros_like(exponent)  # layers that do not rotate
    frequency: npt.NDArray[np.float64] = 1.0 / theta**exponent
    if table == 0 and config.rope_divisors is not None:
        frequency = frequency / config.rope_divisors
    return frequency


class RopeTable:
    """cos and sin: float32 [positions, half_pad]; padding lanes rotate by nothing. `table`: see `frequencies`."""

    def __init__(self, config: ModelConfig, half_pad: int, table: int = 0) -> None:
        self._frequency: npt.NDArray[np.float64] = np.zeros(half_pad, dtype=np.float64)
        self._frequency[: config.head_dim // 2] = frequencies(config, table)
        self._factor = config.rope_factor if table == 0 else 1.0
        # One value: an interrupt between several assignments would leave tables and addresses that do not fit.
        empty = np.empty((0, half_pad), dtype=np.float32)
        self._table: tuple[FloatArray, FloatArray, int, int] = (empty, empty, 0, 0)

    def cover(self, positions: int) -> tuple[int, int]:
        """Make rows 0 .. positions - 1 available; returns the addresses of cos and sin, valid until the next call."""
        cos, sin, *_ = self._table
        have = len(cos)
        if positions > have:
            want = -(-positions // GROW) * GROW
            angle = np.arange(have, want, dtype=np.float64)[:, None] * self._frequency[None, :]
            cos = np.concatenate([cos, (self._factor * np.cos(angle)).astype(np.float32)])
            sin = np.concatenate([sin, (self._factor * np.sin(angle)).astype(np.float32)])
            self._table = (cos, sin, cos.ctypes.data, sin.ctypes.data)
        return self._table[2:]

    def rows(self, positions: int) -> tuple[FloatArray, FloatArray]:
        """cos and sin themselves, with rows 0 .. positions - 1 at least."""
        self.cover(positions)
        return self._table[:2]
