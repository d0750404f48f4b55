"""What this machine can do at most, in loops of the kernels' own kind: read memory, multiply and add.

Each function is one thread's part of a measurement and returns something that depends on all of its work, so that no
compiler may leave it out. Addresses are int64, sizes in bytes. See `exactspec.bench.machine` for the clocks.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from exactspec.target.kernels import isa
from exactspec.target.kernels import simd as v
from exactspec.target.kernels.matrix import nibble_product, unit_product

READ_STEP = 512  # bytes an iteration of `read_block`


@njit(nogil=True, error_model="numpy")
def read_block(start, size):
    """Read `size` bytes (a multiple of `READ_STEP`) once, in order: eight independent integer sums."""
    s0 = s1 = s2 = s3 = s4 = s5 = s6 = s7 = v.splat_i32(np.int32(0))
    for at in range(start, start + size, READ_STEP):
        s0 = v.add_i32(s0, v.load_i32(at))
        s1 = v.add_i32(s1, v.load_i32(at + 64))
        s2 = v.add_i32(s2, v.load_i32(at + 128))
        s3 = v.add_i32(s3, v.load_i32(at + 192))
        s4 = v.add_i32(s4, v.load_i32(at + 256))
        s5 = v.add_i32(s5, v.load_i32(at + 320))
        s6 = v.add_i32(s6, v.load_i32(at + 384))
        s7 = v.add_i32(s7, v.load_i32(at + 448))
    low = v.add_i32(v.add_i32(s0, s1), v.add_i32(s2, s3))
    high = v.add_i32(v.add_i32(s4, s5), v.add_i32(s6, s7))
    return v.sum_lanes_i32(v.add_i32(low, high))


FMA_SUMS = (6, 12)  # independent sums of 16 lanes: 6 fill AVX2's registers, 12 cover the latency of AVX-512


@njit(nogil=True, error_model="numpy")
def multiply_add_6(times, x):
    """`times` rounds of 6 fused multiply-adds of 16 lanes."""
    y = v.splat(np.float32(0.5))
    a = v.splat(x)
    s0 = s1 = s2 = s3 = s4 = s5 = a
    for _ in range(times):
        s0, s1, s2 = v.fma(s0, y, a), v.fma(s1, y, a), v.fma(s2, y, a)
        s3, s4, s5 = v.fma(s3, y, a), v.fma(s4, y, a), v.fma(s5, y, a)
    return v.sum_lanes(v.add(v.add(v.add(s0, s1), v.add(s2, s3)), v.add(s4, s5)))


@njit(nogil=True, error_model="numpy")
def multiply_add_12(times, x):
    """`times` rounds of 12 fused multiply-adds of 16 lanes."""
    y = v.splat(np.float32(0.5))
    a = v.splat(x)
    s0 = s1 = s2 = s3 = s4 = s5 = s6 = s7 = s8 = s9 = s10 = s11 = a
    for _ in range(times):
        s0, s1, s2 = v.fma(s0, y, a), v.fma(s1, y, a), v.fma(s2, y, a)
        s3, s4, s5 = v.fma(s3, y, a), v.fma(s4, y, a), v.fma(s5, y, a)
        s6, s7, s8 = v.fma(s6, y, a), v.fma(s7, y, a), v.fma(s8, y, a)
        s9, s10, s11 = v.fma(s9, y, a), v.fma(s10, y, a), v.fma(s11, y, a)
    low = v.add(v.add(v.add(s0, s1), v.add(s2, s3)), v.add(s4, s5))
    high = v.add(v.add(v.add(s6, s7), v.add(s8, s9)), v.add(s10, s11))
    return v.sum_lanes(v.add(low, high))


@njit(nogil=True, error_model="numpy")
def _products(isa, frames, weights, width, wide, rows, out, times):
    f = frames[0]
    for _ in range(times):
        unit_product(isa, f, weights, width, wide, 0, rows, out)


def unit_products(kind: str) -> Any:
    """``run(frames, weights, width, wide, rows, out, times)``: one unit of 32 channels over `width` inputs for `rows`
    rows of the frame's activations, `times` times, by the tiles of the instruction set `kind`. Compiles when called."""
    tag = getattr(isa, kind.replace("-", "_"))

    @njit(nogil=True, error_model="numpy")
    def run(frames, weights, width, wide, rows, out, times):
        _products(tag(), frames, weights, width, wide, rows, out, times)

    return run


@njit(nogil=True, error_model="numpy")
def _nibble_products(isa, frames, weights, form, width, rows, out, times):
    f = frames[0]
    for _ in range(times):
        nibble_product(isa, f, weights, form, width, 0, rows, out)


def unit_nibble_products(kind: str) -> Any:
    """`unit_products` of four-bit weights: ``run(frames, weights, form, width, rows, out, times)``."""
    tag = getattr(isa, kind.replace("-", "_"))

    @njit(nogil=True, error_model="numpy")
    def run(frames, weights, form, width, rows, out, times):
        _nibble_products(tag(), frames, weights, form, width, rows, out, times)

    return run


def tallest_tile(kind: str) -> int:
    """Rows of the instruction set's tallest tile."""
    return isa.SHAPES[kind].rows


def tallest_nibble_tile(kind: str) -> int:
    """The same of four-bit weights."""
    return len(isa.NIBBLE_COLUMNS[kind])


def wide_costs_nothing(kind: str) -> bool:
    """Whether wide activations take no more work than bytes, so that they are what is used."""
    return isa.SHAPES[kind].planes == 1
