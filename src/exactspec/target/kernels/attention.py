"""Attention in fixed chunks of 128 keys by logical position, so that a row's additions never depend on its neighbours.

Numerics of one (row, head), the same for every grouping of rows:

* scores: ``s[j] = sum over d of q[d] * k[j, d]``, one fused multiply-add a dimension, d in order; q carries the
  factor log2(e) / sqrt(head_dim), so powers of two replace exponentials;
* chunk by chunk in order of position an online softmax (arXiv 1805.02867) updates the running maximum m, the sum
  l (16 lanes, fixed tree) and the output acc (one fused multiply-add a key, keys in order);
* every 8 chunks (a *span* of 1,024 keys) start from a fresh state; finished spans are merged in order. Spans are
  independent, so several threads may share a long row without changing the order of additions.

*Trees.* Row i of a segment lives in the physical slot ``base + i`` of its cache; its logical position is
``base + depth``. Chunks wholly below the root are the same for all rows. In the tail a row sees the committed
keys and its ancestors: its scores are moved to their logical slots before the softmax, and the weights are moved
back to the physical slots for the product with the values. Physical and logical order of a path agree (a parent
comes before its child), and a weight of exactly 0 changes no sum, so the additions are those of a plain run.

Page of a cache, one per 128 slots: ``[layer][kv head][key: dim][slot], [value: slot][dim]`` float32.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit
from numba.core import types
from numba.extending import intrinsic

from exactspec.target.kernels import emit
from exactspec.target.kernels import simd as v
from exactspec.target.kernels.emit import I64, const

CHUNK = 128
SPAN_CHUNKS = 8
BLOCK = 6  # (row, head) pairs that share a pass over the keys
HIDDEN_SCORE = np.float32(-1e30)

_VF = ir.VectorType(emit.F32, 16)
# Vectors of 16 columns a pass, by instruction set: what 6 rows of accumulators leave of the register file.
_COLUMNS = {"avx512vnni": 4, "avx512vnni-256": 2}


def _float_tile(module: Any, kind: str, rows: int) -> Any:
    """``void (a, lda, b, ldb, count, out, ldo, columns, add)``: out[r, c] = sum over k of a[r, k] * b[k, c], in order.

    One fused multiply-add each, starting from out if `add`. Strides and columns in elements; columns % 16 == 0.
    """
    name = f"exactspec_float_tile_{kind}_{rows}"
    known = module.globals.get(name)
    if known:
        return known
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [I64] * 9), name)
    function.linkage = "internal"
    function.attributes.add("noinline")
    wide = _COLUMNS.get(kind, 1)
    columns = function.args[7]
    b = ir.IRBuilder(function.append_basic_block("entry"))
    start: Any = const(0)
    for vectors in sorted({wide, 1}, reverse=True):
        before = b.block
        head, body, after = (b.append_basic_block(f"{label}{vectors}") for label in ("head", "body", "after"))
        b.branch(head)
        b.position_at_end(head)
        column = b.phi(I64)
        column.add_incoming(start, before)
        following = b.add(column, const(16 * vectors))
        b.cbranch(b.icmp_signed("<=", following, columns), body, after)
        b.position_at_end(body)
        _float_pass(b, rows, vectors, column, *function.args)
        column.add_incoming(following, b.block)
        b.branch(head)
        b.position_at_end(after)
        start = column
    b.ret_void()
    return function


def _float_pass(
    b: Any,
    rows: int,
    vectors: int,
    column: Any,
    a: Any,
    lda: Any,
    m: Any,
    ldb: Any,
    count: Any,
    out: Any,
    ldo: Any,
    columns: Any,
    add: Any,
) -> None:
    first = b.add(m, b.mul(column, const(4)))
    place = lambda r, c: b.add(out, b.mul(b.add(b.add(b.mul(ldo, const(r)), column), const(16 * c)), const(4)))  # noqa: E731
    going = b.icmp_signed("!=", add, const(0))
    initial = [
        b.select(going, emit.load(b, place(r, c), _VF), ir.Constant(_VF, [0.0] * 16))
        for r in range(rows)
        for c in range(vectors)
    ]
    before, loop, done = b.block, b.append_basic_block("k"), b.append_basic_block("done")
    b.cbranch(b.icmp_signed(">", count, const(0)), loop, done)
    b.position_at_end(loop)
    k = b.phi(I64)
    k.add_incoming(const(0), before)
    sums = [b.phi(_VF) for _ in initial]
    for p, x in zip(sums, initial, strict=True):
        p.add_incoming(x, before)
    row = b.add(first, b.mul(b.mul(k, ldb), const(4)))
    matrix = [emit.load(b, b.add(row, const(64 * c)), _VF) for c in range(vectors)]
    new = []
    for r in range(rows):
        one = emit.load(b, b.add(a, b.mul(b.add(b.mul(lda, const(r)), k), const(4))), emit.F32)
        spread = emit.broadcast(b, one, 16)
        new += [emit.fma(b, spread, matrix[c], sums[r * vectors + c]) for c in range(vectors)]
    following = b.add(k, const(1))
    k.add_incoming(following, loop)
    for p, x in zip(sums, new, strict=True):
        p.add_incoming(x, loop)
    b.cbranch(b.icmp_signed("<", following, count), loop, done)
    b.position_at_end(done)
    for i, (x, x0) in enumerate(zip(new, initial, strict=True)):
        result = b.phi(_VF)
        result.add_incoming(x0, before)
        result.add_incoming(x, loop)
        new[i] = result
    for i, x in enumerate(new):
        emit.store(b, x, place(i // vectors, i % vectors))


@intrinsic
def float_tile(typingctx, isa, rows, a, lda, b, ldb, count, out, ldo, columns, add):
    """1 .. BLOCK rows: see `_float_tile`."""
    kind = isa.kind

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        _, rows, *rest = args
        emit.by_rows(builder, rows, BLOCK, lambda number: _float_tile(builder.module, kind, number), rest)
        return context.get_dummy_value()

    return types.void(isa, *[types.int64] * 10), codegen


@njit(nogil=True, error_model="numpy")
def softmax_chunk(scores: int, state: int, acc: int, width: int) -> None:
    """One chunk of one (row, head): scores [128] become weights in place; state (m, l) and acc [width] follow."""
    peak = v.load(scores)
    for j in range(16, CHUNK, 16):
        peak = v.maximum(v.load(scores + 4 * j), peak)
    most = v.max_lanes(peak)
    before = v.load_f32(state)
    if before > most:
        most = before
    shift = v.splat(most)
    kept = v.exp2(v.sub(v.splat(before), shift))
    sums = v.splat(np.float32(0))
    for j in range(0, CHUNK, 16):
        p = v.exp2(v.sub(v.load(scores + 4 * j), shift))
        v.store(scores + 4 * j, p)
        sums = v.add(sums, p)
    total = v.fma(v.splat(v.load_f32(state + 4)), kept, v.splat(v.sum_lanes(sums)))
    v.store_f32(state, most)
    v.store_f32(state + 4, v.first_lane(total))
    for d in range(0, width, 16):
        v.store(acc + 4 * d, v.mul(v.load(acc + 4 * d), kept))


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
    left, right = v.exp2(v.sub(v.splat(a), shift)), v.exp2(v.sub(v.splat(b), shift))
    total = v.fma(v.splat(v.load_f32(into + 4)), left, v.mul(v.splat(v.load_f32(state + 4)), right))
    v.store_f32(into, most)
    v.store_f32(into + 4, v.first_lane(total))
    for d in range(0, width, 16):
        at = into_acc + 4 * d
        v.store(at, v.fma(v.load(at), left, v.mul(v.load(acc + 4 * d), right)))


@njit(nogil=True, error_model="numpy")
def hide_tail(scores: int, visible: int) -> None:
    """Scores at and after `visible` (0 .. 128) never weigh anything."""
    for j in range(visible - visible % 16, CHUNK, 16):
        v.store(scores + 4 * j, v.mask_tail(v.load(scores + 4 * j), visible - j, HIDDEN_SCORE))


@njit(nogil=True, error_model="numpy")
def write_output(state: int, acc: int, width: int, out: int) -> None:
    total = v.splat(v.load_f32(state + 4))
    for d in range(0, width, 16):
        v.store(out + 4 * d, v.div(v.load(acc + 4 * d), total))
