"""The chunks of a tree from its root's on: each row along its own path (see attention)."""

from __future__ import annotations

import numpy as np
from numba import njit

from exactspec.target.kernels import simd as v
from exactspec.target.kernels.attention import SPAN_CHUNKS, attend_chunk, scale_chunk
from exactspec.target.kernels.float_tile import INT8, PANEL, float_tile
from exactspec.target.kernels.frame import SEGMENT
from exactspec.target.kernels.pages import CHUNK, half_bytes
from exactspec.target.kernels.task import close_spans, first_seen

PATHS, PATH_STRIDE = SEGMENT["paths"], SEGMENT["path_stride"]


@njit(nogil=True, error_model="numpy")
def tree_tail(isa, f, t, first, start, count):
    """Up to 6 pairs from `start` on over the chunks from `first` on, which is the root's; ends their last span.

    Their scores of all physical slots are computed at once. Weights by physical slot are zero but for the ancestors
    that the chunk at hand holds; only those are set, and cleared again.
    """
    width, kind, slots = f.head_pad, f.cache_kind, f.tail_slots
    half, origin = half_bytes(kind, width), first * CHUNK
    scores, weights = t.tail, t.tail + 4 * count * slots
    # Physical slots that a row of the block can see: up to its last row.
    used = t.base + (t.first + start + count - 1) // t.group + 1 - origin
    physical = (used + CHUNK - 1) // CHUNK
    zero = v.splat(np.float32(0))
    for i in range(count):
        for j in range(0, physical * CHUNK, 16):
            v.store(weights + 4 * (i * slots + j), zero)
    for c in range(physical):
        keys = v.load_i64s(t.pages + 8 * (first + c)) + t.inside
        panels = (min(CHUNK, used - c * CHUNK) + PANEL - 1) // PANEL
        panel = width * PANEL * 4 >> kind
        at, queries = scores + 4 * CHUNK * c, t.queries + 4 * start * width
        float_tile(isa, kind, count, queries, width, keys, panel, width, at, slots, panels, 0)
        if kind == INT8:
            for i in range(count):
                scale_chunk(at + 4 * i * slots, keys + 2 * half)
    last = 0
    for i in range(start, start + count):
        last = max(last, v.load_i64s(t.positions + 8 * i))
    for chunk in range(first, last // CHUNK + 1):
        low, high = physical * CHUNK, 0
        for i in range(count):
            low, high = one_row(
                f, t, start + i, chunk, origin, scores + 4 * i * slots, weights + 4 * i * slots, low, high
            )
        for c in range(low // CHUNK, (high + CHUNK - 1) // CHUNK):
            values = v.load_i64s(t.pages + 8 * (first + c)) + t.inside + half
            at = weights + 4 * CHUNK * c
            if kind == INT8:
                for i in range(count):
                    scale_chunk(at + 4 * i * slots, values + half + 4 * CHUNK)
            even = (min(CHUNK, high - c * CHUNK) + 1) // 2 * 2
            panel, acc = CHUNK * PANEL * 4 >> kind, t.acc + 4 * start * width
            float_tile(isa, kind, count, at, slots, values, panel, even, acc, width, width // PANEL, 1)
        for i in range(count):
            for j in range(low // 16 * 16, high, 16):
                v.store(weights + 4 * (i * slots + j), zero)
        if chunk % SPAN_CHUNKS == SPAN_CHUNKS - 1 or chunk == last // CHUNK:
            close_spans(f, t, start, count, chunk)


@njit(nogil=True, error_model="numpy")
def one_row(f, t, pair, chunk, origin, mine, weights, low, high):
    """Softmax of one pair's chunk: scores by physical slot `mine` to logical order and back to `weights`. Returns the
    range low .. high - 1 of physical slots with weights, widened."""
    row, position = (t.first + pair) // t.group, v.load_i64s(t.positions + 8 * pair)
    end = min(CHUNK, position + 1 - chunk * CHUNK)
    begin = max(0, first_seen(position, t.window) - chunk * CHUNK)
    if end <= begin:
        return low, high
    path = v.load_i64s(t.segment + 8 * PATHS) + 8 * row * v.load_i64s(t.segment + 8 * PATH_STRIDE)
    path += 8 * (chunk * CHUNK - t.base)  # entry j: the row at the chunk's j-th position
    behind, root = chunk * CHUNK - origin, t.base - origin
    # Committed keys keep their places; only ancestors move.
    known = max(0, min(end, t.base - chunk * CHUNK))
    s = t.scores
    for j in range(0, known, 16):
        v.store(s + 4 * j, v.load(mine + 4 * (behind + j)))
    for j in range(known, end):
        v.store_f32(s + 4 * j, v.load_f32(mine + 4 * (root + v.load_i64s(path + 8 * j))))
    width = f.head_pad
    attend_chunk(s, begin, end, t.state + 64 * pair, t.acc + 4 * pair * width, width)
    for j in range(0, known - known % 16, 16):
        v.store(weights + 4 * (behind + j), v.load(s + 4 * j))
    for j in range(known - known % 16, known):
        v.store_f32(weights + 4 * (behind + j), v.load_f32(s + 4 * j))
    for j in range(known, end):
        v.store_f32(weights + 4 * (root + v.load_i64s(path + 8 * j)), v.load_f32(s + 4 * j))
    first = behind if known > 0 else root + v.load_i64s(path)
    final = known - 1 if end <= known else root + v.load_i64s(path + 8 * (end - 1))
    return min(low, first), max(high, final + 1)
