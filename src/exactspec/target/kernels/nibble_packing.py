"""From a file's four-bit blocks to units of the products (see nibbles): moves bits, rounds nothing.

Block layouts are those of ggml: Q4_0 and Q4_1 have 32 weights, a float16 scale (and minimum) and 16 bytes whose low
halves are the first 16 weights; Q4_K has 256 weights in 8 such blocks.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from exactspec.target.kernels.nibbles import BLOCK, NIBBLE_BYTES, SIX, SUPER, SUPER_BYTES
from exactspec.target.kernels.products import UNIT

_HALF_BLOCK = NIBBLE_BYTES + 4 * UNIT
_SIX_BLOCK = NIBBLE_BYTES + 2 * UNIT
_GROUP_BYTES = 144  # of Q4_K: 256 weights
SUPER_BYTES_SIX = SUPER_BYTES[SIX]


@njit(nogil=True, error_model="numpy")
def _byte(row, at):
    return np.int64(row[at])  # or numba mixes signs, and ends at float64


@njit(nogil=True, error_model="numpy")
def _two(row, at):
    return _byte(row, at) | _byte(row, at + 1) << 8


@njit(nogil=True, error_model="numpy")
def _put_two(unit, at, value):
    unit[at], unit[at + 1] = np.uint8(value & 255), np.uint8(value >> 8)


@njit(nogil=True, error_model="numpy")
def _put_nibble(unit, at, lane, k, value):
    """Weight k of a block whose stored form begins at `at`."""
    byte = at + 4 * UNIT * (k >> 3) + 4 * lane + (k & 3)
    unit[byte] = np.uint8(_byte(unit, byte) | (value << 4 if k & 4 else value))


@njit(nogil=True, error_model="numpy")
def _eightfold(half):
    """8 times a float16, as bits; below 2**13 in size it is exact."""
    sign, size = half & 0x8000, half & 0x7FFF
    if size >= 0x400:
        return sign | (size + 0xC00)
    size <<= 3  # subnormal: fraction bits alone
    exponent = 0
    while size >= 0x800:
        size >>= 1  # drops a zero that the shift above made
        exponent += 1
    return sign | (size + (exponent << 10))


def pack_half(rows, offset, places, stored):
    """Q4_1 rows (`offset` 0) or Q4_0 rows (`offset` 8) uint8 [n, bytes] into channels `places` int64 [n] of `stored`
    uint8 [units, bytes of a unit], zeros before. Minima are float16 with Q4_1's sign turned, 8 * scale with Q4_0."""
    size = 18 if offset else 20
    for r in range(rows.shape[0]):
        unit, lane, row = stored[places[r] // UNIT], places[r] % UNIT, rows[r]
        for block in range(rows.shape[1] // size):
            start, at = block * size, block * _HALF_BLOCK
            scale = _two(row, start)
            minimum = _eightfold(scale) if offset else _two(row, start + 2) ^ 0x8000
            _put_two(unit, at + NIBBLE_BYTES + 2 * lane, scale)
            _put_two(unit, at + NIBBLE_BYTES + 2 * UNIT + 2 * lane, minimum)
            quants = start + size - BLOCK // 2
            for i in range(BLOCK // 2):
                both = _byte(row, quants + i)
                _put_nibble(unit, at, lane, i, both & 15)
                _put_nibble(unit, at, lane, i + BLOCK // 2, both >> 4)


def pack_six(rows, places, stored):
    """Q4_K rows, as `pack_half`. Multiples of scales and minima, six bits each, are packed in 12 bytes of a group."""
    for r in range(rows.shape[0]):
        unit, lane, row = stored[places[r] // UNIT], places[r] % UNIT, rows[r]
        for group in range(rows.shape[1] // _GROUP_BYTES):
            start, at = group * _GROUP_BYTES, group * SUPER_BYTES_SIX
            _put_two(unit, at + 2 * lane, _two(row, start))
            _put_two(unit, at + 2 * UNIT + 2 * lane, _two(row, start + 2))
            for j in range(SUPER):
                if j < 4:
                    scale, minimum = _byte(row, start + 4 + j) & 63, _byte(row, start + 8 + j) & 63
                else:
                    both = _byte(row, start + 8 + j)
                    scale = (both & 15) | ((_byte(row, start + j) >> 2) & 48)
                    minimum = (both >> 4) | ((_byte(row, start + 4 + j) >> 2) & 48)
                block = at + 4 * UNIT + j * _SIX_BLOCK
                unit[block + NIBBLE_BYTES + lane] = np.uint8(scale)
                unit[block + NIBBLE_BYTES + UNIT + lane] = np.uint8(minimum)
                quants = start + 16 + BLOCK * (j >> 1)
                for k in range(BLOCK):
                    both = _byte(row, quants + k)
                    _put_nibble(unit, block, lane, k, both >> 4 if j & 1 else both & 15)
