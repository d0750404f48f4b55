"""The best ids of a row of logits, highest first, ties to the lowest id: within blocks, then over the blocks' winners.
No rounding happens here, so the split into blocks cannot show."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["rows", "source_stride", "count"])
def best_of_block(
    logits, source_ids, values, ids, rows, source_stride, count,
    BLOCKS: tl.constexpr, TOP: tl.constexpr, NO_ID: tl.constexpr, NAMED: tl.constexpr,
    TILE_ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The TOP best of one of the BLOCKS blocks of some rows: `logits` float32 [rows, source_stride], `count` of them
    real, to `values` float32 and `ids` int64 [rows, BLOCKS * TOP].

    NAMED: the ids of the logits are those of `source_ids`, where NO_ID (above all ids) marks none; else their places.
    A block with fewer than TOP gives NO_ID with minus infinity for the rest. NaN counts as minus infinity.
    """
    r = tl.program_id(0).to(tl.int64) * TILE_ROWS + tl.arange(0, TILE_ROWS)
    block = tl.program_id(1)
    live = r < rows
    place = (block * BLOCK + tl.arange(0, BLOCK))[None, :]
    inside = live[:, None] & (place < count)
    x = tl.load(logits + r[:, None] * source_stride + place, mask=inside, other=float("-inf"))
    x = tl.where(x == x, x, float("-inf"))
    if NAMED:
        token = tl.load(source_ids + r[:, None] * source_stride + place, mask=inside, other=NO_ID)
    else:
        token = tl.where(inside, place, NO_ID).to(tl.int64)
    to = (r * BLOCKS + block) * TOP
    for i in range(TOP):
        most = tl.max(x, axis=1)
        winner = tl.min(tl.where(x == most[:, None], token, NO_ID), axis=1)
        tl.store(values + to + i, most, mask=live)
        tl.store(ids + to + i, winner, mask=live)
        taken = token == winner[:, None]
        token = tl.where(taken, NO_ID, token)
        x = tl.where(taken, float("-inf"), x)
