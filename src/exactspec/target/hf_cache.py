"""Keys and values of one request, for models of transformers: rows are staged, a path is kept, the end is cut off.

transformers' own caches grow by concatenation (a copy of everything, every step), and their windowed layers drop what
a rejected draft would need back. Here a layer is a slab [1, kv_heads, room, head_dim] that is written in place. Row i
of a forward is staged in slot ``length + i``; everything at and above `length` is scratch. Windowed layers keep all
slots too, and hand out the window alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers.cache_utils import Cache, CacheLayerMixin, DummyLayer

from exactspec.target.base import IntArray

_ROOM = 256
"""Slots of the first slab; it doubles from there."""


class Length:
    """Number of committed tokens, which all layers of one cache share."""

    __slots__ = ("value",)

    def __init__(self, value: int = 0) -> None:
        self.value = value


class SlabLayer(CacheLayerMixin):
    """One layer as transformers sees it. `window`: a query sees that many keys, its own included; None: all."""

    def __init__(self, length: Length, window: int | None) -> None:
        super().__init__()
        self.window = window
        self.is_sliding = window is not None
        self._length = length

    def lazy_initialization(self, key_states: Any, value_states: Any) -> None:
        self.keys = self._slab(key_states, _ROOM)
        self.values = self._slab(value_states, _ROOM)
        self.is_initialized = True

    @staticmethod
    def _slab(like: Any, room: int) -> Any:
        return like.new_zeros((*like.shape[:2], room, like.shape[3]))

    def first_key(self) -> int:
        """Position of the first key that `update` hands out: the first that the root's row may see."""
        return 0 if self.window is None else max(0, self._length.value - self.window + 1)

    def update(self, key_states: Any, value_states: Any, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        """Stage rows [1, kv_heads, n, head_dim]; returns views of all keys and values that a row may see."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        at, start = self._length.value, self.first_key()
        end = at + key_states.shape[2]
        # Each by its own size: an interrupt may have let one of the two grow alone.
        self.keys, self.values = self._grown(self.keys, end), self._grown(self.values, end)
        self.keys[:, :, at:end] = key_states
        self.values[:, :, at:end] = value_states
        return self.keys[:, :, start:end], self.values[:, :, start:end]

    def _grown(self, slab: Any, slots: int) -> Any:
        if slots <= slab.shape[2]:
            return slab
        larger = self._slab(slab, max(slots, 2 * slab.shape[2]))
        held = self._length.value
        larger[:, :, :held] = slab[:, :, :held]
        return larger

    def move(self, sources: Any, at: int) -> None:
        """Copy the slots `sources` to the slots from `at` on."""
        if self.is_initialized:
            for slab in (self.keys, self.values):
                slab[:, :, at : at + len(sources)] = slab[:, :, sources.to(slab.device)]

    def copy(self, length: Length) -> SlabLayer:
        other = SlabLayer(length, self.window)
        if self.is_initialized:
            held = length.value
            for name, slab in (("keys", self.keys), ("values", self.values)):
                mine = self._slab(slab, held + _ROOM)
                mine[:, :, :held] = slab[:, :, :held]
                setattr(other, name, mine)
            other.is_initialized = True
        return other

    @property
    def nbytes(self) -> int:
        return int(self.keys.nbytes + self.values.nbytes) if self.is_initialized else 0

    def get_seq_length(self) -> int:
        return self._length.value

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        start = self.first_key()
        return self._length.value - start + query_length, start

    def get_max_length(self) -> int:
        return -1


class HFCache:
    """See `exactspec.target.base.Cache`. `layers`: one a layer of the model, on one `length`. Room is never given back
    before the cache itself goes."""

    def __init__(self, layers: Sequence[SlabLayer | DummyLayer], length: Length) -> None:
        self.inner = Cache(layers=list(layers))
        self._slabs = [layer for layer in layers if isinstance(layer, SlabLayer)]
        self._length = length
        self._staged: Sequence[int] = ()  # parents of the staged rows

    @classmethod
    def new(cls, windows: Sequence[int | None]) -> HFCache:
        """An empty cache. `windows`: one a layer: its window, None for all keys, 0 for a layer that keeps none."""
        length = Length()
        return cls([DummyLayer() if window == 0 else SlabLayer(length, window) for window in windows], length)

    @property
    def length(self) -> int:
        return self._length.value

    @property
    def nbytes(self) -> int:
        return sum(layer.nbytes for layer in self._slabs)

    def stage(self, parents: Sequence[int]) -> None:
        """Say which rows are staged: () before a forward, their parents once it is complete."""
        self._staged = parents

    def keep(self, rows: Sequence[int] | IntArray) -> None:
        path = [int(row) for row in rows]
        staged, parent = self._staged, -1
        for row in path:
            if not 0 <= row < len(staged) or staged[row] != parent:
                raise ValueError(f"rows {path[:8]} are no path from the root of the {len(staged)} staged rows")
            parent = row
        still = next((depth for depth, row in enumerate(path) if row != depth), len(path))
        if still < len(path):
            with torch.inference_mode():
                sources = torch.tensor(path[still:]) + self._length.value
                for layer in self._slabs:
                    layer.move(sources, self._length.value + still)
        self._length.value += len(path)
        self._staged = ()

    def truncate(self, n: int) -> None:
        if not 0 <= n <= self._length.value:
            raise ValueError(f"cannot truncate a cache of {self._length.value} tokens to {n}")
        self._length.value = int(n)
        self._staged = ()

    def fork(self) -> HFCache:
        length = Length(self._length.value)
        layers = self.inner.layers
        with torch.inference_mode():
            copies = [layer.copy(length) if isinstance(layer, SlabLayer) else DummyLayer() for layer in layers]
        return HFCache(copies, length)
