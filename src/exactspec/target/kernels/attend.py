"""The attention tasks of a layer: a block of (row, head) pairs of one segment and one kv head over some of their keys.

A task walks its chunks in order and, within a chunk, its pairs six at a time, so a chunk comes from memory once for
all of them. Where a segment has too few tasks for the threads, `parts` tasks share a block's keys: each takes whole
spans and writes what a span gave to a record, and after a barrier `merge_pair` adds a pair's records in order of
position, as a task of one part does on its way.

Record of a span: float32 [16 + head_pad]: the maximum, the sum, and from element 16 on the output.
"""

from __future__ import annotations

from numba import njit

from exactspec.target.kernels import simd as v
from exactspec.target.kernels.attention import (
    SPAN_CHUNKS,
    attend_chunk,
    clear_state,
    merge_state,
    scale_chunk,
    write_output,
)
from exactspec.target.kernels.float_tile import BLOCK, INT8, PANEL, float_tile
from exactspec.target.kernels.frame import LAYER, SEGMENT
from exactspec.target.kernels.pages import CHUNK, half_bytes
from exactspec.target.kernels.task import RECORD_HEAD, close_spans, first_seen, record_of, row_and_head, task_of
from exactspec.target.kernels.tree_tail import tree_tail

BASE, PATHS, FIRST_TASK, BLOCKS = SEGMENT["base"], SEGMENT["paths"], SEGMENT["first_task"], SEGMENT["blocks"]
PARTS, PARTIALS = SEGMENT["parts"], SEGMENT["partials"]
SEGMENT_BYTES = 8 * len(SEGMENT)
WINDOW, LAYER_BYTES = LAYER["window"], 8 * len(LAYER)


@njit(nogil=True, error_model="numpy")
def attention_task(isa, f, layer, task, scratch):
    """See the module. The order of a segment's tasks is kv head, block, part."""
    segment = f.segment_table
    for _ in range(f.segments - 1):
        if task < v.load_i64s(segment + SEGMENT_BYTES + 8 * FIRST_TASK):
            break
        segment += SEGMENT_BYTES
    task -= v.load_i64s(segment + 8 * FIRST_TASK)
    blocks, parts = v.load_i64s(segment + 8 * BLOCKS), v.load_i64s(segment + 8 * PARTS)
    part, task = task % parts, task // parts
    t = task_of(f, segment, layer, task // blocks, task % blocks, parts, scratch)
    low, last = begin(f, t)

    # Chunks below `shared` are handled in place; a tree's tail is assembled path by path, by the last part.
    tree = v.load_i64s(segment + 8 * PATHS) != 0
    chunks = last // CHUNK + 1
    shared = t.base // CHUNK if tree else chunks
    first = first_seen(low, t.window) // CHUNK
    span, spans = first // SPAN_CHUNKS, max(first, min(shared, chunks - 1)) // SPAN_CHUNKS + 1
    start = max(first, (span + (spans - span) * part // parts) * SPAN_CHUNKS)
    end = min(shared, (span + (spans - span) * (part + 1) // parts) * SPAN_CHUNKS)
    for chunk in range(start, end):
        for i in range(0, t.used, BLOCK):
            block_chunk(isa, f, t, chunk, i, min(BLOCK, t.used - i))
        if chunk % SPAN_CHUNKS == SPAN_CHUNKS - 1 or (chunk == end - 1 and not tree):
            close_spans(f, t, 0, t.used, chunk)
    if tree and part == parts - 1:
        for i in range(0, t.used, BLOCK):
            tree_tail(isa, f, t, shared, i, min(BLOCK, t.used - i))
    if parts == 1:
        for i in range(t.used):
            row, head = row_and_head(f, t, i)
            out = f.attended + 4 * (row * f.heads + head) * f.head_pad
            write_output(t.total_state + 64 * i, t.total + 4 * i * f.head_pad, f.head_pad, out)


@njit(nogil=True, error_model="numpy")
def begin(f, t):
    """Gather the pairs' queries and positions, clear their states; returns the lowest and the highest position."""
    width = f.head_pad
    low, last = 1 << 60, 0
    for i in range(t.used):
        row, head = row_and_head(f, t, i)
        source = f.queries + 4 * (row * f.heads + head) * width
        for d in range(0, width, 16):
            v.store(t.queries + 4 * (i * width + d), v.load(source + 4 * d))
        clear_state(t.state + 64 * i, t.acc + 4 * i * width, width)
        clear_state(t.total_state + 64 * i, t.total + 4 * i * width, width)
        position = t.base + v.load_i64s(f.depths + 8 * row)
        v.store_i64s(t.positions + 8 * i, position)
        low, last = min(low, position), max(last, position)
    return low, last


@njit(nogil=True, error_model="numpy")
def block_chunk(isa, f, t, chunk, start, count):
    """Up to 6 pairs from `start` on over one chunk that lies in its logical place."""
    width, kind, origin = f.head_pad, f.cache_kind, chunk * CHUNK
    # A tree's committed keys are seen by all its rows; in a chain the first rows of a block may not reach the chunk.
    most, least = 0, CHUNK
    for i in range(start, start + count):
        position = v.load_i64s(t.positions + 8 * i)
        most = max(most, min(CHUNK, position + 1 - origin))
        least = min(least, max(0, first_seen(position, t.window) - origin))
    if most <= least:
        return
    keys = v.load_i64s(t.pages + 8 * chunk) + t.inside
    half = half_bytes(kind, width)
    queries, acc = t.queries + 4 * start * width, t.acc + 4 * start * width
    panel = width * PANEL * 4 >> kind
    panels = (most + PANEL - 1) // PANEL
    float_tile(isa, kind, count, queries, width, keys, panel, width, t.scores, CHUNK, panels, 0)
    for i in range(count):
        scores = t.scores + 4 * i * CHUNK
        position = v.load_i64s(t.positions + 8 * (start + i))
        if kind == INT8:
            scale_chunk(scores, keys + 2 * half)
        before, end = first_seen(position, t.window) - origin, position + 1 - origin
        attend_chunk(scores, before, end, t.state + 64 * (start + i), acc + 4 * i * width, width)
        if kind == INT8:
            scale_chunk(scores, keys + 2 * half + 4 * CHUNK)
    panel = CHUNK * PANEL * 4 >> kind
    even = (most + 1) // 2 * 2
    float_tile(isa, kind, count, t.scores, CHUNK, keys + half, panel, even, acc, width, width // PANEL, 1)


@njit(nogil=True, error_model="numpy")
def merge_pair(f, layer, pair, scratch):
    """Where its segment was split: what a pair's spans gave, merged in order of position."""
    row, head = pair // f.heads, pair % f.heads
    segment = f.segment_table + v.load_i64s(f.row_segment + 8 * row) * SEGMENT_BYTES
    if v.load_i64s(segment + 8 * PARTS) == 1:
        return
    state, total, width = scratch, scratch + 64, f.head_pad
    window = v.load_i64s(f.layer_table + layer * LAYER_BYTES + 8 * WINDOW)
    position = v.load_i64s(segment + 8 * BASE) + v.load_i64s(f.depths + 8 * row)
    clear_state(state, total, width)
    first, last = first_seen(position, window) // CHUNK // SPAN_CHUNKS, position // CHUNK // SPAN_CHUNKS
    for span in range(first, last + 1):
        record = record_of(f, segment, v.load_i64s(segment + 8 * PARTIALS), row, head, span)
        merge_state(state, total, record, record + 4 * RECORD_HEAD, width)
    write_output(state, total, width, f.attended + 4 * pair * width)
