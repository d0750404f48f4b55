"""The attention tasks of a layer: a few (row, head) pairs of one segment and one kv head over all their keys."""

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

PAGES, BASE, FIRST_ROW, ROWS = SEGMENT["pages"], SEGMENT["base"], SEGMENT["first_row"], SEGMENT["rows"]
PATHS, PATH_STRIDE = SEGMENT["paths"], SEGMENT["path_stride"]
FIRST_TASK, BLOCKS = SEGMENT["first_task"], SEGMENT["blocks"]
SEGMENT_BYTES = 8 * len(SEGMENT)


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
