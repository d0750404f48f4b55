"""The passes of the draft layer. Between two barriers the threads share rows, units of a product or spans of keys."""

from __future__ import annotations

import numpy as np
from numba import njit

from exactspec.drafters.layer.kernels.attend import cross_item, cross_spans, merge_row, own_item, own_spans
from exactspec.drafters.layer.kernels.chunks import choose_chunks
from exactspec.target.kernels import simd as v
from exactspec.target.kernels.float_tile import BFLOAT16
from exactspec.target.kernels.matrix import unit_product
from exactspec.target.kernels.pages import CHUNK, store_key, store_value
from exactspec.target.kernels.products import UNIT
from exactspec.target.kernels.rows import add_row, embed_row, norm_row, quantise_row
from exactspec.target.kernels.sync import barrier, next_unit, reset_counter, share_start
from exactspec.target.kernels.units import clamped, offer, rotated

LOG2E = np.float32(1.4426950408889634)
LOWEST = np.float32(-1e30)


@njit(nogil=True, error_model="numpy")
def meet(f, threads, thread):
    """Barrier after a phase that shared rows: the counters of shared work begin anew."""
    reset_counter(f.team, 0, thread)
    reset_counter(f.team, 1, thread)
    barrier(f.team, threads)


@njit(nogil=True, error_model="numpy")
def quantise(isa, f, row, values, width):
    cell = 4 * row * f.groups
    q = f.activations + row * f.activation_stride
    quantise_row(isa, values, width, f.narrow_group, 0, q, f.plane, f.scale + cell, f.offset + cell)


@njit(nogil=True, error_model="numpy")
def input_row(f, row, token, fed):
    """x of a row: its token's embedding and what its feature adds."""
    x = f.x + 4 * row * f.width_pad
    embed_row(f.embed, f.embed_scale, token, f.width_pad, x)
    gain = v.splat(f.embed_gain)
    for k in range(0, f.width_pad, 16):
        v.store(x + 4 * k, v.fma(v.load(x + 4 * k), gain, v.load(fed + 4 * k)))


@njit(nogil=True, error_model="numpy")
def norm_input(isa, f, row, weight, plus):
    """Norm of x, with what was added to it if `plus`, to the activations of a row."""
    normed = f.normed + 4 * row * f.width_pad
    for k in range(0, 4 * f.width_pad, 64):
        v.store(normed + k, v.load(f.x + 4 * row * f.width_pad + k))
    if plus:
        add_row(f.added + 4 * row * f.width_pad, f.width_pad, normed)
    norm_row(normed, weight, f.width, f.width_pad, f.eps, normed)
    quantise(isa, f, row, normed, f.width_pad)


@njit(nogil=True, error_model="numpy")
def store_unit(isa, f, weights, scales, inputs, unit, rows, into, add, private):
    """32 channels of a product, [rows, width_pad] at `into`: written, or added if `add`."""
    unit_product(isa, f, weights, inputs, 0, unit, rows, private)
    ws = scales + 4 * UNIT * unit
    for r in range(rows):
        for half in range(2):
            channel = UNIT * unit + 16 * half
            if channel < f.width_pad:
                at = into + 4 * (r * f.width_pad + channel)
                y = v.mul(v.load(private + 4 * UNIT * r + 64 * half), v.load(ws + 64 * half))
                v.store(at, v.add(v.load(at), y) if add else y)


@njit(nogil=True, error_model="numpy")
def product_phase(isa, f, weights, scales, inputs, rows, into, add, threads, thread, private):
    units = (f.width + UNIT - 1) // UNIT
    unit = next_unit(f.team, 0, units, threads, thread)
    while unit >= 0:
        store_unit(isa, f, weights, scales, inputs, unit, rows, into, add, private)
        unit = next_unit(f.team, 0, units, threads, thread)
    barrier(f.team, threads)


