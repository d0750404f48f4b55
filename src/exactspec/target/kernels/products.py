"""Integer products: activations (int8) times weights (int8, stored as uint8 = weight + 128), summed in int32.

Integer sums are exact, so a row's result cannot depend on how many rows are computed together, on the order of
the sum, or on the instruction set. This is what makes speculation exact, and VNNI makes it fast: 8 rows cost
little more than 1, because reading the weights is what takes the time.

*Stored weights*, by units of 32 output channels: ``w[unit][k / 4][channel of the unit][k % 4]``, so one unit is one
sequential stream and one 64-byte load feeds 16 channels. The stored byte is unsigned because the CPU's
instruction multiplies unsigned by signed, and it is the activation that is broadcast:
``sum(stored * a) = sum(weight * a) + 128 * sum(a)``; the second term is known when the row is quantised.

*Groups.* Activations have one scale per row and group of inputs (an outlier costs its own group precision, not the
row), so a product is a short float sum over exact integer sums, in a fixed order. No intermediate saturates:
``255 * 127 * K`` must stay below 2**31 (K <= 66,000, checked at load).

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

from exactspec.target.kernels import emit
from exactspec.target.kernels.emit import F32, I8, I32, I64, broadcast, const, load

UNIT = 32  # output channels of a unit
K_STEP = 16  # inputs are padded to a multiple of this
PREFETCH = 512  # bytes ahead in the stream of weights; measured: 8 rows take 1.15x of 1 row with it, 1.35x without


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


class InstructionSet(types.Type):
    """Type-level name of an instruction set; its value is nothing."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        super().__init__(name=f"isa_{kind}")


default_manager.register(InstructionSet, models.OpaqueModel)


def _tag(kind: str) -> Any:
    def make(typingctx):
        def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
            return context.get_dummy_value()

        return InstructionSet(kind)(), codegen

    return intrinsic(make)


avx512vnni = _tag("avx512vnni")
avx512vnni_256 = _tag("avx512vnni-256")
avxvnni = _tag("avxvnni")
portable = _tag("portable")


def _prefetch(b: Any, address: Any) -> Any:
    pointer = I8.as_pointer()
    function = emit.declared(b.module, "llvm.prefetch.p0", ir.VoidType(), [pointer, I32, I32, I32])
    read, near, data = (ir.Constant(I32, x) for x in (0, 3, 1))
    return b.call(function, [b.inttoptr(address, pointer), read, near, data])


def _dot_vnni(b: Any, lanes: int, acc: Any, weights: Any, activations: Any) -> Any:
    vector = ir.VectorType(I32, lanes)
    function = emit.declared(b.module, f"llvm.x86.avx512.vpdpbusd.{32 * lanes}", vector, [vector] * 3)
    return b.call(function, [acc, weights, activations])


def _pairs(b: Any, wide: Any, count: int) -> tuple[Any, Any]:
    undef = ir.Constant(wide.type, ir.Undefined)
    index = lambda odd: emit.indices([2 * i + odd for i in range(count)])  # noqa: E731
    return b.shuffle_vector(wide, undef, index(0)), b.shuffle_vector(wide, undef, index(1))


def _dot_portable(b: Any, lanes: int, acc: Any, weights: Any, activations: Any) -> Any:
    """acc [2 * lanes]: two partial sums per channel. int16 products added in pairs (what pmaddwd and smlal do)."""
    wide = ir.VectorType(I32, 4 * lanes)
    product = b.mul(b.zext(weights, wide), b.sext(activations, wide))
    even, odd = _pairs(b, product, 2 * lanes)
    return b.add(acc, b.add(even, odd))


def _tile_function(module: Any, kind: str, rows: int) -> Any:
    """``void tile(w, a, lda, quads, group, scales, offsets, lds, out, more)``, see `tile`."""
    name = f"exactspec_tile_{kind}_{rows}"
    known = module.globals.get(name)
    if known:
        return known
    shape = SHAPES[kind]
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [I64] * 10), name)
    function.linkage = "internal"
    function.attributes.add("noinline")
    emit = _Tile(ir.IRBuilder(function.append_basic_block("entry")), kind, rows, *function.args)
    for first in range(0, UNIT, shape.columns):
        emit.columns(first)
    emit.b.ret_void()
    return function


