"""Keys and values of one request, in pages of 128 slots.

A page holds one chunk of 128 positions of all layers, so growing copies nothing, and a fork shares every page
that is full: pages wholly below `length` are never written. A page that is about to be written while another
cache still holds it is copied first.

Row i of a forward is staged in slot ``length + i``. `keep` moves the accepted rows down to their positions;
everything at and above `length` is scratch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from exactspec.target.base import FloatArray, IntArray
from exactspec.target.kernels.attention import CHUNK


@dataclass(frozen=True, slots=True)
class PageShape:
    """`layers`, `kv_heads`, `head_pad` (floats per key or value)."""

    layers: int
    kv_heads: int
    head_pad: int

    @property
    def head_bytes(self) -> int:
        return 2 * self.head_pad * CHUNK * 4

    @property
    def layer_bytes(self) -> int:
        return self.kv_heads * self.head_bytes

    @property
    def page_bytes(self) -> int:
        return self.layers * self.layer_bytes


class Page:
    """float32 [layers, kv_heads, 2, head_pad * 128] from zeros (a slot never written must be finite), with the
    number of caches that hold it."""

    __slots__ = ("address", "data", "holders")

    def __init__(self, data: FloatArray) -> None:
        self.data = data
        self.address = data.ctypes.data
        self.holders = 1


class ExactCache:
    """See `exactspec.target.base.Cache`. Not thread-safe; `fork` and `release` of related caches neither."""

    def __init__(self, shape: PageShape) -> None:
        self.shape = shape
        self._length = 0
        self._pages: list[Page] = []
        self._addresses: npt.NDArray[np.int64] = np.zeros(8, dtype=np.int64)
        self._table = self._addresses.ctypes.data
        self._staged: Sequence[int] = ()  # parents of the staged rows

    @property
    def length(self) -> int:
        return self._length

    @property
    def nbytes(self) -> int:
        """Bytes of the pages it holds; pages shared with forks count fully."""
        return len(self._pages) * self.shape.page_bytes

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
        for depth, row in enumerate(path):
            if row != depth:
                self._copy_slot(self._length + row, self._length + depth)
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

    def fork(self) -> ExactCache:
        other = ExactCache(self.shape)
        other._length = self._length
        other._addresses = self._addresses.copy()
        other._table = other._addresses.ctypes.data
        for page in self._pages[: -(-self._length // CHUNK)]:
            page.holders += 1
            other._pages.append(page)
        return other

    def stage(self, parents: Sequence[int]) -> int:
        """Make room for rows with these parents; returns the address of the page addresses (int64 [pages])."""
        end = self._length + len(parents)
        self._staged = ()
        first, after = self._length // CHUNK, -(-end // CHUNK)
        # In this order, so that an interrupt (or no memory left) at any point leaves a cache that can go on: a page is
        # counted before it is let go, and the addresses of all pages that may be written are set anew.
        for at in range(first, after):
            if at == len(self._pages):
                self._pages.append(Page(np.zeros(self.shape.page_bytes // 4, dtype=np.float32)))
            elif self._pages[at].holders > 1:
                shared = self._pages[at]
                self._pages[at] = Page(shared.data.copy())
                shared.holders -= 1
            self._set_address(at)
        self._staged = parents
        return self._table

    def _set_address(self, at: int) -> None:
        if at >= len(self._addresses):
            self._addresses = np.concatenate([self._addresses, np.zeros_like(self._addresses)])
        self._table = self._addresses.ctypes.data
        self._addresses[at] = self._pages[at].address

    def _halves(self, at: int) -> tuple[FloatArray, FloatArray]:
        s = self.shape
        data = self._pages[at].data.reshape(s.layers, s.kv_heads, 2, s.head_pad * CHUNK)
        keys = data[:, :, 0].reshape(s.layers, s.kv_heads, s.head_pad, CHUNK)
        values = data[:, :, 1].reshape(s.layers, s.kv_heads, CHUNK, s.head_pad)
        return keys, values

    def _copy_slot(self, source: int, target: int) -> None:
        from_keys, from_values = self._halves(source // CHUNK)
        to_keys, to_values = self._halves(target // CHUNK)
        to_keys[..., target % CHUNK] = from_keys[..., source % CHUNK]
        to_values[:, :, target % CHUNK] = from_values[:, :, source % CHUNK]

    def last_layer(self) -> tuple[FloatArray, FloatArray]:
        """Rotated keys and values of the last layer for the committed tokens: float32 [kv_heads, length, head_pad]
        each (copies). Key dimensions are in rotate-half order, the halves `head_pad` / 2 apart."""
        pages = range(-(-self._length // CHUNK))
        halves = [self._halves(at) for at in pages]
        if not halves:
            empty = np.zeros((self.shape.kv_heads, 0, self.shape.head_pad), dtype=np.float32)
            return empty, empty.copy()
        keys = np.concatenate([k[-1].swapaxes(1, 2) for k, _ in halves], axis=1)[:, : self._length]
        values = np.concatenate([v[-1] for _, v in halves], axis=1)[:, : self._length]
        return keys, values
