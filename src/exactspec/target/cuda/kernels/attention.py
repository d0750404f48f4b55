"""Attention in fixed steps of 32 keys by logical position: a program is one row with the query heads that share a
kv head.

Key p of a row lies in slot p of its cache below the root (``p < base``) and in slot ``base + path[p - base]`` from the
root on, where `path` holds the row's ancestors, itself last. So keys come in order of position whatever the tree is,
and a tree row makes the additions of a plain run. Other rows are never seen.

Steps in order update the running maximum m, the sum l and the output acc (online softmax, arXiv 1805.02867; powers of
two, the queries carry log2(e) / sqrt(head size)). Every `SPAN_CHUNKS` chunks of 128 keys, a *span* starts from a fresh
state; spans run in parallel and are merged in order. Which span, step and lane a key falls into depends on its position
alone. A step is as small as it is because a float32 tile product keeps both operands in registers;
for the same reason scores are made of slices of a head's dimensions, in order.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["first_row", "layer", "spans"])
def attend_span(
    queries, positions, bases, path_at, paths, page_at, pages, out, out_max, out_sum, first_row, layer, spans,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, HEAD: tl.constexpr, CHUNK: tl.constexpr, SPAN_CHUNKS: tl.constexpr,
    SHARE: tl.constexpr, STEP: tl.constexpr, SLICE: tl.constexpr,
):  # fmt: skip
    """One span of one (row, kv head): acc to `out` [rows of this launch, KV_HEADS, spans, SHARE, HEAD], m and l to
    `out_max` and `out_sum` [rows, KV_HEADS, spans, SHARE].

    `queries` float32 [rows, HEADS, HEAD]; `positions`, `bases` [rows]: of the row and of its root; all
    integers are int64. `paths`: ancestors,
    a row's from ``path_at[row]`` on. `pages`: addresses of pages, a row's cache's from ``page_at[row]`` on.
    SHARE: query heads of a kv head, padded to 16 or more.
    """
    local, kv, span = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64), tl.program_id(2).to(tl.int64)
    row = first_row + local
    last = tl.load(positions + row)
    start = span * (SPAN_CHUNKS * CHUNK)
    if start <= last:
        base = tl.load(bases + row)
        ancestors = paths + tl.load(path_at + row) - base
        table = pages + tl.load(page_at + row)
        share: tl.constexpr = HEADS // KV_HEADS
        h, d, e = tl.arange(0, SHARE), tl.arange(0, HEAD), tl.arange(0, SLICE)
        from_q = queries + (row * HEADS + kv * share) * HEAD + h[:, None] * HEAD + e[None, :]
        has_head = (h < share)[:, None]
        p = start + tl.arange(0, STEP)
        block = (layer.to(tl.int64) * KV_HEADS + kv) * (2 * CHUNK)
        most = tl.full([SHARE], -1e30, tl.float32)
        total = tl.full([SHARE], 0.0, tl.float32)
        acc = tl.full([SHARE, HEAD], 0.0, tl.float32)
        steps = tl.minimum((last - start) // STEP + 1, SPAN_CHUNKS * (CHUNK // STEP))
        for _ in range(steps):
            seen = p <= last
            own = seen & (p >= base)
            slot = tl.where(own, base + tl.load(ancestors + p, mask=own, other=0), p)
            page = tl.load(table + slot // CHUNK, mask=seen, other=0).to(tl.pointer_type(tl.float32))
            keys = page + (block + slot % CHUNK) * HEAD
            scores = tl.full([SHARE, STEP], 0.0, tl.float32)
            for at in range(0, HEAD, SLICE):
                q = tl.load(from_q + at, mask=has_head, other=0.0)
                k = tl.load(keys[None, :] + at + e[:, None], mask=seen[None, :], other=0.0)
                scores = tl.dot(q, k, scores, input_precision="ieee")
            scores = tl.where(seen[None, :], scores, -1e30)
            peak = tl.maximum(most, tl.max(scores, axis=1))
            kept = tl.exp2(most - peak)
            weights = tl.where(seen[None, :], tl.exp2(scores - peak[:, None]), 0.0)
            total = tl.fma(total, kept, tl.sum(weights, axis=1))
            v = tl.load(keys[:, None] + CHUNK * HEAD + d[None, :], mask=seen[:, None], other=0.0)
            acc = tl.dot(weights, v, acc * kept[:, None], input_precision="ieee")
            most = peak
            p += STEP
        cell = (local * KV_HEADS + kv) * spans + span
        tl.store(out_max + cell * SHARE + h, most)
        tl.store(out_sum + cell * SHARE + h, total)
        tl.store(out + cell * SHARE * HEAD + h[:, None] * HEAD + d[None, :], acc)


@triton.jit(do_not_specialize=["first_row", "spans"])
def merge_spans(
    part, part_max, part_sum, positions, attended, first_row, spans,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, HEAD: tl.constexpr, CHUNK: tl.constexpr, SPAN_CHUNKS: tl.constexpr,
    SHARE: tl.constexpr,
):  # fmt: skip
    """The spans of one (row, kv head), as `attend_span` left them, in order of position; acc / l to `attended`
    float32 [rows, HEADS, HEAD]."""
    local, kv = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    row = first_row + local
    share: tl.constexpr = HEADS // KV_HEADS
    h, d = tl.arange(0, SHARE), tl.arange(0, HEAD)
    most = tl.full([SHARE], -1e30, tl.float32)
    total = tl.full([SHARE], 0.0, tl.float32)
    acc = tl.full([SHARE, HEAD], 0.0, tl.float32)
    within = h[:, None] * HEAD + d[None, :]
    cell = (local * KV_HEADS + kv) * spans
    count = tl.load(positions + row) // (SPAN_CHUNKS * CHUNK) + 1
    for _ in range(count):
        its = tl.load(part_max + cell * SHARE + h)
        peak = tl.maximum(most, its)
        left, right = tl.exp2(most - peak), tl.exp2(its - peak)
        total = tl.fma(total, left, tl.load(part_sum + cell * SHARE + h) * right)
        more = tl.load(part + cell * SHARE * HEAD + within)
        acc = tl.fma(acc, tl.broadcast_to(left[:, None], [SHARE, HEAD]), more * right[:, None])
        most = peak
        cell += 1
    to = attended + (row * HEADS + kv * share) * HEAD + within
    tl.store(to, tl.div_rn(acc, tl.broadcast_to(total[:, None], [SHARE, HEAD])), mask=(h < share)[:, None])
