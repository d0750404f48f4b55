"""The units of a layer's products: what one thread does between two barriers, 32 output channels at a time."""

from __future__ import annotations

import numpy as np
from numba import njit

from exactspec.target.kernels import simd as v
from exactspec.target.kernels.float_tile import INT8
from exactspec.target.kernels.frame import SEGMENT
from exactspec.target.kernels.matrix import SCALE, matrix_product, unit_product
from exactspec.target.kernels.pages import CHUNK, store_int8, store_key, store_value
from exactspec.target.kernels.products import UNIT

GELU = 2 * np.sqrt(2 / np.pi) * np.log2(np.e)
VALUE_LIMIT = np.float32(1e9)  # keys, values and queries are clamped: a stale slot can never hold inf or NaN

PAGES, BASE, FIRST_ROW = SEGMENT["pages"], SEGMENT["base"], SEGMENT["first_row"]
SEGMENT_BYTES = 8 * len(SEGMENT)


@njit(nogil=True, error_model="numpy")
def clamped(x):
    return v.minimum(v.maximum(x, v.splat(-VALUE_LIMIT)), v.splat(VALUE_LIMIT))


@njit(nogil=True, error_model="numpy")
def rotated(a, b, cos, sin):
    """16 pairs of a query or key, rotated and clamped."""
    c, t = v.load(cos), v.load(sin)
    return clamped(v.sub(v.mul(a, c), v.mul(b, t))), clamped(v.fma(b, c, v.mul(a, t)))


@njit(nogil=True, error_model="numpy")
def store_query(f, r, head, low, a, b):
    """Dimensions low .. low + 15 of a query and their partners, scaled."""
    q, factor = f.queries + 4 * (r * f.heads + head) * f.head_pad, v.splat(f.query_scale)
    v.store(q + 4 * low, v.mul(a, factor))
    v.store(q + 4 * (f.half_pad + low), v.mul(b, factor))


@njit(nogil=True, error_model="numpy")
def qkv_unit(isa, f, layer, unit, matrix, bias, cos, sin, raw, out):
    """One unit of the query, key and value products for all rows: rotate, then queries to scratch, keys and values
    to the cache. A unit of a query or key holds 16 dimensions and their 16 rotary partners. `raw`: queries and keys go
    to scratch as they are, because their heads are normed first (see heads)."""
    matrix_product(isa, f, matrix, f.width_pad, unit, out)
    units = f.head_pad // UNIT
    head, sub = unit // units, unit % units
    low, high = 16 * sub, f.half_pad + 16 * sub
    ws, wb = v.load_i64s(matrix + SCALE) + 4 * UNIT * unit, bias + 4 * UNIT * unit
    for r in range(f.rows):
        at = out + 4 * UNIT * r
        a = v.fma(v.load(at), v.load(ws), v.load(wb))
        b = v.fma(v.load(at + 64), v.load(ws + 64), v.load(wb + 64))
        if raw and head < f.heads + f.kv_heads:
            x = f.queries + 4 * (r * f.heads + head) * f.head_pad
            if head >= f.heads:
                x = f.attended + 4 * (r * f.heads + head - f.heads) * f.head_pad
            v.store(x + 4 * low, a)
            v.store(x + 4 * high, b)
            continue
        segment = f.segment_table + v.load_i64s(f.row_segment + 8 * r) * SEGMENT_BYTES
        if head < f.heads + f.kv_heads:
            angle = 4 * ((v.load_i64s(segment + 8 * BASE) + v.load_i64s(f.depths + 8 * r)) * f.half_pad + low)
            a, b = rotated(a, b, cos + angle, sin + angle)
        else:
            a, b = clamped(a), clamped(b)
        if head < f.heads:
            store_query(f, r, head, low, a, b)
            continue
        if head < f.heads + f.kv_heads:
            put_key(f, layer, r, head - f.heads, low, a, b, at)
        else:
            put_value(f, layer, r, head - f.heads - f.kv_heads, UNIT * sub, a, b)


