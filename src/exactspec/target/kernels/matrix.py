"""One unit of a matrix's product, 32 channels, for all rows: what weights it has, how often they are read."""

from __future__ import annotations

from numba import njit

from exactspec.target.kernels import simd as v
from exactspec.target.kernels.frame import MATRIX
from exactspec.target.kernels.nibbles import (
    BLOCK,
    HALF,
    SIX,
    SUPER,
    SUPER_BYTES,
    full_nibble_rows,
    half_tile,
    most_nibble_rows,
    six_tile,
)
from exactspec.target.kernels.products import (
    UNIT,
    activation_bytes,
    full_rows,
    most_rows,
    most_wide_rows,
    tile,
    wide_tile,
)

AHEAD = 512  # bytes; measured: 8 rows take 1.15x of 1 row with it on VNNI, 1.35x without
NIBBLE_AHEAD = 1024  # the same of four-bit weights, whose blocks are longer
K_BLOCK = 1024  # inputs of a block of weights (32 kB), which stays in the nearest caches for all passes over it
NIBBLE_K_BLOCK = 1024  # the same of four-bit weights (19 or 20 kB); a multiple of 256
HALF_BYTES, SIX_BYTES = SUPER_BYTES[HALF], SUPER_BYTES[SIX]
STORED, SCALE, WIDE, INT8_UNITS = (8 * MATRIX[name] for name in ("stored", "scale", "wide", "int8_units"))
NIBBLES, NIBBLE_UNITS, NIBBLE_FORM = (8 * MATRIX[name] for name in ("nibbles", "nibble_units", "nibble_form"))


@njit(nogil=True, error_model="numpy")
def unit_product(isa, f, weights, width, wide, unit, rows, out):
    """out float32 [rows, 32] = the unit's channels for the first `rows` rows of activations, without the channels'
    scales; weights are read once from memory. Activations, their scales and offsets are the frame's, wide ones if
    `wide`."""
    w = weights + unit * UNIT * width
    quads = width // 4
    group = f.wide_group if wide else f.narrow_group
    tallest = most_wide_rows(isa) if wide else most_rows(isa)
    passes = (rows + tallest - 1) // tallest
    # One pass over whole units streams: it fetches a little ahead. Otherwise a block of weights is read several times,
    # and every pass over it fetches its share of the next block, so that memory never waits.
    spread = full_rows(isa) < most_rows(isa) and rows > full_rows(isa)
    step = quads if passes == 1 and not spread else K_BLOCK // group * group // 4
    for k in range(0, quads, step):
        count = min(step, quads - k)
        block = w + k * 4 * UNIT
        for p in range(passes):
            r0, r1 = rows * p // passes, rows * (p + 1) // passes
            cell = 4 * (r0 * f.groups + 4 * k // group)
            a = f.activations + r0 * f.activation_stride + 4 * k * activation_bytes(isa)
            ahead, pace = block + AHEAD, 4 * UNIT
            if spread:
                ahead, pace = block + count * 4 * UNIT * (passes + p) // passes, 4 * UNIT // passes
            if wide:
                wide_tile(
                    isa, r1 - r0, block, a, f.activation_stride, f.plane, count, group // 4,
                    f.scale + cell, f.offset + cell, f.groups, out + r0 * 4 * UNIT, k, ahead, pace,
                )  # fmt: skip
            else:
                tile(
                    isa, r1 - r0, block, a, f.activation_stride, f.plane, count, group // 4,
                    f.scale + cell, f.offset + cell, f.groups, out + r0 * 4 * UNIT, k, ahead, pace,
                )  # fmt: skip


@njit(nogil=True, error_model="numpy")
def nibble_product(isa, f, weights, form, width, unit, rows, out):
    """`unit_product` of a unit with four-bit weights, whose activations are the frame's bytes in blocks of 32."""
    eight = HALF_BYTES if form == HALF else SIX_BYTES
    w = weights + unit * (eight * (width // BLOCK) // SUPER)
    tallest = most_nibble_rows(isa)
    passes = (rows + tallest - 1) // tallest
    spread = full_nibble_rows(isa) < tallest and rows > full_nibble_rows(isa)
    step = width if passes == 1 and not spread else NIBBLE_K_BLOCK
    for k in range(0, width, step):
        count = min(step, width - k) // BLOCK
        start, size = w + eight * (k // BLOCK) // SUPER, eight * count // SUPER
        for p in range(passes):
            r0, r1 = rows * p // passes, rows * (p + 1) // passes
            cell = 4 * (r0 * f.blocks + k // BLOCK)
            a = f.block_activations + r0 * f.block_stride + k
            ahead, pace = start + NIBBLE_AHEAD, eight // SUPER
            if spread:
                ahead, pace = start + size * (passes + p) // passes, eight // SUPER // passes
            if form == HALF:
                half_tile(
                    isa, r1 - r0, start, a, f.block_stride, count, f.block_scale + cell, f.block_sum + cell, f.blocks,
                    out + r0 * 4 * UNIT, k, ahead, pace,
                )  # fmt: skip
            else:
                six_tile(
                    isa, r1 - r0, start, a, f.block_stride, count, f.block_scale + cell, f.block_sum + cell, f.blocks,
                    out + r0 * 4 * UNIT, k, ahead, pace,
                )  # fmt: skip


@njit(nogil=True, error_model="numpy")
def matrix_product(isa, f, matrix, width, unit, out):
    """`unit_product` of all rows with the weights that the unit has. `matrix`: address of its fields (see frame)."""
    if unit < v.load_i64s(matrix + NIBBLE_UNITS):
        weights, form = v.load_i64s(matrix + NIBBLES), v.load_i64s(matrix + NIBBLE_FORM)
        nibble_product(isa, f, weights, form, width, unit, f.rows, out)
    else:
        wide = v.load_i64s(matrix + WIDE)
        unit_product(isa, f, v.load_i64s(matrix + STORED), width, wide, unit, f.rows, out)
