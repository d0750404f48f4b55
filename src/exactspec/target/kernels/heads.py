"""Norms over whole heads, for families that norm queries and keys before they are rotated (arXiv 2302.05442).

A unit of a product holds a part of a head only, so that such a layer first leaves its queries and keys in scratch
(queries in `queries`, keys in the first heads of `attended`, which is free until the attention).
"""

from __future__ import annotations

from numba import njit

from exactspec.target.kernels import simd as v
from exactspec.target.kernels.rows import norm_row
from exactspec.target.kernels.sync import share_start
from exactspec.target.kernels.units import BASE, SEGMENT_BYTES, put_key, rotated, store_query


@njit(nogil=True, error_model="numpy")
def heads_phase(f, layer, q_norm, k_norm, cos, sin, threads, thread, scratch):
    """Norm, rotate and store every head of every row; the threads share the heads. `scratch`: 64 bytes."""
    count = f.heads + f.kv_heads
    total = f.rows * count
    for item in range(share_start(total, threads, thread), share_start(total, threads, thread + 1)):
        r, head = item // count, item % count
        x, weight = f.queries + 4 * (r * f.heads + head) * f.head_pad, q_norm
        if head >= f.heads:
            x, weight = f.attended + 4 * (r * f.heads + head - f.heads) * f.head_pad, k_norm
        norm_row(x, weight, f.head_dim, f.head_pad, f.eps, x)
        segment = f.segment_table + v.load_i64s(f.row_segment + 8 * r) * SEGMENT_BYTES
        position = v.load_i64s(segment + 8 * BASE) + v.load_i64s(f.depths + 8 * r)
        for low in range(0, f.half_pad, 16):
            angle = 4 * (position * f.half_pad + low)
            a, b = v.load(x + 4 * low), v.load(x + 4 * (f.half_pad + low))
            a, b = rotated(a, b, cos + angle, sin + angle)
            if head < f.heads:
                store_query(f, r, head, low, a, b)
            else:
                put_key(f, layer, r, head - f.heads, low, a, b, scratch)
