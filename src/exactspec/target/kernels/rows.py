"""Row kernels: embedding, norm, quantisation. One row at a time, so a row's bits are its own.

Rows are float32, padded with zeros to a multiple of 16. Sums run in 16 lanes and are folded by a fixed tree.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from exactspec.target.kernels import simd as v
from exactspec.target.kernels.isa import NARROW_LIMIT, WIDE_LIMIT
from exactspec.target.kernels.nibbles import BLOCK
from exactspec.target.kernels.products import UNIT, activation_bytes, store_narrow, store_wide

SMALLEST_SCALE = np.float32(1e-8)  # of a row of zeros
LARGEST = np.float32(3e38)  # a row's values are clamped to stay finite


@njit(nogil=True, error_model="numpy")
def embed_row(weights: int, scales: int, token: int, width: int, out: int) -> None:
    """out [width] float32 = the token's row of the (stored, int8) embedding."""
    unit, lane = token // UNIT, token % UNIT
    at = weights + unit * UNIT * width + 4 * lane
    scale = v.splat(v.load_f32(scales + 4 * token))
    for k in range(0, width, 16):
        row = v.gather_weights(at + 32 * k, 4 * UNIT)
        v.store(out + 4 * k, v.mul(v.to_float(row), scale))


@njit(nogil=True, error_model="numpy")
def quantise_row(isa, x: int, width: int, group: int, wide: int, q: int, plane: int, scales: int, offsets: int) -> None:
    """By groups of `group` values (a multiple of 16): q = round(x * limit / max|x|), scale float32 = max|x| / limit,
    offset int32 = -128 * sum(q), which undoes the weights' unsigned storage (see products). limit: 127, or
    `WIDE_LIMIT` if `wide`. q lies as the instruction set wants it (see isa), planes `plane` bytes apart."""
    limit = np.float32(WIDE_LIMIT if wide else NARROW_LIMIT)
    high, low = v.splat(limit), v.splat(-limit)
    for start in range(0, width, group):
        end, index = min(start + group, width), start // group
        peak = v.splat(np.float32(0))
        for k in range(start, end, 16):
            peak = v.maximum(v.absolute(v.load(x + 4 * k)), peak)
        most = v.max_lanes(peak)
        if most < SMALLEST_SCALE:
            most = SMALLEST_SCALE
        if most > LARGEST:
            most = LARGEST
        inverse = v.splat(limit / most)
        total = v.splat_i32(np.int32(0))
        for k in range(start, end, 16):
            # maximum() and minimum() turn a NaN into the bound: garbage stays finite and harms no other row
            y = v.minimum(v.maximum(v.mul(v.load(x + 4 * k), inverse), low), high)
            whole = v.round_i32(y)
            total = v.add_i32(total, whole)
            at = q + k * activation_bytes(isa)
            if wide:
                store_wide(isa, at, plane, whole)
            else:
                store_narrow(isa, at, whole)
        v.store_f32(scales + 4 * index, np.float32(most / limit))
        v.store_i32s(offsets + 4 * index, np.int32(v.sum_lanes_i32(total) * -128))


@njit(nogil=True, error_model="numpy")
def quantise_blocks(x: int, width: int, q: int, scales: int, sums: int) -> None:
    """For four-bit weights, by blocks of 32 values: q int8 = round(x * 127 / max|x|) in order, scale float32 = max|x| /
    127, sum float32 = -scale * sum(q), which the minima are multiplied with (see nibbles). `width`: a multiple of
    32."""
    limit = np.float32(NARROW_LIMIT)
    high, low = v.splat(limit), v.splat(-limit)
    for start in range(0, width, BLOCK):
        a, b = v.load(x + 4 * start), v.load(x + 4 * start + 64)
        zero = v.splat(np.float32(0))
        most = v.max_lanes(v.maximum(v.absolute(b), v.maximum(v.absolute(a), zero)))
        if most < SMALLEST_SCALE:
            most = SMALLEST_SCALE
        if most > LARGEST:
            most = LARGEST
        inverse = v.splat(limit / most)
        first = v.round_i32(v.minimum(v.maximum(v.mul(a, inverse), low), high))
        second = v.round_i32(v.minimum(v.maximum(v.mul(b, inverse), low), high))
        v.store_i8(q + start, first)
        v.store_i8(q + start + 16, second)
        scale = np.float32(most / limit)
        total = np.float32(v.sum_lanes_i32(v.add_i32(first, second)))
        at = 4 * (start // BLOCK)
        v.store_f32(scales + at, scale)
        v.store_f32(sums + at, np.float32(-scale * total))


@njit(nogil=True, error_model="numpy")
def norm_row(x: int, weight: int, count: int, width: int, eps: float, out: int) -> None:
    """RMS norm (arXiv 1910.07467): out = x / sqrt(mean(x**2) + eps) * weight; `count` real values of `width`."""
    squares = v.splat(np.float32(0))
    for k in range(0, width, 16):
        a = v.load(x + 4 * k)
        squares = v.fma(a, a, squares)
    mean = np.float32(v.sum_lanes(squares) / np.float32(count))
    gain = v.splat(np.float32(np.float32(1) / v.sqrt(np.float32(mean + eps))))
    for k in range(0, width, 16):
        v.store(out + 4 * k, v.mul(v.mul(v.load(x + 4 * k), gain), v.load(weight + 4 * k)))


@njit(nogil=True, error_model="numpy")
def add_row(x: int, width: int, out: int) -> None:
    """out += x."""
    for k in range(0, width, 16):
        v.store(out + 4 * k, v.add(v.load(out + 4 * k), v.load(x + 4 * k)))
