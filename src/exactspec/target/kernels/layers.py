"""The units and tasks of a layer: what one thread does between two barriers."""

from __future__ import annotations

import numpy as np
from numba import njit

from exactspec.target.kernels import simd as v
from exactspec.target.kernels.attention import (
    BLOCK,
    CHUNK,
    SPAN_CHUNKS,
    clear_state,
    float_tile,
    hide_tail,
    merge_state,
    softmax_chunk,
    write_output,
)
from exactspec.target.kernels.frame import SEGMENT
from exactspec.target.kernels.products import UNIT, most_rows, tile

K_BLOCK = 1024  # inputs per pass when the rows need several: the unit's weights stay in the nearest cache
VALUE_LIMIT = np.float32(1e9)  # keys, values and queries are clamped: a stale slot can never hold inf or NaN

PAGES, BASE, FIRST_ROW, ROWS = SEGMENT["pages"], SEGMENT["base"], SEGMENT["first_row"], SEGMENT["rows"]
PATHS, PATH_STRIDE = SEGMENT["paths"], SEGMENT["path_stride"]
FIRST_TASK, BLOCKS = SEGMENT["first_task"], SEGMENT["blocks"]
SEGMENT_BYTES = 8 * len(SEGMENT)


@njit(nogil=True, error_model="numpy")
def unit_product(isa, f, weights, width, group, unit, a, lda, rows, out):
    """out float32 [rows, 32] = the unit's channels for all rows, without the channels' scales; weights are read once
    from memory. `a` int8 [rows, lda] with the scales and offsets of the frame, in groups of `group` inputs."""
    w = weights + unit * UNIT * width
    quads = width // 4
    tallest = most_rows(isa)
    passes = (rows + tallest - 1) // tallest
    step = quads if passes == 1 else K_BLOCK // group * group // 4
    for k in range(0, quads, step):
        count = min(step, quads - k)
        for p in range(passes):
            r0, r1 = rows * p // passes, rows * (p + 1) // passes
            cell = 4 * (r0 * f.groups + 4 * k // group)
            tile(
                isa, r1 - r0, w + k * 4 * UNIT, a + r0 * lda + 4 * k, lda, count, group // 4,
                f.scale + cell, f.offset + cell, f.groups, out + r0 * 4 * UNIT, k,
            )  # fmt: skip


@njit(nogil=True, error_model="numpy")
def clamped(x):
    return v.minimum(v.maximum(x, v.splat(-VALUE_LIMIT)), v.splat(VALUE_LIMIT))


@njit(nogil=True, error_model="numpy")
def qkv_unit(isa, f, layer, unit, weights, scales, bias, out):
    """One unit of the query, key and value products for all rows: rotate, then queries to scratch, keys and values
    to the cache. A unit of a query or key holds 16 dimensions and their 16 rotary partners."""
    unit_product(isa, f, weights, f.width_pad, f.norm_group, unit, f.q8, f.q8_stride, f.rows, out)
    units = f.head_pad // UNIT
    head, sub = unit // units, unit % units
    low, high = 16 * sub, f.half_pad + 16 * sub
    ws, wb = scales + 4 * UNIT * unit, bias + 4 * UNIT * unit
    for r in range(f.rows):
        at = out + 4 * UNIT * r
        a = v.fma(v.load(at), v.load(ws), v.load(wb))
        b = v.fma(v.load(at + 64), v.load(ws + 64), v.load(wb + 64))
        segment = f.segment_table + v.load_i64s(f.row_segment + 8 * r) * SEGMENT_BYTES
        base = v.load_i64s(segment + 8 * BASE)
        if head < f.heads + f.kv_heads:
            angle = 4 * ((base + v.load_i64s(f.depths + 8 * r)) * f.half_pad + low)
            c, t = v.load(f.cos + angle), v.load(f.sin + angle)
            x = clamped(v.sub(v.mul(a, c), v.mul(b, t)))
            b = clamped(v.fma(b, c, v.mul(a, t)))
            a = x
        else:
            a, b = clamped(a), clamped(b)
        if head < f.heads:
            q = f.queries + 4 * (r * f.heads + head) * f.head_pad
            factor = v.splat(f.query_scale)
            v.store(q + 4 * low, v.mul(a, factor))
            v.store(q + 4 * high, v.mul(b, factor))
            continue
        slot = base + r - v.load_i64s(segment + 8 * FIRST_ROW)
        page = v.load_i64s(v.load_i64s(segment + 8 * PAGES) + 8 * (slot // CHUNK)) + layer * f.layer_bytes
        slot %= CHUNK
        if head < f.heads + f.kv_heads:
            keys = page + (head - f.heads) * f.head_bytes + 4 * slot
            v.store(at, a)
            v.store(at + 64, b)
            for d in range(16):
                v.store_f32(keys + 4 * CHUNK * (low + d), v.load_f32(at + 4 * d))
                v.store_f32(keys + 4 * CHUNK * (high + d), v.load_f32(at + 64 + 4 * d))
        else:
            values = page + (head - f.heads - f.kv_heads) * f.head_bytes + 4 * f.head_pad * (CHUNK + slot)
            v.store(values + 4 * UNIT * sub, a)
            v.store(values + 4 * UNIT * sub + 64, b)


@njit(nogil=True, error_model="numpy")
def residual_unit(isa, f, unit, weights, scales, width, group, out):
    """One unit of an output or down projection for all rows, added to x."""
    unit_product(isa, f, weights, width, group, unit, f.q8, f.q8_stride, f.rows, out)
    ws = scales + 4 * UNIT * unit
    for r in range(f.rows):
        x = f.x + 4 * (r * f.width_pad + UNIT * unit)
        for half in range(2):
            if UNIT * unit + 16 * half < f.width_pad:
                y = v.load(out + 4 * UNIT * r + 64 * half)
                v.store(x + 64 * half, v.fma(y, v.load(ws + 64 * half), v.load(x + 64 * half)))


@njit(nogil=True, error_model="numpy")
def gated_unit(isa, f, unit, weights, scales, out):
    """One unit of gate and up (16 channels each) for all rows: inner = silu(gate) * up (SwiGLU, arXiv 2002.05202)."""
    unit_product(isa, f, weights, f.width_pad, f.norm_group, unit, f.q8, f.q8_stride, f.rows, out)
    ws = scales + 4 * UNIT * unit
    one, log2e = v.splat(np.float32(1)), v.splat(np.float32(-1.4426950408889634))
    for r in range(f.rows):
        gate = v.mul(v.load(out + 4 * UNIT * r), v.load(ws))
        up = v.mul(v.load(out + 4 * UNIT * r + 64), v.load(ws + 64))
        # exp2 clamps on both sides: silu(-90) is a tiny number, silu(-300) is -0, never NaN
        silu = v.div(gate, v.add(one, v.exp2(v.mul(gate, log2e))))
        v.store(f.inner + 4 * (r * f.inner_pad + 16 * unit), v.mul(silu, up))


@njit(nogil=True, error_model="numpy")
def head_unit(isa, f, unit, out, values, ids):
    """One unit of the head for the asked rows: logits where wanted, and the thread's best ids so far."""
    unit_product(isa, f, f.head, f.width_pad, f.norm_group, unit, f.q8, f.width_pad, f.asked, out)
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


@njit(nogil=True, error_model="numpy")
def attention_task(isa, f, layer, task, scratch):
    """Up to 6 (row, head) pairs of one segment and one kv head over all their keys."""
    segment = f.segment_table
    for _ in range(f.segments - 1):
        if task < v.load_i64s(segment + SEGMENT_BYTES + 8 * FIRST_TASK):
            break
        segment += SEGMENT_BYTES
    task -= v.load_i64s(segment + 8 * FIRST_TASK)
    blocks = v.load_i64s(segment + 8 * BLOCKS)
    kv, block = task // blocks, task % blocks
    group = f.heads // f.kv_heads
    pairs = v.load_i64s(segment + 8 * ROWS) * group
    p0, p1 = pairs * block // blocks, pairs * (block + 1) // blocks
    used = p1 - p0
    width = f.head_pad
    first_row, base = v.load_i64s(segment + 8 * FIRST_ROW), v.load_i64s(segment + 8 * BASE)
    pages, paths = v.load_i64s(segment + 8 * PAGES), v.load_i64s(segment + 8 * PATHS)
    inside = layer * f.layer_bytes + kv * f.head_bytes  # of a page

    q = scratch
    acc = q + 4 * BLOCK * width
    total = acc + 4 * BLOCK * width
    state = total + 4 * BLOCK * width
    total_state = state + 4 * BLOCK * 16
    scores = total_state + 4 * BLOCK * 16
    tail = scores + 4 * BLOCK * CHUNK
    last = 0
    for i in range(used):
        row = first_row + (p0 + i) // group
        head = kv * group + (p0 + i) % group
        source = f.queries + 4 * (row * f.heads + head) * width
        for d in range(0, width, 16):
            v.store(q + 4 * (i * width + d), v.load(source + 4 * d))
        clear_state(state + 64 * i, acc + 4 * i * width, width)
        clear_state(total_state + 64 * i, total + 4 * i * width, width)
        last = max(last, base + v.load_i64s(f.depths + 8 * row))
    # Chunks below `shared` are handled in place; a tree's tail is assembled path by path.
    shared = base // CHUNK if paths else last // CHUNK + 1
    chunks = last // CHUNK + 1
    for chunk in range(shared):
        page = v.load_i64s(pages + 8 * chunk) + inside
        float_tile(isa, used, q, width, page, CHUNK, width, scores, CHUNK, CHUNK, 0)
        most = 0
        for i in range(used):
            position = base + v.load_i64s(f.depths + 8 * (first_row + (p0 + i) // group))
            visible = min(CHUNK, position + 1 - chunk * CHUNK)
            most = max(most, visible)
            attend_chunk(scores + 4 * i * CHUNK, visible, state + 64 * i, acc + 4 * i * width, width)
        float_tile(isa, used, scores, CHUNK, page + 4 * CHUNK * width, width, most, acc, width, width, 1)
        if chunk % SPAN_CHUNKS == SPAN_CHUNKS - 1:
            for i in range(used):
                close_span(total_state + 64 * i, total + 4 * i * width, state + 64 * i, acc + 4 * i * width, width)
    if paths:
        tree_tail(
            isa,
            f,
            segment,
            inside,
            first_row,
            base,
            p0,
            used,
            group,
            chunks,
            q,
            acc,
            total,
            state,
            total_state,
            scores,
            tail,
        )
    for i in range(used):
        close_span(total_state + 64 * i, total + 4 * i * width, state + 64 * i, acc + 4 * i * width, width)
        row = first_row + (p0 + i) // group
        head = kv * group + (p0 + i) % group
        write_output(
            total_state + 64 * i, total + 4 * i * width, width, f.attended + 4 * (row * f.heads + head) * width
        )


@njit(nogil=True, error_model="numpy")
def attend_chunk(scores, visible, state, acc, width):
    """Weights of one pair's chunk; a chunk that the row does not see leaves its state alone and weighs 0."""
    if visible <= 0:
        zero = v.splat(np.float32(0))
        for j in range(0, CHUNK, 16):
            v.store(scores + 4 * j, zero)
        return
    hide_tail(scores, visible)
    softmax_chunk(scores, state, acc, width)


@njit(nogil=True, error_model="numpy")
def close_span(total_state, total, state, acc, width):
    """Merge a finished span and start the next one; an empty span changes nothing."""
    if v.load_f32(state + 4) > np.float32(0):
        merge_state(total_state, total, state, acc, width)
        clear_state(state, acc, width)


@njit(nogil=True, error_model="numpy")
def tree_tail(
    isa, f, segment, inside, first_row, base, p0, used, group, chunks, q, acc, total, state, total_state, scores, tail
):
    """The chunks from the root's on, each row along its own path (see attention)."""
    width, slots = f.head_pad, f.tail_slots
    pages, paths = v.load_i64s(segment + 8 * PAGES), v.load_i64s(segment + 8 * PATHS)
    stride, rows = v.load_i64s(segment + 8 * PATH_STRIDE), v.load_i64s(segment + 8 * ROWS)
    start = base // CHUNK * CHUNK
    physical = (base + rows - 1) // CHUNK + 1 - base // CHUNK
    weights = tail + 4 * BLOCK * slots
    for c in range(physical):
        page = v.load_i64s(pages + 8 * (base // CHUNK + c)) + inside
        float_tile(isa, used, q, width, page, CHUNK, width, tail + 4 * CHUNK * c, slots, CHUNK, 0)
    zero = v.splat(np.float32(0))
    for chunk in range(base // CHUNK, chunks):
        origin = chunk * CHUNK
        for i in range(used):
            row = (p0 + i) // group
            depth = v.load_i64s(f.depths + 8 * (first_row + row))
            mine, s, w = tail + 4 * i * slots, scores + 4 * i * CHUNK, weights + 4 * i * slots
            for j in range(0, physical * CHUNK, 16):
                v.store(w + 4 * j, zero)
            visible = min(CHUNK, base + depth + 1 - origin)
            if visible <= 0:
                continue
            path = paths + 8 * row * stride
            # Committed keys keep their places; only ancestors move.
            known = max(0, min(visible, base - origin))
            for j in range(0, known, 16):
                v.store(s + 4 * j, v.load(mine + 4 * (origin - start + j)))
            for j in range(known, visible):
                place = base - start + v.load_i64s(path + 8 * (origin + j - base))
                v.store_f32(s + 4 * j, v.load_f32(mine + 4 * place))
            attend_chunk(s, visible, state + 64 * i, acc + 4 * i * width, width)
            for j in range(0, known - known % 16, 16):
                v.store(w + 4 * (origin - start + j), v.load(s + 4 * j))
            for j in range(known - known % 16, known):
                v.store_f32(w + 4 * (origin - start + j), v.load_f32(s + 4 * j))
            for j in range(known, visible):
                place = base - start + v.load_i64s(path + 8 * (origin + j - base))
                v.store_f32(w + 4 * place, v.load_f32(s + 4 * j))
        for c in range(physical):
            page = v.load_i64s(pages + 8 * (base // CHUNK + c)) + inside + 4 * CHUNK * width
            count = min(CHUNK, base + rows - start - c * CHUNK)
            float_tile(isa, used, weights + 4 * CHUNK * c, slots, page, width, count, acc, width, width, 1)
        if chunk % SPAN_CHUNKS == SPAN_CHUNKS - 1:
            for i in range(used):
                close_span(total_state + 64 * i, total + 4 * i * width, state + 64 * i, acc + 4 * i * width, width)
