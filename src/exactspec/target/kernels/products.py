"""Integer products: activations (int8) times weights (int8, stored as uint8 = weight + 128), summed in int32.

Integer sums are exact, so a row's result cannot depend on how many rows are computed together, on the order of
the sum, or on the instruction set. This is what makes speculation exact, and VNNI makes it fast: 8 rows cost
little more than 1, because reading the weights is what takes the time.

*Stored weights*, by units of 32 output channels: ``w[unit][k / 4][channel of the unit][k % 4]``, so one unit is one
sequential stream and one 64-byte load feeds 16 channels. The stored byte is unsigned because the CPU's
instruction multiplies unsigned by signed, and it is the activation that is broadcast:
``sum(stored * a) = sum(weight * a) + 128 * sum(a)``; the second term is one number per row, known when the row is
quantised. No intermediate saturates: ``255 * 127 * K`` must stay below 2**31 (K <= 66,000, checked at load).

Instruction sets are *types*, not values: a function compiled for one never holds another's instructions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from llvmlite import ir
from numba.core import types
from numba.core.datamodel import models
from numba.core.datamodel.registry import default_manager
from numba.extending import intrinsic

UNIT = 32  # output channels of a unit
K_STEP = 16  # inputs are padded to a multiple of this
PREFETCH = 512  # bytes ahead in the stream of weights; measured: 8 rows take 1.15x of 1 row with it, 1.35x without

_I8, _I16, _I32, _I64 = ir.IntType(8), ir.IntType(16), ir.IntType(32), ir.IntType(64)


@dataclass(frozen=True, slots=True)
class Shape:
    """How a tile fits the register file: `lanes` int32 lanes a vector, `columns` channels a pass, `rows` at most."""

    lanes: int
    columns: int
    rows: int


SHAPES = {
    "avx512vnni": Shape(lanes=16, columns=32, rows=12),
    "avx512vnni-256": Shape(lanes=8, columns=32, rows=6),
    "avxvnni": Shape(lanes=8, columns=32, rows=2),
    "portable": Shape(lanes=8, columns=8, rows=4),
}


class InstructionSet(types.Type):  # type: ignore[misc]
    """Type-level name of an instruction set; its value is nothing."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        super().__init__(name=f"isa_{kind}")


default_manager.register(InstructionSet, models.OpaqueModel)


def _tag(kind: str) -> Any:
    def make(typingctx):  # type: ignore[no-untyped-def]
        def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
            return context.get_dummy_value()

        return InstructionSet(kind)(), codegen

    return intrinsic(make)


avx512vnni = _tag("avx512vnni")
avx512vnni_256 = _tag("avx512vnni-256")
avxvnni = _tag("avxvnni")
portable = _tag("portable")


def _load(b: Any, address: Any, kind: Any) -> Any:
    value = b.load(b.inttoptr(address, kind.as_pointer()))
    value.align = 1
    return value


def _prefetch(b: Any, address: Any) -> Any:
    pointer = _I8.as_pointer()
    name = "llvm.prefetch.p0"
    known = b.module.globals.get(name)
    function = known or ir.Function(b.module, ir.FunctionType(ir.VoidType(), [pointer, _I32, _I32, _I32]), name)
    read, near, data = (ir.Constant(_I32, x) for x in (0, 3, 1))
    return b.call(function, [b.inttoptr(address, pointer), read, near, data])


def _dot_vnni(b: Any, lanes: int, acc: Any, weights: Any, activations: Any) -> Any:
    vector = ir.VectorType(_I32, lanes)
    name = f"llvm.x86.avx512.vpdpbusd.{32 * lanes}"
    known = b.module.globals.get(name)
    function = known or ir.Function(b.module, ir.FunctionType(vector, [vector] * 3), name)
    return b.call(function, [acc, weights, activations])


def _broadcast(b: Any, scalar: Any, lanes: int) -> Any:
    vector = ir.VectorType(scalar.type, lanes)
    one = b.insert_element(ir.Constant(vector, ir.Undefined), scalar, ir.Constant(_I32, 0))
    return b.shuffle_vector(one, ir.Constant(vector, ir.Undefined), ir.Constant(ir.VectorType(_I32, lanes), [0] * lanes))


def _pairs(b: Any, wide: Any, count: int) -> tuple[Any, Any]:
    undef = ir.Constant(wide.type, ir.Undefined)
    index = lambda odd: ir.Constant(ir.VectorType(_I32, count), [2 * i + odd for i in range(count)])  # noqa: E731
    return b.shuffle_vector(wide, undef, index(0)), b.shuffle_vector(wide, undef, index(1))


def _dot_portable(b: Any, lanes: int, acc: Any, weights: Any, activations: Any) -> Any:
    """acc [2 * lanes]: two partial sums per channel. int16 products added in pairs (what pmaddwd and smlal do)."""
    wide = ir.VectorType(_I32, 4 * lanes)
    product = b.mul(b.zext(weights, wide), b.sext(activations, wide))
    even, odd = _pairs(b, product, 2 * lanes)
    return b.add(acc, b.add(even, odd))


