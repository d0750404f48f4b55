"""Keys and values of one request, in pages of 128 slots.

A page holds one chunk of 128 positions of all layers, so growing copies nothing, and a fork shares every page
that is full: pages wholly below `length` are never written. A page that is about to be written while another
cache still holds it is copied first.

Row i of a forward is staged in slot ``length + i``. `keep` moves the accepted rows down to their positions;
everything at and above `length` is scratch. How a page is laid out, and in which types: kernels.pages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from exactspec.target.base import FloatArray, IntArray
from exactspec.target.cache_types import DEFAULT_CACHE_DTYPE, cache_type
from exactspec.target.kernels.float_tile import PANEL
from exactspec.target.kernels.pages import CHUNK
from exactspec.target.mapped_memory import zeros

STORED: dict[str, type[np.generic]] = {"float32": np.float32, "bfloat16": np.uint16, "int8": np.int8}


@dataclass(frozen=True, slots=True)
class PageShape:
    """`layers`, `kv_heads`, `head_pad` (dimensions of a key or value), `dtype`: one of `CACHE_TYPES`."""

    layers: int
    kv_heads: int
    head_pad: int
    dtype: str = DEFAULT_CACHE_DTYPE

    @property
    def head_bytes(self) -> int:
        return CHUNK * cache_type(self.dtype).token_bytes(1, 1, self.head_pad)

    @property
    def layer_bytes(self) -> int:
        return self.kv_heads * self.head_bytes

    @property
    def page_bytes(self) -> int:
        return self.layers * self.layer_bytes


class Page:
    """uint8 [page_bytes] from zeros (a slot never written must be finite), with the number of caches that hold it."""

    __slots__ = ("address", "data", "holders")

    def __init__(self, nbytes: int, copied: Page | None = None) -> None:
        self.data = zeros(nbytes)
        if copied is not None:
            self.data[:] = copied.data
        self.address = self.data.ctypes.data
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

    def parts(self) -> list[tuple[int, int]]:
        """(identity, bytes) of every page: forks share pages, and equal identities are one page."""
        return [(page.address, self.shape.page_bytes) for page in self._pages]

    def share(self, other: ExactCache, n: int) -> None:
        """Hold the full pages of `other`'s first n tokens in place of its own, which must be of the same tokens: then
        they hold the same bits, and need not be there twice. Raises ValueError if either is shorter."""
        if not 0 <= n <= min(self._length, other._length):
            raise ValueError(f"caches of {self._length} and {other._length} tokens share no {n}")
        for at in range(n // CHUNK):
            mine, theirs = self._pages[at], other._pages[at]
            if mine is not theirs:
                theirs.holders += 1
                self._pages[at] = theirs
                mine.holders -= 1
                self._set_address(at)

    def stage(self, parents: Sequence[int]) -> int:
        """Make room for rows with these parents; returns the address of the page addresses (int64 [pages])."""
        end = self._length + len(parents)
        self._staged = ()
        first, after = self._length // CHUNK, -(-end // CHUNK)
        # In this order, so that an interrupt (or no memory left) at any point leaves a cache that can go on: a page is
        # counted before it is let go, and the addresses of all pages that may be written are set anew.
        for at in range(first, after):
            if at == len(self._pages):
                self._pages.append(Page(self.shape.page_bytes))
            elif self._pages[at].holders > 1:
                shared = self._pages[at]
                self._pages[at] = Page(self.shape.page_bytes, shared)
                shared.holders -= 1
            self._set_address(at)
        self._staged = parents
        return self._table

    @property
    def addresses(self) -> npt.NDArray[np.int64]:
        """Addresses of the pages, one for each 128 positions (a view; valid until the cache changes)."""
        return self._addresses[: len(self._pages)]

    def _set_address(self, at: int) -> None:
        if at >= len(self._addresses):
            self._addresses = np.concatenate([self._addresses, np.zeros_like(self._addresses)])
        self._table = self._addresses.ctypes.data
        self._addresses[at] = self._pages[at].address

    def _parts(self, at: int) -> tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[np.float32]]:
        """Views of a page: keys [layers, kv_heads, slot / 16, dim, 16], values [layers, kv_heads, dim / 16, slot, 16],
        scales [layers, kv_heads, 2, slot] (none but for int8)."""
        s = self.shape
        data = self._pages[at].data.reshape(s.layers, s.kv_heads, s.head_bytes)
        dtype = np.dtype(STORED[s.dtype])
        half = CHUNK * s.head_pad * dtype.itemsize
        keys = data[..., :half].view(dtype).reshape(s.layers, s.kv_heads, CHUNK // PANEL, s.head_pad, PANEL)
        values = data[..., half : 2 * half].view(dtype).reshape(s.layers, s.kv_heads, s.head_pad // PANEL, CHUNK, PANEL)
        scales = data[..., 2 * half :].view(np.float32).reshape(s.layers, s.kv_heads, 2, -1)
        return keys, values, scales

    def _copy_slot(self, source: int, target: int) -> None:
        from_keys, from_values, from_scales = self._parts(source // CHUNK)
        to_keys, to_values, to_scales = self._parts(target // CHUNK)
        a, b = source % CHUNK, target % CHUNK
        place = _places(self.shape.dtype)
        to_keys[:, :, b // PANEL, :, place[b % PANEL]] = from_keys[:, :, a // PANEL, :, place[a % PANEL]]
        to_values[:, :, :, b] = from_values[:, :, :, a]
        if from_scales.size:
            to_scales[..., b] = from_scales[..., a]

    def last_layer(self) -> tuple[FloatArray, FloatArray]:
        """Rotated keys and values of the last layer for the committed tokens, as attention reads them: float32
        [kv_heads, length, head_pad] each (copies). Key dimensions are in rotate-half order, the halves
        `head_pad` / 2 apart."""
        s = self.shape
        empty = np.zeros((s.kv_heads, 0, s.head_pad), dtype=np.float32)
        chunks = range(-(-self._length // CHUNK))
        all_keys = [empty, *(self.last_keys(at) for at in chunks)]
        all_values = [empty, *(self._last_values(at) for at in chunks)]
        return (
            np.concatenate(all_keys, axis=1)[:, : self._length],
            np.concatenate(all_values, axis=1)[:, : self._length],
        )

    def last_keys(self, at: int) -> FloatArray:
        """The keys of `last_layer` of the `at`-th 128 positions: float32 [kv_heads, 128, head_pad]. What lies behind
        `length` is whatever was there."""
        s = self.shape
        keys, _, scales = (part[-1] for part in self._parts(at))
        k = _widened(keys[..., _places(s.dtype)].transpose(0, 1, 3, 2).reshape(s.kv_heads, CHUNK, s.head_pad))
        return k * scales[:, 0, :, None] if scales.size else k

    def _last_values(self, at: int) -> FloatArray:
        s = self.shape
        _, values, scales = (part[-1] for part in self._parts(at))
        v = _widened(values[..., _places(s.dtype)].transpose(0, 2, 1, 3).reshape(s.kv_heads, CHUNK, s.head_pad))
        return v * scales[:, 1, :, None] if scales.size else v


def _places(dtype: str) -> list[int]:
    """Where element i of a panel's 16 lies (see kernels.float_tile)."""
    return [2 * (i % 8) + i // 8 for i in range(PANEL)] if dtype == "bfloat16" else list(range(PANEL))


def _widened(stored: npt.NDArray[Any]) -> FloatArray:
    if stored.dtype == np.uint16:
        return (stored.astype(np.uint32) << 16).view(np.float32)
    return stored.astype(np.float32)
