"""One attention task: what it works on, its scratch, and where a finished span goes."""

from __future__ import annotations

from typing import NamedTuple

from numba import njit

from exactspec.target.kernels import simd as v
from exactspec.target.kernels.attention import SPAN_CHUNKS, clear_state, merge_state
from exactspec.target.kernels.float_tile import BLOCK
from exactspec.target.kernels.frame import LAYER, SEGMENT
from exactspec.target.kernels.pages import CHUNK

SEGMENT_BYTES = 8 * len(SEGMENT)
RECORD_HEAD = 16  # floats of a record before its output
PAGES, BASE, FIRST_ROW, ROWS = SEGMENT["pages"], SEGMENT["base"], SEGMENT["first_row"], SEGMENT["rows"]
PATHS, BLOCKS, SPANS, PARTIALS = SEGMENT["paths"], SEGMENT["blocks"], SEGMENT["spans"], SEGMENT["partials"]
WINDOW, LAYER_BYTES = LAYER["window"], 8 * len(LAYER)


class Task(NamedTuple):
    """Integers. Pair i of the task is pair `first + i` of its segment and kv head, row by row."""

    segment: int  # address of its row in the segment table
    pages: int
    inside: int  # of a page: this layer and kv head
    base: int
    first_row: int
    group: int  # query heads of a kv head
    kv: int
    first: int
    used: int
    window: int
    records: int  # where this task shares its pairs' keys with others: the segment's partials; else 0
    # Scratch of the thread, float32 unless said otherwise.
    queries: int  # [pairs, width]
    acc: int  # [pairs, width]
    total: int  # [pairs, width]
    state: int  # [pairs, 16]: m and l of the span
    total_state: int  # [pairs, 16]
    positions: int  # int64 [pairs]
    scores: int  # [BLOCK, 128]
    tail: int  # see tree_tail


@njit(nogil=True, error_model="numpy")
def task_of(f, segment, layer, kv, block, parts, scratch):
    """The task for one block of pairs, without its data."""
    group = f.heads // f.kv_heads
    pairs, blocks = v.load_i64s(segment + 8 * ROWS) * group, v.load_i64s(segment + 8 * BLOCKS)
    first = pairs * block // blocks
    floats = 4 * f.pairs * f.head_pad
    state = scratch + 3 * floats
    scores = state + 136 * f.pairs
    return Task(
        segment,
        v.load_i64s(segment + 8 * PAGES),
        layer * f.layer_bytes + kv * f.head_bytes,
        v.load_i64s(segment + 8 * BASE),
        v.load_i64s(segment + 8 * FIRST_ROW),
        group,
        kv,
        first,
        pairs * (block + 1) // blocks - first,
        v.load_i64s(f.layer_table + layer * LAYER_BYTES + 8 * WINDOW),
        v.load_i64s(segment + 8 * PARTIALS) if parts > 1 else 0,
        scratch,
        scratch + floats,
        scratch + 2 * floats,
        state,
        state + 64 * f.pairs,
        state + 128 * f.pairs,
        scores,
        scores + 4 * BLOCK * CHUNK,
    )


@njit(nogil=True, error_model="numpy")
def row_and_head(f, t, i):
    """Row of the forward and query head of pair i."""
    pair = t.first + i
    return t.first_row + pair // t.group, t.kv * t.group + pair % t.group


@njit(nogil=True, error_model="numpy")
def first_seen(position, window):
    """First key that a row at `position` sees."""
    return max(0, position - window + 1) if window else 0


@njit(nogil=True, error_model="numpy")
def record_of(f, segment, records, row, head, span):
    """Address of the record of a row of the forward."""
    row -= v.load_i64s(segment + 8 * FIRST_ROW)
    index = (row * f.heads + head) * v.load_i64s(segment + 8 * SPANS) + span
    return records + 4 * (RECORD_HEAD + f.head_pad) * index


@njit(nogil=True, error_model="numpy")
def close_spans(f, t, start, count, chunk):
    """Merge or record the span that ends with `chunk` for pairs start .. start + count - 1, and begin the next one;
    an empty span changes nothing."""
    width = f.head_pad
    for i in range(start, start + count):
        state, acc = t.state + 64 * i, t.acc + 4 * i * width
        if not v.load_f32(state + 4) > 0:
            continue
        if t.records:
            row, head = row_and_head(f, t, i)
            record = record_of(f, t.segment, t.records, row, head, chunk // SPAN_CHUNKS)
            v.store_f32(record, v.load_f32(state))
            v.store_f32(record + 4, v.load_f32(state + 4))
            for d in range(0, width, 16):
                v.store(record + 4 * (RECORD_HEAD + d), v.load(acc + 4 * d))
        else:
            merge_state(t.total_state + 64 * i, t.total + 4 * i * width, state, acc, width)
        clear_state(state, acc, width)