@njit(nogil=True, error_model="numpy")
def put_query(f, rows, r, head, group, pad, half, low, a, b, factor):
    at = f.queries + 4 * pad * ((head // group * rows + r) * group + head % group)
    by = v.splat(factor)
    v.store(at + 4 * low, v.mul(a, by))
    v.store(at + 4 * (half + low), v.mul(b, by))


@njit(nogil=True, error_model="numpy")
def own_unit(isa, f, rows, unit, out):
    """One unit of the layer's own queries, keys and values."""
    unit_product(isa, f, f.qkv, f.width_pad, 0, unit, rows, out)
    units = f.head_pad // UNIT
    head, sub = unit // units, unit % units
    low, high = 16 * sub, f.half_pad + 16 * sub
    ws = f.qkv_scale + 4 * UNIT * unit
    for r in range(rows):
        at = out + 4 * UNIT * r
        a, b = v.mul(v.load(at), v.load(ws)), v.mul(v.load(at + 64), v.load(ws + 64))
        if head < f.heads + f.kv_heads:
            angle = 4 * ((v.load_i64s(f.row_position + 8 * r) - f.take_first) * f.half_pad + low)
            a, b = rotated(a, b, f.cos + angle, f.sin + angle)
        else:
            a, b = clamped(a), clamped(b)
        if head < f.heads:
            put_query(f, rows, r, head, f.heads // f.kv_heads, f.head_pad, f.half_pad, low, a, b, f.query_scale)
            continue
        slot = v.load_i64s(f.row_slot + 8 * r)
        page = v.load_i64s(f.pages + 8 * (slot // CHUNK))
        if head < f.heads + f.kv_heads:
            place = page + (head - f.heads) * f.own_head_bytes
            store_key(BFLOAT16, place, slot % CHUNK, f.head_pad, low, a, at)
            store_key(BFLOAT16, place, slot % CHUNK, f.head_pad, high, b, at)
        else:
            place = page + (head - f.heads - f.kv_heads) * f.own_head_bytes
            store_value(BFLOAT16, place, slot % CHUNK, f.head_pad, UNIT * sub, a)
            store_value(BFLOAT16, place, slot % CHUNK, f.head_pad, UNIT * sub + 16, b)


@njit(nogil=True, error_model="numpy")
def own_phase(isa, f, rows, first, end, threads, thread, private):
    """Units first .. end - 1 of own queries, keys and values, which come in this order."""
    unit = next_unit(f.team, 0, end - first, threads, thread)
    while unit >= 0:
        own_unit(isa, f, rows, first + unit, private)
        unit = next_unit(f.team, 0, end - first, threads, thread)
    barrier(f.team, threads)


@njit(nogil=True, error_model="numpy")
def cross_unit(isa, f, rows, unit, out):
    """One unit of the queries over the target's keys."""
    unit_product(isa, f, f.cross_q, f.width_pad, 0, unit, rows, out)
    units = f.cross_pad // UNIT
    head, low = unit // units, 16 * (unit % units)
    ws = f.cross_q_scale + 4 * UNIT * unit
    for r in range(rows):
        at = out + 4 * UNIT * r
        a, b = v.mul(v.load(at), v.load(ws)), v.mul(v.load(at + 64), v.load(ws + 64))
        angle = 4 * (v.load_i64s(f.row_position + 8 * r) * f.cross_half + low)
        a, b = rotated(a, b, f.cross_cos + angle, f.cross_sin + angle)
        group = f.cross_heads // f.cross_kv
        put_query(f, rows, r, head, group, f.cross_pad, f.cross_half, low, a, b, f.cross_scale)


@njit(nogil=True, error_model="numpy")
def gate_unit(isa, f, rows, unit, out):
    """16 gate channels and their up channels: inner = silu(gate) * up."""
    unit_product(isa, f, f.gate_up, f.width_pad, 0, unit, rows, out)
    ws = f.gate_up_scale + 4 * UNIT * unit
    one = v.splat(np.float32(1))
    for r in range(rows):
        gate = v.mul(v.load(out + 4 * UNIT * r), v.load(ws))
        up = v.mul(v.load(out + 4 * UNIT * r + 64), v.load(ws + 64))
        active = v.div(gate, v.add(one, v.exp2(v.mul(gate, v.splat(-LOG2E)))))
        v.store(f.inner + 4 * (r * f.inner_pad + 16 * unit), v.mul(active, up))


@njit(nogil=True, error_model="numpy")
def head_unit(isa, f, rows, unit, out, best, best_at):
    """32 ids of the trimmed head: the thread's best of each row, and the unit's part of the softmax, which is kept
    apart so that a probability does not depend on who computed what."""
    unit_product(isa, f, f.head, f.width_pad, 0, unit, rows, out)
    ws = f.head_scale + 4 * UNIT * unit
    branch = f.branch
    for r in range(rows):
        values, places = best + 4 * r * branch, best_at + 8 * r * branch
        cell = 4 * (r * f.head_units + unit)
        v.store_f32(f.peaks + cell, LOWEST)
        v.store_f32(f.sums + cell, np.float32(0))
        for half in range(2):
            place = UNIT * unit + 16 * half
            if place >= f.head_count:
                continue
            at = out + 4 * UNIT * r + 64 * half
            y = v.mul(v.mul(v.load(at), v.load(ws + 64 * half)), v.splat(LOG2E))
            if place + 16 > f.head_count:
                y = v.mask_tail(y, f.head_count - place, LOWEST)
            most = v.max_lanes(y)
            before = v.load_f32(f.peaks + cell)
            if before > most:
                most = before
            kept = v.first_lane(v.weight(v.splat(np.float32(before - most))))
            total = np.float32(v.load_f32(f.sums + cell) * kept)
            v.store_f32(f.peaks + cell, most)
            v.store_f32(f.sums + cell, np.float32(total + v.sum_lanes(v.weight(v.sub(y, v.splat(most))))))
            if v.max_lanes(y) >= v.load_f32(values + 4 * (branch - 1)):
                v.store(at, y)
                for lane in range(min(16, f.head_count - place)):
                    offer(values, places, branch, v.load_f32(at + 4 * lane), place + lane)


@njit(nogil=True, error_model="numpy")
def merge_phase(isa, f, rows, heads, kv_heads, spans, width, threads, thread, private):
    for r in range(share_start(rows, threads, thread), share_start(rows, threads, thread + 1)):
        merge_row(f, rows, r, heads, kv_heads, spans, width, private)
        quantise(isa, f, r, f.attended + 4 * width * r * heads, width * heads)
    meet(f, threads, thread)


@njit(nogil=True, error_model="numpy")
def draft_pass(isa, f, rows, tree, threads, thread):
    """All of the layer for rows whose x is there; `tree`: they are nodes, whose own keys are still to be made. Leaves
    `out`, and every thread's lists of best ids."""
    private = f.private + thread * f.private_bytes
    begin, end = share_start(rows, threads, thread), share_start(rows, threads, thread + 1)
    for r in range(begin, end):
        norm_input(isa, f, r, f.self_norm, 0)
    meet(f, threads, thread)
    last = (f.heads + 2 * f.kv_heads if tree else f.heads) * f.head_pad // UNIT
    own_phase(isa, f, rows, 0, last, threads, thread, private)
    spans = own_spans(f, rows, tree)
    item = next_unit(f.team, 1, f.kv_heads * spans, threads, thread)
    while item >= 0:
        own_item(isa, f, rows, tree, item, private)
        item = next_unit(f.team, 1, f.kv_heads * spans, threads, thread)
    barrier(f.team, threads)
    merge_phase(isa, f, rows, f.heads, f.kv_heads, spans, f.head_pad, threads, thread, private)
    own = f.heads * f.head_pad
    product_phase(isa, f, f.self_o, f.self_o_scale, own, rows, f.added, 0, threads, thread, private)

    for r in range(begin, end):
        norm_input(isa, f, r, f.cross_norm, 1)
    meet(f, threads, thread)
    units = f.cross_heads * f.cross_pad // UNIT
    unit = next_unit(f.team, 0, units, threads, thread)
    while unit >= 0:
        cross_unit(isa, f, rows, unit, private)
        unit = next_unit(f.team, 0, units, threads, thread)
    barrier(f.team, threads)
    if f.top and not tree:
        if thread == 0:
            choose_chunks(f)
        barrier(f.team, threads)
    spans = cross_spans(f)
    item = next_unit(f.team, 1, f.cross_kv * spans, threads, thread)
    while item >= 0:
        cross_item(isa, f, rows, item, private)
        item = next_unit(f.team, 1, f.cross_kv * spans, threads, thread)
    barrier(f.team, threads)
    merge_phase(isa, f, rows, f.cross_heads, f.cross_kv, spans, f.cross_pad, threads, thread, private)
    seen = f.cross_heads * f.cross_pad
    product_phase(isa, f, f.cross_o, f.cross_o_scale, seen, rows, f.added, 1, threads, thread, private)

    for r in range(begin, end):
        norm_input(isa, f, r, f.mlp_norm, 1)
    meet(f, threads, thread)
    units = f.inner_pad // 16
    unit = next_unit(f.team, 0, units, threads, thread)
    while unit >= 0:
        gate_unit(isa, f, rows, unit, private)
        unit = next_unit(f.team, 0, units, threads, thread)
    barrier(f.team, threads)
    for r in range(begin, end):
        quantise(isa, f, r, f.inner + 4 * r * f.inner_pad, f.inner_pad)
    meet(f, threads, thread)
    product_phase(isa, f, f.down, f.down_scale, f.inner_pad, rows, f.added, 1, threads, thread, private)

    for r in range(begin, end):
        out = f.out + 4 * r * f.width_pad
        norm_row(f.added + 4 * r * f.width_pad, f.final_norm, f.width, f.width_pad, f.eps, out)
        quantise(isa, f, r, out, f.width_pad)
        last = 4 * ((r + 1) * f.head_units - 16)  # what lies behind the units weighs nothing
        v.store(f.peaks + last, v.splat(LOWEST))
        v.store(f.sums + last, v.splat(np.float32(0)))
    best, best_at = f.best + 4 * thread * rows * f.branch, f.best_at + 8 * thread * rows * f.branch
    for i in range(rows * f.branch):
        v.store_f32(best + 4 * i, LOWEST)
        v.store_i64s(best_at + 8 * i, f.head_count)
    meet(f, threads, thread)
    units = (f.head_count + UNIT - 1) // UNIT
    unit = next_unit(f.team, 0, units, threads, thread)
    while unit >= 0:
        head_unit(isa, f, rows, unit, private, best, best_at)
        unit = next_unit(f.team, 0, units, threads, thread)
    barrier(f.team, threads)


@njit(nogil=True, error_model="numpy")
def feed_phase(isa, f, rows, features, above, threads, thread):
    """`fed` of rows: the product of their features, float32 [., width_pad]. `above`: not 0, take row ``row_above``."""
    private = f.private + thread * f.private_bytes
    for r in range(share_start(rows, threads, thread), share_start(rows, threads, thread + 1)):
        source = v.load_i64s(f.row_above + 8 * r) if above else r
        quantise(isa, f, r, features + 4 * source * f.width_pad, f.width_pad)
    meet(f, threads, thread)
    product_phase(isa, f, f.feature, f.feature_scale, f.width_pad, rows, f.fed, 0, threads, thread, private)


@njit(nogil=True, error_model="numpy")
def take_in(isa, f, threads, thread):
    """Own keys and values of committed tokens, into the ring; afterwards row 0 of x is the last one's."""
    rows, private = f.take, f.private + thread * f.private_bytes
    if thread == 0:
        for r in range(rows):
            v.store_i64s(f.row_position + 8 * r, f.take_first + r)
            v.store_i64s(f.row_slot + 8 * r, (f.take_first + r) % f.ring)
    feed_phase(isa, f, rows, f.take_features, 0, threads, thread)
    for r in range(share_start(rows, threads, thread), share_start(rows, threads, thread + 1)):
        input_row(f, r, v.load_i64s(f.take_tokens + 8 * r), f.fed + 4 * r * f.width_pad)
        norm_input(isa, f, r, f.self_norm, 0)
    meet(f, threads, thread)
    first, end = f.heads * f.head_pad // UNIT, (f.heads + 2 * f.kv_heads) * f.head_pad // UNIT
    own_phase(isa, f, rows, first, end, threads, thread, private)
    if thread == 0:
        last = 4 * (rows - 1) * f.width_pad
        for k in range(0, 4 * f.width_pad, 64):
            v.store(f.x + k, v.load(f.x + last + k))
            v.store(f.root_fed + k, v.load(f.fed + last + k))
