"""How keys and values lie in a page of the cache, and how a row's are stored there.

A page holds 128 slots of all layers: ``[layer][kv head]``, and of each

* keys ``[slot / 16][dim][slot % 16]`` and values ``[dim / 16][slot][dim % 16]`` (panels, see float_tile), in the
  cache's type;
* with int8 also float32 scales, ``[128]`` of the keys and ``[128]`` of the values: one a slot, ``max|x| / 127``.

What is stored is rounded once, to nearest, ties to even, and every row reads what is stored: its own key too, and those
of other rows of the forward. So the type changes the numbers, not that they are the same for every grouping.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from exactspec.target.kernels import simd as v
from exactspec.target.kernels.float_tile import BFLOAT16, INT8, PANEL

CHUNK = 128  # slots of a page
SMALLEST = np.float32(1e-8)  # largest value that a row of zeros is taken to have


@njit(nogil=True, error_model="numpy")
def half_bytes(kind, width):
    """From the keys of a head to its values."""
    return CHUNK * width * 4 >> kind


@njit(nogil=True, error_model="numpy")
def store_key(kind, head, slot, width, d, x, spare):
    """16 dimensions from d on of one slot's key; not for int8. `spare`: 64 bytes of scratch."""
    if kind == BFLOAT16:
        lane = slot % PANEL
        place = 2 * lane if lane < 8 else 2 * lane - 15  # see float_tile
        at = head + 2 * ((slot // PANEL * width + d) * PANEL + place)
        v.store_i32(spare, v.round_bf16(x))
        for i in range(16):
            v.store_i16s(at + 2 * PANEL * i, v.load_i32s(spare + 4 * i))
    else:
        at = head + 4 * ((slot // PANEL * width + d) * PANEL + slot % PANEL)
        v.store(spare, x)
        for i in range(16):
            v.store_f32(at + 4 * PANEL * i, v.load_f32(spare + 4 * i))


@njit(nogil=True, error_model="numpy")
def store_value(kind, head, slot, width, d, x):
    """16 dimensions from d on of one slot's value; not for int8."""
    at = head + half_bytes(kind, width) + ((d // PANEL * CHUNK + slot) * PANEL * 4 >> kind)
    if kind == BFLOAT16:
        v.store_bf16(at, x)
    else:
        v.store(at, x)


@njit(nogil=True, error_model="numpy")
def store_int8(head, slot, width, x, is_value, spare):
    """A whole key or value, float32 at x [width], with its scale. `spare`: 64 bytes of scratch."""
    peak = v.splat(SMALLEST)
    for d in range(0, width, 16):
        peak = v.maximum(v.absolute(v.load(x + 4 * d)), peak)
    most = v.max_lanes(peak)
    inverse = v.splat(np.float32(127) / most)
    half = half_bytes(INT8, width)
    scales = head + 2 * half + (4 * CHUNK if is_value else 0)
    v.store_f32(scales + 4 * slot, np.float32(most / np.float32(127)))
    for d in range(0, width, 16):
        whole = v.round_i32(v.mul(v.load(x + 4 * d), inverse))
        if is_value:
            v.store_i8(head + half + (d // PANEL * CHUNK + slot) * PANEL, whole)
        else:
            at = head + (slot // PANEL * width + d) * PANEL + slot % PANEL
            v.store_i32(spare, whole)
            for i in range(16):
                v.store_i8s(at + PANEL * i, v.load_i32s(spare + 4 * i))
