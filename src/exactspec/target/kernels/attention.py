"""Attention in fixed chunks of 128 keys by logical position, so that a row's additions never depend on its neighbours.

Numerics of one (row, head) *pair*, the same for every grouping of rows:

* scores: ``s[j] = sum over d of q[d] * k[j, d]``, one fused multiply-add a dimension, d in order; q carries the
  factor log2(e) / sqrt(head_dim), so powers of two replace exponentials. With an int8 cache the sum is multiplied by
  the key's scale, and a key's weight by the value's scale before it meets the value (not where weights are summed);
* chunk by chunk in order of position an online softmax (arXiv 1805.02867) updates the running maximum m, the sum
  l (16 lanes, fixed tree) and the output acc (one fused multiply-add a key, keys in order);
* every 2 chunks (a *span* of 256 keys) start from a fresh state; finished spans are merged in order. Spans are
  independent, so several threads may share a long row without changing the order of additions.

*Trees.* Row i of a segment lives in the physical slot ``base + i`` of its cache; its logical position is
``base + depth``. Chunks wholly below the root are the same for all rows. In the tail a row sees the committed
keys and its ancestors: its scores are moved to their logical slots before the softmax, and the weights are moved
back to the physical slots for the product with the values. Physical and logical order of a path agree (a parent
comes before its child), and a weight of exactly 0 changes no sum, so the additions are those of a plain run.

*Windows.* Where a layer has a window w, a row at position p sees the keys j with p - w < j <= p. A chunk outside
changes no state; a key outside, in a chunk that is not, weighs exactly 0.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from exactspec.target.kernels import simd as v
from exactspec.target.kernels.pages import CHUNK

SPAN_CHUNKS = 2
HIDDEN_SCORE = np.float32(-1e30)


@njit(nogil=True, error_model="numpy")
def softmax_chunk(scores: int, state: int, acc: int, width: int) -> None:
    """One chunk of one pair: scores [128] become weights in place; state (m, l) and acc [width] follow."""
    peak = v.load(scores)
    for j in range(16, CHUNK, 16):
        peak = v.maximum(v.load(scores + 4 * j), peak)
    most = v.max_lanes(peak)
    before = v.load_f32(state)
    if before > most:
        most = before
    shift = v.splat(most)
    kept = v.weight(v.sub(v.splat(before), shift))
    sums = v.splat(np.float32(0))
    for j in range(0, CHUNK, 16):
        p = v.weight(v.sub(v.load(scores + 4 * j), shift))
        v.store(scores + 4 * j, p)
        sums = v.add(sums, p)
    total = v.fma(v.splat(v.load_f32(state + 4)), kept, v.splat(v.sum_lanes(sums)))
    v.store_f32(state, most)
    v.store_f32(state + 4, v.first_lane(total))
    for d in range(0, width, 16):
        v.store(acc + 4 * d, v.mul(v.load(acc + 4 * d), kept))


@njit(nogil=True, error_model="numpy")
def attend_chunk(scores, first, end, state, acc, width):
    """Weights of one pair's chunk of which it sees the keys first .. end - 1 (any integers); a chunk that it does not
    see leaves its state alone and weighs 0."""
    if end <= 0 or first >= CHUNK or first >= end:
        zero = v.splat(np.float32(0))
        for j in range(0, CHUNK, 16):
            v.store(scores + 4 * j, zero)
        return
    hide_tail(scores, min(end, CHUNK))
    if first > 0:
        hide_head(scores, first)
    softmax_chunk(scores, state, acc, width)


@njit(nogil=True, error_model="numpy")
def hide_tail(scores: int, visible: int) -> None:
    """Scores at and after `visible` (0 .. 128) never weigh anything."""
    for j in range(visible - visible % 16, CHUNK, 16):
        v.store(scores + 4 * j, v.mask_tail(v.load(scores + 4 * j), visible - j, HIDDEN_SCORE))


@njit(nogil=True, error_model="numpy")
def hide_head(scores: int, first: int) -> None:
    """Scores before `first` (0 .. 128) never weigh anything."""
    for j in range(0, first, 16):
        v.store(scores + 4 * j, v.mask_head(v.load(scores + 4 * j), first - j, HIDDEN_SCORE))


@njit(nogil=True, error_model="numpy")
def scale_chunk(x: int, scales: int) -> None:
    """x [128] *= scales [128]: an int8 cache's scales of one chunk, on scores or on weights."""
    for j in range(0, CHUNK, 16):
        v.store(x + 4 * j, v.mul(v.load(x + 4 * j), v.load(scales + 4 * j)))


@njit(nogil=True, error_model="numpy")
def clear_state(state: int, acc: int, width: int) -> None:
    v.store_f32(state, HIDDEN_SCORE)
    v.store_f32(state + 4, np.float32(0))
    zero = v.splat(np.float32(0))
    for d in range(0, width, 16):
        v.store(acc + 4 * d, zero)


@njit(nogil=True, error_model="numpy")
def merge_state(into: int, into_acc: int, state: int, acc: int, width: int) -> None:
    """Append the span `state` to what `into` holds, in order of position."""
    a, b = v.load_f32(into), v.load_f32(state)
    most = a if a > b else b
    shift = v.splat(most)
    left, right = v.weight(v.sub(v.splat(a), shift)), v.weight(v.sub(v.splat(b), shift))
    total = v.fma(v.splat(v.load_f32(into + 4)), left, v.mul(v.splat(v.load_f32(state + 4)), right))
    v.store_f32(into, most)
    v.store_f32(into + 4, v.first_lane(total))
    for d in range(0, width, 16):
        at = into_acc + 4 * d
        v.store(at, v.fma(v.load(at), left, v.mul(v.load(acc + 4 * d), right)))


@njit(nogil=True, error_model="numpy")
def write_output(state: int, acc: int, width: int, out: int) -> None:
    total = v.splat(v.load_f32(state + 4))
    for d in range(0, width, 16):
        v.store(out + 4 * d, v.div(v.load(acc + 4 * d), total))
