"""Keys and values of one request on a GPU, in pages of 128 slots.

As `exactspec.target.cache.ExactCache`: a page holds 128 positions of all layers, growing copies nothing, forks share
full pages, a page about to be written while another cache holds it is copied first. Row i of a forward is staged in
slot ``length + i``; `keep` moves the accepted rows down in one launch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from exactspec.target.base import FloatArray, IntArray
from exactspec.target.cuda.device import Device, moved
from exactspec.target.cuda.launch import Launcher

CHUNK = 128


@dataclass(frozen=True, slots=True)
class PageShape:
    """`layers`, `kv_heads`, `head` (floats per key or value)."""

    layers: int
    kv_heads: int
    head: int

    @property
    def floats(self) -> int:
        return self.layers * self.kv_heads * 2 * CHUNK * self.head


class Page:
    """`data` float32 [layers, kv_heads, 2, 128, head] from zeros (a slot never written must be finite), and the number
    of caches that hold it."""

    __slots__ = ("data", "holders")

    def __init__(self, data: Any) -> None:
        self.data = data
        self.holders = 1


class CudaCache:
    """See `exactspec.target.base.Cache`. Not thread-safe; `fork` and release of related caches neither."""

    def __init__(self, shape: PageShape, device: Device, launcher: Launcher) -> None:
        self.shape = shape
        self._device = device
        self._launcher = launcher
        self._length = 0
        self._pages: list[Page] = []
        self._staged: Sequence[int] = ()  # parents of the staged rows

    @property
    def length(self) -> int:
        return self._length

    @property
    def nbytes(self) -> int:
        """Bytes of the pages it holds, on the device; pages shared with forks count fully."""
        return len(self._pages) * self.shape.floats * 4

    def __del__(self) -> None:
        for page in self._pages:
            page.holders -= 1

    def keep(self, rows: Sequence[int] | IntArray) -> None:
        path = rows.tolist() if isinstance(rows, np.ndarray) else [int(row) for row in rows]
        staged, parent = self._staged, -1
        for row in path:
            if not 0 <= row < len(staged) or staged[row] != parent:
                raise ValueError(f"rows {path[:8]} are no path from the root of the {len(staged)} staged rows")
            parent = row
        moves = [
            (*self._place(self._length + row), *self._place(self._length + depth))
            for depth, row in enumerate(path)
            if row != depth
        ]
        if moves:
            table = moved(np.array(moves, dtype=np.int64), self._device)
            self._launcher.move_slots(table, self.shape.layers * self.shape.kv_heads * 2, self.shape.head, CHUNK)
        self._length += len(path)
        self._staged = ()

    def truncate(self, n: int) -> None:
        if not 0 <= n <= self._length:
            raise ValueError(f"cannot truncate a cache of {self._length} tokens to {n}")
        self._length = int(n)
        self._staged = ()
        keep = -(-self._length // CHUNK)
        dropped = self._pages[keep:]
        del self._pages[keep:]
        for page in dropped:
            page.holders -= 1

    def fork(self) -> CudaCache:
        other = CudaCache(self.shape, self._device, self._launcher)
        other._length = self._length
        for page in self._pages[: -(-self._length // CHUNK)]:
            page.holders += 1
            other._pages.append(page)
        return other

    def parts(self) -> list[tuple[int, int]]:
        """(identity, bytes) of every page: forks share pages, and equal identities are one page."""
        return [(page.data.data_ptr(), self.shape.floats * 4) for page in self._pages]

    def share(self, other: CudaCache, n: int) -> None:
        """See `ExactCache.share`."""
        if not 0 <= n <= min(self._length, other._length):
            raise ValueError(f"caches of {self._length} and {other._length} tokens share no {n}")
        for at in range(n // CHUNK):
            mine, theirs = self._pages[at], other._pages[at]
            if mine is not theirs:
                theirs.holders += 1
                self._pages[at] = theirs
                mine.holders -= 1

    def stage(self, parents: Sequence[int]) -> list[int]:
        """Make room for rows with these parents; returns the addresses of all its pages."""
        end = self._length + len(parents)
        self._staged = ()
        # In this order, so that an interrupt (or no memory left) at any point leaves a cache that can go on: a page is
        # counted before it is let go.
        for at in range(self._length // CHUNK, -(-end // CHUNK)):
            if at == len(self._pages):
                self._pages.append(Page(self._zeros()))
            elif self._pages[at].holders > 1:
                shared = self._pages[at]
                self._pages[at] = Page(shared.data.clone())
                shared.holders -= 1
        self._staged = parents
        return [page.data.data_ptr() for page in self._pages]

    def _zeros(self) -> Any:
        s = self.shape
        return torch.zeros(
            (s.layers, s.kv_heads, 2, CHUNK, s.head), dtype=torch.float32, device=self._device.torch_device
        )

    def _place(self, slot: int) -> tuple[int, int]:
        return self._pages[slot // CHUNK].data.data_ptr(), slot % CHUNK

    def last_layer(self) -> tuple[FloatArray, FloatArray]:
        """Rotated keys and values of the last layer for the committed tokens: float32 [kv_heads, length, head] each
        (copies, on the CPU). Key dimensions are in rotate-half order, the halves `head` / 2 apart."""
        pages = [page.data[-1].cpu().numpy() for page in self._pages[: -(-self._length // CHUNK)]]
        if not pages:
            empty = np.zeros((self.shape.kv_heads, 0, self.shape.head), dtype=np.float32)
            return empty, empty.copy()
        both = np.concatenate(pages, axis=2)[:, :, : self._length]
        return np.ascontiguousarray(both[:, 0]), np.ascontiguousarray(both[:, 1])
