"""The rotary table on the device: the CPU's table, angles in float64 and rounded once, moved as it grows."""

from __future__ import annotations

from typing import Any

from exactspec.target.cuda.device import Device, moved
from exactspec.target.rope import RopeTable
from exactspec.target.weights import ModelConfig


class DeviceRope:
    """cos and sin: float32 [positions, half]; padding lanes rotate by nothing."""

    def __init__(self, config: ModelConfig, half: int, device: Device) -> None:
        self._table = RopeTable(config, half)
        self._device = device
        self._moved: tuple[Any, Any] | None = None

    def cover(self, positions: int) -> tuple[Any, Any]:
        """Tensors with rows 0 .. positions - 1 at least."""
        if self._moved is None or len(self._moved[0]) < positions:
            cos, sin = self._table.rows(positions)
            self._moved = (moved(cos, self._device), moved(sin, self._device))
        return self._moved