def _tile_function(module: Any, kind: str, rows: int) -> Any:
    """``void tile(w, a, lda, k4, out, accumulate)``: out[r, c] (+)= sum over k of stored w[k, c] * a[r, k].

    One unit (32 channels), `rows` rows; `a` int8 [rows, lda]; `out` int32 [rows, 32].
    """
    name = f"exactspec_tile_{kind}_{rows}"
    known = module.globals.get(name)
    if known:
        return known
    shape = SHAPES[kind]
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [_I64] * 6), name)
    function.linkage = "internal"
    function.attributes.add("noinline")
    w, a, lda, k4, out, accumulate = function.args
    b = ir.IRBuilder(function.append_basic_block("entry"))
    for first in range(0, UNIT, shape.columns):
        _pass(b, kind, shape, rows, first, w, a, lda, k4, out, accumulate)
    b.ret_void()
    return function


def _pass(b: Any, kind: str, shape: Shape, rows: int, first: int, w: Any, a: Any, lda: Any, k4: Any, out: Any, accumulate: Any) -> None:
    lanes, vectors = shape.lanes, shape.columns // shape.lanes
    vector = ir.VectorType(_I32, lanes)
    simple = kind == "portable"
    acc_type = ir.VectorType(_I32, 2 * lanes) if simple else vector
    # Few rows leave few independent sums, and each waits for its own: unroll over k to have enough in flight.
    unroll = 1 if simple else (4 if rows == 1 else 2 if rows <= 3 else 1)
    const = lambda x: ir.Constant(_I64, x)  # noqa: E731
    zero = ir.Constant(acc_type, [0] * acc_type.count)
    before = b.block
    loop, done = b.append_basic_block(f"k{first}"), b.append_basic_block(f"done{first}")
    b.branch(loop)
    b.position_at_end(loop)
    k = b.phi(_I64)
    k.add_incoming(const(0), before)
    sums = [b.phi(acc_type) for _ in range(rows * vectors * unroll)]
    for p in sums:
        p.add_incoming(zero, before)
    new: list[Any] = [None] * len(sums)
    for u in range(unroll):
        step = b.add(k, const(u))
        at = b.add(b.add(w, const(4 * first)), b.mul(step, const(4 * UNIT)))
        stored = [_load(b, b.add(at, const(4 * lanes * v)), ir.VectorType(_I8, 4 * lanes) if simple else vector) for v in range(vectors)]
        for line in range(0, 4 * UNIT, 64):
            _prefetch(b, b.add(at, const(PREFETCH + line - 4 * first)))
        for r in range(rows):
            four = _load(b, b.add(b.add(a, b.mul(lda, const(r))), b.mul(step, const(4))), _I32)
            spread = _broadcast(b, four, lanes)
            if simple:
                spread = b.bitcast(spread, ir.VectorType(_I8, 4 * lanes))
            for v in range(vectors):
                i = (u * rows + r) * vectors + v
                dot = _dot_portable if simple else _dot_vnni
                new[i] = dot(b, lanes, sums[i], stored[v], spread)
    following = b.add(k, const(unroll))
    k.add_incoming(following, loop)
    for p, x in zip(sums, new, strict=True):
        p.add_incoming(x, loop)
    b.cbranch(b.icmp_signed("<", following, k4), loop, done)
    b.position_at_end(done)
    more = b.icmp_signed("!=", accumulate, const(0))
    for r in range(rows):
        for v in range(vectors):
            total = new[r * vectors + v]
            for u in range(1, unroll):
                total = b.add(total, new[(u * rows + r) * vectors + v])
            if simple:
                even, odd = _pairs(b, total, lanes)
                total = b.add(even, odd)
            at = b.inttoptr(b.add(out, const(4 * (UNIT * r + first + lanes * v))), vector.as_pointer())
            old = b.load(at)
            old.align = 1
            kept = b.select(more, old, ir.Constant(vector, [0] * lanes))
            b.store(b.add(total, kept), at).align = 1


@intrinsic
def tile(typingctx, isa, rows, w, a, lda, k4, out, accumulate):  # type: ignore[no-untyped-def]
    """One unit for `rows` rows (1 .. `most_rows`): see `_tile_function`."""
    kind = isa.kind
    signature = types.void(isa, *[types.int64] * 7)

    def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
        _, rows, *rest = args
        done = b.append_basic_block("tiles")
        nothing = b.append_basic_block("notile")
        switch = b.switch(rows, nothing)
        for count in range(1, SHAPES[kind].rows + 1):
            block = b.append_basic_block(f"tile{count}")
            switch.add_case(ir.Constant(_I64, count), block)
            b.position_at_end(block)
            b.call(_tile_function(b.module, kind, count), rest)
            b.branch(done)
        b.position_at_end(nothing)
        b.branch(done)
        b.position_at_end(done)
        return context.get_dummy_value()

    return signature, codegen


@intrinsic
def most_rows(typingctx, isa):  # type: ignore[no-untyped-def]
    """Rows of the tallest tile."""
    rows = SHAPES[isa.kind].rows

    def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
        return ir.Constant(_I64, rows)

    return types.int64(isa), codegen


