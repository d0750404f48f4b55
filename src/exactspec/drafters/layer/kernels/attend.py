"""Attention of the draft layer: rows over chunks of 128 slots, each with the part of it that a row sees.

Work is shared by spans of chunks of one kv head; what a span gave to a (row, head) pair is a record, float32
[16 + pad]: maximum, sum, and from element 16 on the output. Records are merged in the order of spans, so a result
depends neither on the threads nor on the other rows.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from exactspec.drafters.layer.kernels.frame import MOST_LEVELS, S_SLOTS
from exactspec.target.kernels import simd as v
from exactspec.target.kernels.attention import (
    HIDDEN_SCORE,
    attend_chunk,
    clear_state,
    merge_state,
    scale_chunk,
    softmax_chunk,
    write_output,
)
from exactspec.target.kernels.float_tile import BFLOAT16, BLOCK, INT8, PANEL, float_tile
from exactspec.target.kernels.pages import CHUNK, half_bytes

RECORD_HEAD = 16
OWN_SPAN = 2  # chunks of a span of the own attention


@njit(nogil=True, error_model="numpy")
def record_at(f, pair, spans, span, width):
    return f.partials + 4 * (RECORD_HEAD + width) * (pair * spans + span)


@njit(nogil=True, error_model="numpy")
def ring_seen(f, position, chunk):
    """(first, end) of the slots of a chunk of the ring that a row at `position` sees, of committed tokens. The ring is
    at least a chunk longer than the window, so that what is seen of a chunk is one piece."""
    last = f.take_first + f.take - 1  # the root
    low = max(position - f.window + 1, f.low)
    if low > last:
        return 0, 0
    a, b, origin = low % f.ring, last % f.ring + 1, chunk * CHUNK
    if a < b:
        return max(0, a - origin), min(CHUNK, b - origin)
    if b > origin:
        return 0, min(CHUNK, b - origin)
    return max(0, a - origin), CHUNK


@njit(nogil=True, error_model="numpy")
def hide_strangers(f, scores, row, spare):
    """Of the tree's slots a row sees its own and its ancestors'."""
    path, depth = f.path + 8 * row * (MOST_LEVELS + 1), v.load_i64s(f.row_depth + 8 * row)
    for i in range(depth):
        v.store_f32(spare + 4 * i, v.load_f32(scores + 4 * v.load_i64s(path + 8 * i)))
    hidden = v.splat(HIDDEN_SCORE)
    for j in range(0, CHUNK, 16):
        v.store(scores + 4 * j, hidden)
    for i in range(depth):
        v.store_f32(scores + 4 * v.load_i64s(path + 8 * i), v.load_f32(spare + 4 * i))


@njit(nogil=True, error_model="numpy")
def start_block(count, state, acc, width):
    for i in range(count):
        clear_state(state + 64 * i, acc + 4 * i * width, width)


@njit(nogil=True, error_model="numpy")
def end_block(f, first, count, spans, span, state, acc, width):
    for i in range(count):
        record = record_at(f, first + i, spans, span, width)
        v.store_f32(record, v.load_f32(state + 64 * i))
        v.store_f32(record + 4, v.load_f32(state + 64 * i + 4))
        for d in range(0, width, 16):
            v.store(record + 4 * (RECORD_HEAD + d), v.load(acc + 4 * (i * width + d)))


@njit(nogil=True, error_model="numpy")
def own_spans(f, rows, tree):
    """Spans of the own attention: of the ring's chunks, and one of the tree's."""
    return (f.ring // CHUNK + OWN_SPAN - 1) // OWN_SPAN + (1 if tree else 0)


@njit(nogil=True, error_model="numpy")
def own_item(isa, f, rows, tree, item, scratch):
    """One span of one kv head of the own attention, for all rows."""
    width, group, spans = f.head_pad, f.heads // f.kv_heads, own_spans(f, rows, tree)
    kv, span = item // spans, item % spans
    ring_chunks = f.ring // CHUNK
    of_tree = tree and span == spans - 1
    begin, end = span * OWN_SPAN, min(ring_chunks, (span + 1) * OWN_SPAN)
    if of_tree:
        begin, end = ring_chunks, ring_chunks + 1
    pairs, half = rows * group, half_bytes(BFLOAT16, width)
    acc = scratch
    state = acc + 4 * BLOCK * width
    scores = state + 64 * BLOCK
    spare = scores + 4 * BLOCK * CHUNK
    for start in range(0, pairs, BLOCK):
        count = min(BLOCK, pairs - start)
        queries = f.queries + 4 * width * (kv * pairs + start)
        start_block(count, state, acc, width)
        for chunk in range(begin, end):
            least, most = CHUNK, 0
            for i in range(count):
                row = (start + i) // group
                if of_tree:
                    first, stop = 0, v.load_i64s(f.state + 8 * S_SLOTS)
                else:
                    first, stop = ring_seen(f, v.load_i64s(f.row_position + 8 * row), chunk)
                least, most = min(least, first), max(most, stop)
            if most <= least:
                continue
            keys = v.load_i64s(f.pages + 8 * chunk) + kv * f.own_head_bytes
            panels = (most + PANEL - 1) // PANEL
            panel = width * PANEL * 2
            float_tile(isa, BFLOAT16, count, queries, width, keys, panel, width, scores, CHUNK, panels, 0)
            for i in range(count):
                row = (start + i) // group
                at = scores + 4 * i * CHUNK
                if of_tree:
                    hide_strangers(f, at, row, spare)
                    softmax_chunk(at, state + 64 * i, acc + 4 * i * width, width)
                else:
                    first, stop = ring_seen(f, v.load_i64s(f.row_position + 8 * row), chunk)
                    attend_chunk(at, first, stop, state + 64 * i, acc + 4 * i * width, width)
            even = (most + 1) // 2 * 2
            panel = CHUNK * PANEL * 2
            float_tile(isa, BFLOAT16, count, scores, CHUNK, keys + half, panel, even, acc, width, width // PANEL, 1)
        end_block(f, kv * pairs + start, count, spans, span, state, acc, width)


@njit(nogil=True, error_model="numpy")
def cross_spans(f):
    return (f.cross_count + f.cross_chunks - 1) // f.cross_chunks


@njit(nogil=True, error_model="numpy")
def cross_item(isa, f, rows, item, scratch):
    """One span of one kv head of the target's last layer, for all rows; all see the same."""
    width, group, spans, kind = f.cross_pad, f.cross_heads // f.cross_kv, cross_spans(f), f.cross_kind
    kv, span = item // spans, item % spans
    begin, end = span * f.cross_chunks, min(f.cross_count, (span + 1) * f.cross_chunks)
    pairs, half = rows * group, half_bytes(kind, width)
    acc = scratch
    state = acc + 4 * BLOCK * width
    scores = state + 64 * BLOCK
    for start in range(0, pairs, BLOCK):
        count = min(BLOCK, pairs - start)
        queries = f.queries + 4 * width * (kv * pairs + start)
        start_block(count, state, acc, width)
        for chunk in range(begin, end):
            entry = f.cross + 24 * chunk
            keys = v.load_i64s(entry) + kv * f.cross_head_bytes
            first, stop = v.load_i64s(entry + 8), v.load_i64s(entry + 16)
            panels = (stop + PANEL - 1) // PANEL
            panel = width * PANEL * 4 >> kind
            float_tile(isa, kind, count, queries, width, keys, panel, width, scores, CHUNK, panels, 0)
            for i in range(count):
                at = scores + 4 * i * CHUNK
                if kind == INT8:
                    scale_chunk(at, keys + 2 * half)
                attend_chunk(at, first, stop, state + 64 * i, acc + 4 * i * width, width)
                if kind == INT8:
                    scale_chunk(at, keys + 2 * half + 4 * CHUNK)
            even = (stop + 1) // 2 * 2
            panel = CHUNK * PANEL * 4 >> kind
            float_tile(isa, kind, count, scores, CHUNK, keys + half, panel, even, acc, width, width // PANEL, 1)
        end_block(f, kv * pairs + start, count, spans, span, state, acc, width)


@njit(nogil=True, error_model="numpy")
def merge_row(f, rows, row, heads, kv_heads, spans, width, scratch):
    """A row's records become its attended heads; zeros where nothing was seen."""
    group = heads // kv_heads
    state, total = scratch, scratch + 64
    for head in range(heads):
        pair = (head // group * rows + row) * group + head % group
        clear_state(state, total, width)
        for span in range(spans):
            record = record_at(f, pair, spans, span, width)
            if v.load_f32(record + 4) > np.float32(0):
                merge_state(state, total, record, record + 4 * RECORD_HEAD, width)
        out = f.attended + 4 * width * (row * heads + head)
        if v.load_f32(state + 4) > np.float32(0):
            write_output(state, total, width, out)
        else:
            zero = v.splat(np.float32(0))
            for d in range(0, width, 16):
                v.store(out + 4 * d, zero)