@njit(nogil=True, error_model="numpy")
def place_of(f, layer, r, kv):
    """Address of the layer and kv head in the page that holds row r, and the row's slot there."""
    segment = f.segment_table + v.load_i64s(f.row_segment + 8 * r) * SEGMENT_BYTES
    slot = v.load_i64s(segment + 8 * BASE) + r - v.load_i64s(segment + 8 * FIRST_ROW)
    page = v.load_i64s(v.load_i64s(segment + 8 * PAGES) + 8 * (slot // CHUNK))
    return page + layer * f.layer_bytes + kv * f.head_bytes, slot % CHUNK


@njit(nogil=True, error_model="numpy")
def put_key(f, layer, r, kv, low, a, b, spare):
    """Dimensions low .. low + 15 of row r's key and their rotary partners, clamped, to the cache. `spare`: 64 bytes."""
    if f.cache_kind == INT8:  # its scale needs the whole head: see store_int8_unit
        fresh = f.fresh + 4 * f.head_pad * (r * 2 * f.kv_heads + kv)
        v.store(fresh + 4 * low, a)
        v.store(fresh + 4 * (f.half_pad + low), b)
        return
    page, slot = place_of(f, layer, r, kv)
    store_key(f.cache_kind, page, slot, f.head_pad, low, a, spare)
    store_key(f.cache_kind, page, slot, f.head_pad, f.half_pad + low, b, spare)


@njit(nogil=True, error_model="numpy")
def put_value(f, layer, r, kv, d, a, b):
    """Dimensions d .. d + 31 of row r's value, clamped, to the cache."""
    if f.cache_kind == INT8:
        fresh = f.fresh + 4 * f.head_pad * (r * 2 * f.kv_heads + f.kv_heads + kv)
        v.store(fresh + 4 * d, a)
        v.store(fresh + 4 * d + 64, b)
        return
    page, slot = place_of(f, layer, r, kv)
    store_value(f.cache_kind, page, slot, f.head_pad, d, a)
    store_value(f.cache_kind, page, slot, f.head_pad, d + 16, b)


@njit(nogil=True, error_model="numpy")
def store_int8_unit(f, layer, unit, spare):
    """Key or value of one row and kv head, from `fresh` to an int8 cache."""
    r, which = unit // (2 * f.kv_heads), unit % (2 * f.kv_heads)
    head, slot = place_of(f, layer, r, which % f.kv_heads)
    store_int8(head, slot, f.head_pad, f.fresh + 4 * f.head_pad * unit, which >= f.kv_heads, spare)


@njit(nogil=True, error_model="numpy")
def residual_unit(isa, f, unit, matrix, width, post, out):
    """One unit of an output or down projection for all rows, added to x; with `post` left in `normed`, because a norm
    comes first (see forward.norm_phase)."""
    matrix_product(isa, f, matrix, width, unit, out)
    ws = v.load_i64s(matrix + SCALE) + 4 * UNIT * unit
    for r in range(f.rows):
        x = f.x + 4 * (r * f.width_pad + UNIT * unit)
        for half in range(2):
            if UNIT * unit + 16 * half < f.width_pad:
                y = v.load(out + 4 * UNIT * r + 64 * half)
                if post:
                    left = f.normed + 4 * (r * f.width_pad + UNIT * unit) + 64 * half
                    v.store(left, v.mul(y, v.load(ws + 64 * half)))
                else:
                    v.store(x + 64 * half, v.fma(y, v.load(ws + 64 * half), v.load(x + 64 * half)))


@njit(nogil=True, error_model="numpy")
def gated_unit(isa, f, unit, matrix, out):
    """One unit of gate and up (16 channels each) for all rows: inner = act(gate) * up (arXiv 2002.05202).

    Both activations are gate / (1 + exp(-z)): silu with z = gate, gelu's tanh form (arXiv 1606.08415) with
    z = 2 sqrt(2 / pi) (gate + 0.044715 gate**3).
    """
    matrix_product(isa, f, matrix, f.width_pad, unit, out)
    ws = v.load_i64s(matrix + SCALE) + 4 * UNIT * unit
    one, log2e = v.splat(np.float32(1)), v.splat(np.float32(-1.4426950408889634))
    gelu1, gelu3 = v.splat(np.float32(-GELU)), v.splat(np.float32(-GELU * 0.044715))
    for r in range(f.rows):
        gate = v.mul(v.load(out + 4 * UNIT * r), v.load(ws))
        up = v.mul(v.load(out + 4 * UNIT * r + 64), v.load(ws + 64))
        slope = log2e
        if f.gate_activation == 1:
            slope = v.fma(v.mul(gate, gate), gelu3, gelu1)
        # exp2 clamps on both sides: silu(-90) is a tiny number, silu(-300) is -0, never NaN
        active = v.div(gate, v.add(one, v.exp2(v.mul(gate, slope))))
        v.store(f.inner + 4 * (r * f.inner_pad + 16 * unit), v.mul(active, up))


@njit(nogil=True, error_model="numpy")
def head_unit(isa, f, unit, out, values, ids):
    """One unit of the head for the asked rows: logits where wanted, and the thread's best ids so far."""
    unit_product(isa, f, f.head, f.width_pad, f.head_wide, unit, f.asked, out)
    ws = f.head_scale + 4 * UNIT * unit
    for r in range(f.asked):
        slot = v.load_i64s(f.logits_slot + 8 * r)
        count = v.load_i64s(f.asked_count + 8 * r)
        best, best_id = values + 4 * r * f.top_k, ids + 8 * r * f.top_k
        for half in range(2):
            token = UNIT * unit + 16 * half
            if token >= f.vocab:
                continue
            at = out + 4 * UNIT * r + 64 * half
            y = v.mul(v.load(at), v.load(ws + 64 * half))
            if token + 16 > f.vocab:
                y = v.mask_tail(y, f.vocab - token, np.float32(-np.inf))
            if slot >= 0:
                v.store(f.logits + 4 * (slot * f.vocab_pad + token), y)
            if v.max_lanes(y) >= v.load_f32(best + 4 * (count - 1)):
                v.store(at, y)
                for lane in range(min(16, f.vocab - token)):
                    offer(best, best_id, count, v.load_f32(at + 4 * lane), token + lane)


@njit(nogil=True, error_model="numpy")
def offer(best, ids, count, value, token):
    """Insert into a list of the `count` best, highest first, ties to the lowest id."""
    at = count
    while at > 0:
        other = v.load_f32(best + 4 * (at - 1))
        if value > other or (value == other and token < v.load_i64s(ids + 8 * (at - 1))):
            at -= 1
        else:
            break
    if at == count:
        return
    for i in range(count - 1, at, -1):
        v.store_f32(best + 4 * i, v.load_f32(best + 4 * (i - 1)))
        v.store_i64s(ids + 8 * i, v.load_i64s(ids + 8 * (i - 1)))
    v.store_f32(best + 4 * at, value)
    v.store_i64s(ids + 8 * at, token)