class _Tile:
    """Emits one tile: a loop over groups of inputs around a loop over quads of inputs."""

    def __init__(self, b: Any, kind: str, rows: int, *arguments: Any) -> None:
        self.b, self.kind, self.rows = b, kind, rows
        self.w, self.a, self.lda, self.quads, self.group, self.scales, self.offsets, self.lds, self.out, self.more = (
            arguments
        )
        self.shape = SHAPES[kind]
        self.simple = kind == "portable"
        self.vectors = self.shape.columns // self.shape.lanes
        self.acc_type = ir.VectorType(I32, self.shape.lanes * (2 if self.simple else 1))
        # Few rows leave few independent sums, and each waits for its own: unroll over k to have enough in flight.
        self.unroll = 1 if self.simple else (4 if rows == 1 else 2 if rows <= 3 else 1)

    def columns(self, first: int) -> None:
        """Channels first .. first + shape.columns - 1 of the unit."""
        b = self.b
        before, head, done = b.block, b.append_basic_block(f"group{first}"), b.append_basic_block(f"done{first}")
        b.branch(head)
        b.position_at_end(head)
        start, index = b.phi(I64), b.phi(I64)
        start.add_incoming(const(0), before)
        index.add_incoming(const(0), before)
        after = b.add(start, self.group)
        end = b.select(b.icmp_signed("<", after, self.quads), after, self.quads)
        self._add_group(first, index, self._sum_group(first, start, end, index))
        start.add_incoming(end, b.block)
        index.add_incoming(b.add(index, const(1)), b.block)
        b.cbranch(b.icmp_signed("<", end, self.quads), head, done)
        b.position_at_end(done)

    def _sum_group(self, first: int, start: Any, end: Any, index: Any) -> list[Any]:
        """Integer sums of one group: [rows * vectors], offsets included."""
        b, lanes, rows, vectors = self.b, self.shape.lanes, self.rows, self.vectors
        zero = ir.Constant(self.acc_type, [0] * self.acc_type.count)
        offsets = [
            broadcast(b, load(b, self._cell(self.offsets, r, index), I32), lanes)
            for r in range(rows)
            for _ in range(vectors)
        ]
        before, loop, done = b.block, b.append_basic_block(f"k{first}"), b.append_basic_block(f"sums{first}")
        b.branch(loop)
        b.position_at_end(loop)
        k = b.phi(I64)
        k.add_incoming(start, before)
        sums = [b.phi(self.acc_type) for _ in range(rows * vectors * self.unroll)]
        for i, p in enumerate(sums):
            p.add_incoming(zero if self.simple or i >= rows * vectors else offsets[i], before)
        new: list[Any] = [None] * len(sums)
        for u in range(self.unroll):
            self._step(first, b.add(k, const(u)), u, sums, new)
        following = b.add(k, const(self.unroll))
        k.add_incoming(following, loop)
        for p, x in zip(sums, new, strict=True):
            p.add_incoming(x, loop)
        b.cbranch(b.icmp_signed("<", following, end), loop, done)
        b.position_at_end(done)
        totals = []
        for i in range(rows * vectors):
            total = new[i]
            for u in range(1, self.unroll):
                total = b.add(total, new[u * rows * vectors + i])
            if self.simple:
                even, odd = _pairs(b, total, lanes)
                total = b.add(b.add(even, odd), offsets[i])
            totals.append(total)
        return totals

    def _step(self, first: int, quad: Any, u: int, sums: list[Any], new: list[Any]) -> None:
        """Four inputs of all rows and of `shape.columns` channels."""
        b, lanes, rows, vectors = self.b, self.shape.lanes, self.rows, self.vectors
        vector = ir.VectorType(I32, lanes)
        at = b.add(b.add(self.w, const(4 * first)), b.mul(quad, const(4 * UNIT)))
        kind = ir.VectorType(I8, 4 * lanes) if self.simple else vector
        stored = [load(b, b.add(at, const(4 * lanes * v)), kind) for v in range(vectors)]
        for line in range(0, 4 * UNIT, 64):
            _prefetch(b, b.add(at, const(PREFETCH + line - 4 * first)))
        for r in range(rows):
            four = load(b, b.add(b.add(self.a, b.mul(self.lda, const(r))), b.mul(quad, const(4))), I32)
            spread = broadcast(b, four, lanes)
            if self.simple:
                spread = b.bitcast(spread, ir.VectorType(I8, 4 * lanes))
            for v in range(vectors):
                i = (u * rows + r) * vectors + v
                dot = _dot_portable if self.simple else _dot_vnni
                new[i] = dot(b, lanes, sums[i], stored[v], spread)

    def _add_group(self, first: int, index: Any, totals: list[Any]) -> None:
        """out = fma(float(total), scale of the group, out); the first group starts from 0 unless `more`."""
        b, lanes, rows, vectors = self.b, self.shape.lanes, self.rows, self.vectors
        floats = ir.VectorType(F32, lanes)
        going = b.or_(b.icmp_signed("!=", index, const(0)), b.icmp_signed("!=", self.more, const(0)))
        for r in range(rows):
            scale = broadcast(b, load(b, self._cell(self.scales, r, index), F32), lanes)
            for v in range(vectors):
                at = b.add(self.out, const(4 * (UNIT * r + first + lanes * v)))
                sofar = b.select(going, load(b, at, floats), ir.Constant(floats, [0.0] * lanes))
                total = b.sitofp(totals[r * vectors + v], floats)
                emit.store(b, emit.fma(b, total, scale, sofar), at)

    def _cell(self, table: Any, row: int, index: Any) -> Any:
        return self.b.add(table, self.b.mul(self.b.add(self.b.mul(self.lds, const(row)), index), const(4)))


@intrinsic
def tile(typingctx, isa, rows, w, a, lda, quads, group, scales, offsets, lds, out, more):
    """One unit of 32 channels for `rows` rows (1 .. `most_rows`) over `quads` quads of inputs.

    out[r, c] float32 [rows, 32] = sum over groups g, in order, of scales[r, g] * (sum over the group's k of
    stored w[k, c] * a[r, k] + offsets[r, g]), one fused multiply-add a group, starting from out if `more`.
    `a` int8 [rows, lda]; `group`: quads per group (a multiple of 4; the last one may be shorter); `scales` float32 and
    `offsets` int32 [rows, lds].
    """
    kind = isa.kind

    def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
        _, rows, *rest = args
        emit.by_rows(b, rows, SHAPES[kind].rows, lambda count: _tile_function(b.module, kind, count), rest)
        return context.get_dummy_value()

    return types.void(isa, *[types.int64] * 11), codegen


@intrinsic
def most_rows(typingctx, isa):
    """Rows of the tallest tile."""
    rows = SHAPES[isa.kind].rows

    def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
        return ir.Constant(I64, rows)

    return types.int64(isa), codegen
