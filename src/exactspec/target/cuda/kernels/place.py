"""Rotary embedding (arXiv 2104.09864) and the way into the cache; moving slots within it.

A page holds 128 slots of all layers: float32 [layer][kv head][key, value][slot][dim]. Pages are separate allocations,
known to the kernels by address.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["layer", "query_scale"])
def place_rows(
    qkv, cos, sin, positions, slots, page_of_row, queries, layer, query_scale,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, TILE: tl.constexpr, HALF: tl.constexpr, STRIDE: tl.constexpr,
    CHUNK: tl.constexpr,
):  # fmt: skip
    """TILE heads of one row: queries are rotated and scaled into `queries` [rows, HEADS, 2 * HALF], keys rotated into
    the cache, values copied there. All of it is done number by number.

    `qkv` float32 [rows, STRIDE], the dimensions of a query or key as two halves of HALF. `cos`, `sin` float32
    [positions, HALF]. `slots` [rows]: slot in its cache; `page_of_row` [rows]: address of the page it lies in.
    """
    row = tl.program_id(0).to(tl.int64)
    head = (tl.program_id(1).to(tl.int64) * TILE + tl.arange(0, TILE))[:, None]
    d = tl.arange(0, HALF)[None, :]
    inside = head < HEADS + 2 * KV_HEADS
    at = qkv + row * STRIDE + head * (2 * HALF) + d
    a, b = tl.load(at, mask=inside, other=0.0), tl.load(at + HALF, mask=inside, other=0.0)
    angle = tl.load(positions + row) * HALF + d
    c, s = tl.load(cos + angle), tl.load(sin + angle)
    is_value = head >= HEADS + KV_HEADS
    turned = tl.where(is_value, a, a * c - b * s)
    b = tl.where(is_value, b, b * c + a * s)
    # Finite, always: a stale slot has weight 0, and 0 times infinity would be NaN.
    a = tl.minimum(tl.maximum(tl.where(turned == turned, turned, 0.0), -1e9), 1e9)
    b = tl.minimum(tl.maximum(tl.where(b == b, b, 0.0), -1e9), 1e9)
    to = queries + (row * HEADS + head) * (2 * HALF) + d
    tl.store(to, a * query_scale, mask=head < HEADS)
    tl.store(to + HALF, b * query_scale, mask=head < HEADS)
    page = tl.load(page_of_row + row).to(tl.pointer_type(tl.float32))
    # Keys and values of a kv head follow one another.
    kv = layer.to(tl.int64) * KV_HEADS + head - HEADS
    block = tl.where(is_value, (kv - KV_HEADS) * 2 + 1, kv * 2)
    to = page + (block * CHUNK + tl.load(slots + row) % CHUNK) * (2 * HALF) + d
    tl.store(to, a, mask=inside & (head >= HEADS))
    tl.store(to + HALF, b, mask=inside & (head >= HEADS))


@triton.jit(do_not_specialize=["moves"])
def move_slots(table, moves, HEAD: tl.constexpr, CHUNK: tl.constexpr):
    """Copy slots in order, for one (layer, kv head, key or value) a program: `table` int64 [moves, 4] of source page,
    source slot, target page, target slot. A slot's own lane copies it, so a source may be an earlier target."""
    block = tl.program_id(0).to(tl.int64)
    d = tl.arange(0, HEAD)
    for i in range(moves):
        source = tl.load(table + 4 * i).to(tl.pointer_type(tl.float32))
        target = tl.load(table + 4 * i + 2).to(tl.pointer_type(tl.float32))
        x = tl.load(source + (block * CHUNK + tl.load(table + 4 * i + 1)) * HEAD + d)
        tl.store(target + (block * CHUNK + tl.load(table + 4 * i + 3)) * HEAD + d, x)
