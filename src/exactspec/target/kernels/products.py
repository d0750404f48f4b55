"""Integer products: activations times weights (int8, stored as uint8 = weight + 128), summed in int32.

Integer sums are exact, so a row's result cannot depend on how many rows are computed together, on the order of
the sum, or on the instruction set (see isa). This is what makes speculation exact, and VNNI makes it fast: 8 rows
cost little more than 1, because reading the weights is what takes the time.

*Stored weights*, by units of 32 output channels: ``w[unit][k / 4][channel of the unit][k % 4]``, so one unit is one
sequential stream and one 64-byte load feeds 16 channels. The stored byte is unsigned because the CPU's
instruction multiplies unsigned by signed, and it is the activation that is broadcast:
``sum(stored * a) = sum(weight * a) + 128 * sum(a)``; the second term is known when the row is quantised.

*Groups.* Activations have one scale per row and group of inputs (an outlier costs its own group precision, not the
row), so a product is a short float sum over exact integer sums, in a fixed order. No sum of a group overflows, wide
activations included: ``255 * 32512 * 256`` is below 2**31 (no group has more inputs, see precision).
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from exactspec.target.kernels import emit
from exactspec.target.kernels.emit import F32, I8, I32, I64, broadcast, const, load
from exactspec.target.kernels.isa import EVEN_ODD, I16, SHAPES, arithmetic
from exactspec.target.kernels.simd import I32x16

UNIT = 32  # output channels of a unit
K_STEP = 16  # inputs are padded to a multiple of this
LINE = 64  # bytes of a cache line


def prefetch(b: Any, address: Any, level: int) -> Any:
    pointer = I8.as_pointer()
    function = emit.declared(b.module, "llvm.prefetch.p0", ir.VoidType(), [pointer, I32, I32, I32])
    read, locality, data = (ir.Constant(I32, x) for x in (0, 4 - level, 1))
    return b.call(function, [b.inttoptr(address, pointer), read, locality, data])


def _tile_function(module: Any, kind: str, rows: int, planes: int) -> Any:
    """``void tile(w, a, lda, plane, quads, group, scales, offsets, lds, out, more, ahead, pace)``, see `tile`."""
    name = f"exactspec_tile_{kind}_{rows}x{planes}"
    known = module.globals.get(name)
    if known:
        return known
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [I64] * 13), name)
    function.linkage = "internal"
    function.attributes.add("noinline")
    b = ir.IRBuilder(function.append_basic_block("entry"))
    columns = SHAPES[kind].columns[rows * planes - 1]
    quads, ahead, pace = function.args[4], function.args[11], function.args[12]
    pace = b.sdiv(b.mul(pace, const(columns)), const(UNIT))
    for first in range(0, UNIT, columns):
        writer = _Pass(b, kind, rows, planes, first, ahead, pace, *function.args[:11])
        writer.groups()
        ahead = b.add(ahead, b.mul(quads, pace))
    b.ret_void()
    return function


class _Pass:
    """Writes one pass of a tile, channels first .. first + columns - 1 of the unit: a loop over groups of inputs around
    a loop over quads of inputs. `ahead`: where this pass begins to prefetch, `pace` bytes a quad."""

    def __init__(
        self, b: Any, kind: str, rows: int, planes: int, first: int, ahead: Any, pace: Any, *arguments: Any
    ) -> None:
        self.b, self.rows, self.planes, self.first, self.ahead, self.pace = b, rows, planes, first, ahead, pace
        self.w, self.a, self.lda, self.plane, self.quads, self.group, *rest = arguments
        self.scales, self.offsets, self.lds, self.out, self.more = rest
        shape = SHAPES[kind]
        self.lanes, self.columns = shape.lanes, shape.columns[rows * planes - 1]
        self.quad_bytes = 4 * shape.activation_bytes
        self.level = 1 if self.columns == UNIT else 2  # a pass over some columns fetches far ahead (see units)
        self.vectors = self.columns // shape.lanes
        self.does = arithmetic(b, kind)
        # Few rows leave few independent sums, and each waits for its own: unroll over k to have enough in flight.
        sums = rows * planes * self.vectors
        self.unroll = 1 if kind == "portable" or sums > 6 else 2 if sums > 3 else 4

    def groups(self) -> None:
        b, first = self.b, self.first
        with b.if_then(b.icmp_signed("==", self.more, const(0))):
            floats = ir.VectorType(F32, self.lanes)
            for place in self._places():
                emit.store(b, ir.Constant(floats, [0.0] * self.lanes), place)
        before, head, done = b.block, b.append_basic_block(f"group{first}"), b.append_basic_block(f"done{first}")
        b.branch(head)
        b.position_at_end(head)
        start, index = b.phi(I64), b.phi(I64)
        start.add_incoming(const(0), before)
        index.add_incoming(const(0), before)
        after = b.add(start, self.group)
        end = b.select(b.icmp_signed("<", after, self.quads), after, self.quads)
        self._add_group(index, self._sum_group(start, end, index))
        start.add_incoming(end, b.block)
        index.add_incoming(b.add(index, const(1)), b.block)
        b.cbranch(b.icmp_signed("<", end, self.quads), head, done)
        b.position_at_end(done)

    def _sum_group(self, start: Any, end: Any, index: Any) -> list[Any]:
        """Integer sums of one group: [rows * vectors], offsets included."""
        b, rows, vectors, planes = self.b, self.rows, self.vectors, self.planes
        count = rows * planes * vectors
        zero = ir.Constant(self.does.acc_type, [0] * self.does.acc_type.count)
        before, loop, done = (
            b.block,
            b.append_basic_block(f"k{self.first}"),
            b.append_basic_block(f"sums{self.first}"),
        )
        b.branch(loop)
        b.position_at_end(loop)
        k = b.phi(I64)
        k.add_incoming(start, before)
        sums = [b.phi(self.does.acc_type) for _ in range(count * self.unroll)]
        for p in sums:
            p.add_incoming(zero, before)
        new: list[Any] = []
        for u in range(self.unroll):
            new += self._step(b.add(k, const(u)), sums[u * count : (u + 1) * count])
        following = b.add(k, const(self.unroll))
        k.add_incoming(following, loop)
        for p, x in zip(sums, new, strict=True):
            p.add_incoming(x, loop)
        b.cbranch(b.icmp_signed("<", following, end), loop, done)
        b.position_at_end(done)
        for i in range(count, len(new)):
            new[i % count] = b.add(new[i % count], new[i])
        totals = []
        for r in range(rows):
            offset = broadcast(b, load(b, self._cell(self.offsets, r, index), I32), self.lanes)
            for v in range(vectors):
                total = self.does.total(new[r * planes * vectors + v])
                if planes == 2:  # 256 * high + low
                    low = self.does.total(new[(r * planes + 1) * vectors + v])
                    total = b.add(b.shl(total, ir.Constant(total.type, [8] * self.lanes)), low)
                totals.append(b.add(total, offset))
        return totals

    def _step(self, quad: Any, sums: list[Any]) -> list[Any]:
        """Four inputs of all rows, planes and channels of the pass: the sums [rows * planes * vectors] after them."""
        b, vectors = self.b, self.vectors
        at = b.add(b.add(self.w, const(4 * self.first)), b.mul(quad, const(4 * UNIT)))
        stored = [self.does.weights(b.add(at, const(4 * self.lanes * v))) for v in range(vectors)]
        coming = b.add(self.ahead, b.mul(quad, self.pace))
        for line in range(0, 4 * self.columns, LINE):
            prefetch(b, b.add(coming, const(line)), self.level)
        new: list[Any] = []
        for r in range(self.rows):
            row = b.add(self.a, b.mul(self.lda, const(r)))
            for plane in range(self.planes):
                place = b.add(row, self.plane) if plane else row
                four = self.does.activations(b.add(place, b.mul(quad, const(self.quad_bytes))))
                new += [self.does.add(sums[len(new) + v], stored[v], four) for v in range(vectors)]
        return new

    def _add_group(self, index: Any, totals: list[Any]) -> None:
        """out = fma(float(total), scale of the group, out)."""
        b, floats = self.b, ir.VectorType(F32, self.lanes)
        for i, (total, at) in enumerate(zip(totals, self._places(), strict=True)):
            scale = broadcast(b, load(b, self._cell(self.scales, i // self.vectors, index), F32), self.lanes)
            emit.store(b, emit.fma(b, b.sitofp(total, floats), scale, load(b, at, floats)), at)

    def _places(self) -> list[Any]:
        """Addresses in `out`, [rows * vectors]."""
        at = lambda r, v: const(4 * (UNIT * r + self.first + self.lanes * v))  # noqa: E731
        return [self.b.add(self.out, at(r, v)) for r in range(self.rows) for v in range(self.vectors)]

    def _cell(self, table: Any, row: int, index: Any) -> Any:
        return self.b.add(table, self.b.mul(self.b.add(self.b.mul(self.lds, const(row)), index), const(4)))


def _call_tile(isa: Any, planes: int) -> Any:
    kind = isa.kind

    def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
        _, rows, *rest = args
        most = SHAPES[kind].rows // planes
        emit.by_rows(b, rows, most, lambda count: _tile_function(b.module, kind, count, planes), rest)
        return context.get_dummy_value()

    return types.void(isa, *[types.int64] * 14), codegen


@intrinsic
def tile(typingctx, isa, rows, w, a, lda, plane, quads, group, scales, offsets, lds, out, more, ahead, pace):
    """One unit of 32 channels for `rows` rows (1 .. `most_rows`) over `quads` quads of inputs.

    out[r, c] float32 [rows, 32] = sum over groups g, in order, of scales[r, g] * (sum over the group's k of
    stored w[k, c] * a[r, k] + offsets[r, g]), one fused multiply-add a group, starting from out if `more`.
    `a` [rows], `lda` bytes apart, as the instruction set wants it; `group`: quads per group (a multiple of 4; the last
    one may be shorter); `scales` float32 and `offsets` int32 [rows, lds]. Meanwhile memory from `ahead` on is
    fetched, `pace` bytes a quad. `plane` is not used.
    """
    return _call_tile(isa, 1)


@intrinsic
def wide_tile(typingctx, isa, rows, w, a, lda, plane, quads, group, scales, offsets, lds, out, more, ahead, pace):
    """`tile` for wide activations, 1 .. `most_wide_rows` rows; low bytes lie `plane` bytes behind the high ones."""
    return _call_tile(isa, SHAPES[isa.kind].planes)


def _store(b: Any, kind: str, at: Any, plane: Any, values: Any, wide: bool) -> None:
    """Sixteen activations of one row, inputs in order, as `kind` reads them."""
    count = values.type.count
    if SHAPES[kind].activation_bytes == 2:
        order = [4 * (i // 4) + EVEN_ODD[i % 4] for i in range(count)]
        moved = b.shuffle_vector(values, ir.Constant(values.type, ir.Undefined), emit.indices(order))
        emit.store(b, b.trunc(moved, ir.VectorType(I16, count)), at)
        return
    narrow = lambda x: b.trunc(x, ir.VectorType(I8, count))  # noqa: E731
    if not wide:
        emit.store(b, narrow(values), at)
        return
    splat = lambda x: ir.Constant(values.type, [x] * count)  # noqa: E731
    emit.store(b, narrow(b.ashr(b.add(values, splat(128)), splat(8))), at)
    emit.store(b, narrow(values), b.add(at, plane))  # the low byte, signed; the high one above makes up for its sign


@intrinsic
def store_narrow(typingctx, isa, at, values):
    """Sixteen int32 within +-127 as activations."""

    def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
        _store(b, isa.kind, args[1], None, args[2], wide=False)
        return context.get_dummy_value()

    return types.void(isa, types.int64, I32x16), codegen


@intrinsic
def store_wide(typingctx, isa, at, plane, values):
    """Sixteen int32 within +-`WIDE_LIMIT` as activations; the low bytes go `plane` bytes further."""

    def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
        _store(b, isa.kind, args[1], args[2], args[3], wide=True)
        return context.get_dummy_value()

    return types.void(isa, types.int64, types.int64, I32x16), codegen


def _constant(value: Any) -> Any:
    """An intrinsic of one instruction set that is the number ``value(shape)``."""

    def make(typingctx, isa):
        number = value(SHAPES[isa.kind])

        def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
            return ir.Constant(I64, number)

        return types.int64(isa), codegen

    return intrinsic(make)


most_rows = _constant(lambda shape: shape.rows)  # of the tallest tile
most_wide_rows = _constant(lambda shape: shape.wide_rows)
activation_bytes = _constant(lambda shape: shape.activation_bytes)  # of one input and plane
full_rows = _constant(lambda shape: sum(c == UNIT for c in shape.columns))  # of the tallest tile over a whole unit
