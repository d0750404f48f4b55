"""Quantised GGUF rows to float32, at memory speed.

The same sums as ``gguf.quants.dequantize``, bit for bit (the tests hold the two side by side for every type), in
one compiled pass a type: numpy needs ten passes over temporaries, and a 0.5B model then takes 6 s instead of under
one. Block layouts are those of ggml (``ggml-quants.c``). Types without a kernel here go through ``gguf``.

Kernels run on the calling thread and release the interpreter lock.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import gguf
import numba
import numpy as np
import numpy.typing as npt

from exactspec.target.base import FloatArray
from exactspec.target.kernels.compile import load_one

Bytes: TypeAlias = npt.NDArray[np.uint8]
# A kernel takes blocks [n, bytes of a block], the float32 values of all float16 numbers [65536], and fills
# out [n, weights of a block]; True if all scales are finite (then all weights are: the integers are small).
Kernel: TypeAlias = Callable[[Bytes, FloatArray, FloatArray], bool]


def _part(function: Callable[..., Any]) -> Any:
    """What several kernels call: compiled into each of them."""
    return numba.njit(nogil=True, error_model="numpy")(function)


def half_values() -> FloatArray:
    """Float32 value of every float16 bit pattern [65536]. A table, because a worker thread may flush subnormals."""
    return np.arange(65536, dtype=np.uint16).view(np.float16).astype(np.float32)


@_part
def _half(half, block, at):  # type: ignore[no-untyped-def]
    return half[np.uint32(block[at]) | (np.uint32(block[at + 1]) << np.uint32(8))]


def _q8_0(blocks, half, out):  # type: ignore[no-untyped-def]
    ok = True
    for b in range(blocks.shape[0]):
        block, o = blocks[b], out[b]
        d = _half(half, block, 0)
        ok &= np.isfinite(d)
        for i in range(32):
            o[i] = np.float32(np.int8(block[2 + i])) * d
    return ok


def _q4_0(blocks, half, out):  # type: ignore[no-untyped-def]
    ok = True
    for b in range(blocks.shape[0]):
        block, o = blocks[b], out[b]
        d = _half(half, block, 0)
        ok &= np.isfinite(d)
        for i in range(16):
            o[i] = d * np.float32(np.int32(block[2 + i] & 15) - np.int32(8))
        for i in range(16):
            o[16 + i] = d * np.float32(np.int32(block[2 + i] >> 4) - np.int32(8))
    return ok


def _q4_1(blocks, half, out):  # type: ignore[no-untyped-def]
    ok = True
    for b in range(blocks.shape[0]):
        block, o = blocks[b], out[b]
        d, m = _half(half, block, 0), _half(half, block, 2)
        ok &= np.isfinite(d) and np.isfinite(m)
        for i in range(16):
            o[i] = d * np.float32(block[4 + i] & 15) + m
        for i in range(16):
            o[16 + i] = d * np.float32(block[4 + i] >> 4) + m
    return ok


@_part
def _word(block, at):  # type: ignore[no-untyped-def]
    w = np.uint32(block[at]) | (np.uint32(block[at + 1]) << np.uint32(8))
    return w | (np.uint32(block[at + 2]) << np.uint32(16)) | (np.uint32(block[at + 3]) << np.uint32(24))


def _q5_0(blocks, half, out):  # type: ignore[no-untyped-def]
    ok = True
    for b in range(blocks.shape[0]):
        block, o = blocks[b], out[b]
        d, high = _half(half, block, 0), _word(block, 2)
        ok &= np.isfinite(d)
        for i in range(16):
            q = np.uint32(block[6 + i] & 15) | (((high >> np.uint32(i)) & np.uint32(1)) << np.uint32(4))
            o[i] = d * np.float32(np.int32(q) - np.int32(16))
        for i in range(16):
            q = np.uint32(block[6 + i] >> 4) | (((high >> np.uint32(i + 16)) & np.uint32(1)) << np.uint32(4))
            o[16 + i] = d * np.float32(np.int32(q) - np.int32(16))
    return ok


def _q5_1(blocks, half, out):  # type: ignore[no-untyped-def]
    ok = True
    for b in range(blocks.shape[0]):
        block, o = blocks[b], out[b]
        d, m, high = _half(half, block, 0), _half(half, block, 2), _word(block, 4)
        ok &= np.isfinite(d) and np.isfinite(m)
        for i in range(16):
            q = np.uint32(block[8 + i] & 15) | (((high >> np.uint32(i)) & np.uint32(1)) << np.uint32(4))
            o[i] = d * np.float32(q) + m
        for i in range(16):
            q = np.uint32(block[8 + i] >> 4) | (((high >> np.uint32(i + 16)) & np.uint32(1)) << np.uint32(4))
            o[16 + i] = d * np.float32(q) + m
    return ok


def _q2_k(blocks, half, out):  # type: ignore[no-untyped-def]
    ok = True
    for b in range(blocks.shape[0]):
        block, o = blocks[b], out[b]
        d, dmin = _half(half, block, 80), _half(half, block, 82)
        ok &= np.isfinite(d) and np.isfinite(dmin)
        for g in range(16):  # 16 weights share a scale
            dl, ml = d * np.float32(block[g] & 15), dmin * np.float32(block[g] >> 4)
            at, shift = 16 + 32 * (g // 8) + 16 * (g % 2), np.uint32(2 * ((g // 2) % 4))
            for i in range(16):
                o[16 * g + i] = dl * np.float32((np.uint32(block[at + i]) >> shift) & np.uint32(3)) - ml
    return ok


def _q3_k(blocks, half, out):  # type: ignore[no-untyped-def]
    ok = True
    for b in range(blocks.shape[0]):
        block, o = blocks[b], out[b]
        d = _half(half, block, 108)
        ok &= np.isfinite(d)
        for g in range(16):
            low = np.int32(block[96 + g % 8] >> (4 * (g // 8))) & 15
            top = np.int32(block[104 + g % 4] >> (2 * (g // 4))) & 3
            dl = d * np.float32((low | (top << 4)) - 32)
            at, shift = 32 + 32 * (g // 8) + 16 * (g % 2), np.uint32(2 * ((g // 2) % 4))
            mask, bit = 16 * (g % 2), np.uint32(g // 2)
            for i in range(16):
                low2 = np.int32((np.uint32(block[at + i]) >> shift) & np.uint32(3))
                off = np.int32((np.uint32(block[mask + i]) >> bit) & np.uint32(1))  # a set bit means: no offset
                o[16 * g + i] = dl * np.float32(low2 - ((np.int32(1) - off) << 2))
    return ok


@_part
def _scale_min(block, at, j):  # type: ignore[no-untyped-def]
    """Scale and minimum j of 8, six bits each, packed in 12 bytes (Q4_K, Q5_K)."""
    if j < 4:
        return np.float32(block[at + j] & 63), np.float32(block[at + 4 + j] & 63)
    k = j - 4
    both = block[at + 8 + k]
    scale = (both & 15) | ((block[at + k] >> 2) & 48)
    least = (both >> 4) | ((block[at + 4 + k] >> 2) & 48)
    return np.float32(scale), np.float32(least)


def _q4_k(blocks, half, out):  # type: ignore[no-untyped-def]
    ok = True
    for b in range(blocks.shape[0]):
        block, o = blocks[b], out[b]
        d, dmin = _half(half, block, 0), _half(half, block, 2)
        ok &= np.isfinite(d) and np.isfinite(dmin)
        for j in range(4):
            s1, m1 = _scale_min(block, 4, 2 * j)
            s2, m2 = _scale_min(block, 4, 2 * j + 1)
            d1, n1, d2, n2 = d * s1, dmin * m1, d * s2, dmin * m2
            qs, o1, o2 = block[16 + 32 * j : 48 + 32 * j], o[64 * j : 64 * j + 32], o[64 * j + 32 : 64 * j + 64]
            for i in range(32):
                o1[i] = d1 * np.float32(qs[i] & 15) - n1
            for i in range(32):
                o2[i] = d2 * np.float32(qs[i] >> 4) - n2
    return ok


def _q5_k(blocks, half, out):  # type: ignore[no-untyped-def]
    ok = True
    for b in range(blocks.shape[0]):
        block, o = blocks[b], out[b]
        d, dmin = _half(half, block, 0), _half(half, block, 2)
        ok &= np.isfinite(d) and np.isfinite(dmin)
        high = block[16:48]
        for j in range(4):
            s1, m1 = _scale_min(block, 4, 2 * j)
            s2, m2 = _scale_min(block, 4, 2 * j + 1)
            d1, n1, d2, n2 = d * s1, dmin * m1, d * s2, dmin * m2
            qs, o1, o2 = block[48 + 32 * j : 80 + 32 * j], o[64 * j : 64 * j + 32], o[64 * j + 32 : 64 * j + 64]
            bit1, bit2 = np.uint32(2 * j), np.uint32(2 * j + 1)
            for i in range(32):
                top = ((np.uint32(high[i]) >> bit1) & np.uint32(1)) << np.uint32(4)
                o1[i] = d1 * np.float32(np.uint32(qs[i] & 15) | top) - n1
            for i in range(32):
                top = ((np.uint32(high[i]) >> bit2) & np.uint32(1)) << np.uint32(4)
                o2[i] = d2 * np.float32(np.uint32(qs[i] >> 4) | top) - n2
    return ok


def _q6_k(blocks, half, out):  # type: ignore[no-untyped-def]
    ok = True
    for b in range(blocks.shape[0]):
        block, o = blocks[b], out[b]
        d = _half(half, block, 208)
        ok &= np.isfinite(d)
        for g in range(16):
            scale = d * np.float32(np.int8(block[192 + g]))
            part, sub, side = g // 8, (g % 8) // 2, g % 2  # 128 weights a part, 32 a sub-part, 16 a group
            low = block[64 * part + 32 * (sub % 2) + 16 * side : 64 * part + 32 * (sub % 2) + 16 * side + 16]
            top = block[128 + 32 * part + 16 * side : 128 + 32 * part + 16 * side + 16]
            shift, shift2, og = np.uint32(4 * (sub // 2)), np.uint32(2 * sub), o[16 * g : 16 * g + 16]
            for i in range(16):
                q = (np.uint32(low[i]) >> shift) & np.uint32(15)
                q |= ((np.uint32(top[i]) >> shift2) & np.uint32(3)) << np.uint32(4)
                og[i] = scale * np.float32(np.int32(q) - np.int32(32))
    return ok


_KERNELS: dict[gguf.GGMLQuantizationType, Kernel] = {
    gguf.GGMLQuantizationType.Q8_0: _q8_0,
    gguf.GGMLQuantizationType.Q4_0: _q4_0,
    gguf.GGMLQuantizationType.Q4_1: _q4_1,
    gguf.GGMLQuantizationType.Q5_0: _q5_0,
    gguf.GGMLQuantizationType.Q5_1: _q5_1,
    gguf.GGMLQuantizationType.Q2_K: _q2_k,
    gguf.GGMLQuantizationType.Q3_K: _q3_k,
    gguf.GGMLQuantizationType.Q4_K: _q4_k,
    gguf.GGMLQuantizationType.Q5_K: _q5_k,
    gguf.GGMLQuantizationType.Q6_K: _q6_k,
}


def is_readable(kind: gguf.GGMLQuantizationType) -> bool:
    """Whether `Dequantiser` knows this type; the others, it asks ``gguf`` with one block of zeros."""
    if kind in _KERNELS or kind in (gguf.GGMLQuantizationType.F32, gguf.GGMLQuantizationType.F16):
        return True
    block = np.zeros((1, gguf.GGML_QUANT_SIZES[kind][1]), dtype=np.uint8)
    try:
        gguf.quants.dequantize(block, kind)
    except NotImplementedError:
        return False
    return True


def all_finite(values: FloatArray) -> bool:
    """Whether no value is NaN or infinite; no temporary array is made (minimum and maximum pass NaN on)."""
    return values.size == 0 or bool(np.isfinite(values.min()) and np.isfinite(values.max()))


class Dequantiser:
    """Stored rows to float32, whatever their type. A type's kernel is compiled at its first use, a second or less, and
    kept with the other kernels (see kernels.compile); `home` is where. Threads may share it."""

    __slots__ = ("_compiled", "_half", "_home", "_lock")

    def __init__(self, home: Path | None = None) -> None:
        self._home, self._half, self._lock = home, half_values(), threading.Lock()
        self._compiled: dict[gguf.GGMLQuantizationType, Kernel] = {}

    def __call__(self, raw: Bytes, kind: gguf.GGMLQuantizationType) -> tuple[FloatArray, bool]:
        """Rows of stored bytes [rows, row bytes] as float32 [rows, columns], and whether all values are finite.

        A row is a whole number of blocks. Raises NotImplementedError for a type that neither this module nor ``gguf``
        reads.
        """
        if kind not in _KERNELS:
            values = np.ascontiguousarray(gguf.quants.dequantize(np.ascontiguousarray(raw), kind), dtype=np.float32)
            if not values.flags.writeable:  # float32 is the file's own memory, which compiled callers do not take
                values = values.copy()
            return values, all_finite(values)
        weights, size = gguf.GGML_QUANT_SIZES[kind]
        blocks = np.ascontiguousarray(raw).reshape(-1, size)
        out = np.empty((len(blocks), weights), dtype=np.float32)
        finite = bool(self._kernel(kind)(blocks, self._half, out))
        return out.reshape(len(raw), -1), finite

    def _kernel(self, kind: gguf.GGMLQuantizationType) -> Kernel:
        with self._lock:
            if kind not in self._compiled:
                from numba import types

                # Read-only blocks: arrays that may be written are taken, too.
                blocks = types.Array(types.uint8, 2, "C", readonly=True)
                signature = types.boolean(blocks, types.float32[::1], types.float32[:, ::1])
                self._compiled[kind] = load_one(_KERNELS[kind], signature, home=self._home)
            return self._compiled[kind]
