"""Products with four-bit weights, as files store them: a scale and a minimum per block of 32 inputs and channel.

    out[r, c] = sum over blocks, in order, of
                scale[c] * (a[r] * sum(q * activation)) - minimum[c] * (a[r] * sum(activation))

with q in 0 .. 15, activations of 8 bits (+-127) and a[r] their scale in that block (see rows.quantise_blocks). The sums
inside a block are integers and exact; two float32 fused multiply-adds a block follow, first the minimum's, then the
scale's. Nothing else is rounded: every weight is the file's own, and a row's result depends on nothing but the row.

*Stored*, by units of 32 output channels, blocks in order. A block has 512 bytes of nibbles, ``[4][channel][4]``: byte j
of a channel in part p holds input ``8 p + j`` in its low half and input ``8 p + 4 + j`` in its high half, so one load
gives two quads (see products). The two forms differ in how scales and minima lie:

====  ===========================================================================================  ============
form  scales and minima                                                                            bytes
====  ===========================================================================================  ============
HALF  behind each block, float16 [32] scales, float16 [32] minima (Q4_0, Q4_1)                     640 a block
SIX   before 8 blocks, float16 [32] d, float16 [32] dmin; behind each block, uint8 [32] each of    4,736 in all
      multiples: scale = d * multiple, minimum = dmin * multiple (Q4_K), both exact in float32
====  ===========================================================================================  ============

AVX2 multiplies unsigned by signed bytes and adds pairs in 16 bits without saturating here: 8 such pairs of a channel
are at most 8 * 2 * 15 * 127 = 30,480, so a block's sum needs one widening.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from exactspec.target.kernels import emit
from exactspec.target.kernels.emit import F32, I8, I32, I64, broadcast, const, load
from exactspec.target.kernels.isa import I16, NIBBLE_COLUMNS, SHAPES, arithmetic
from exactspec.target.kernels.products import LINE, UNIT, prefetch

BLOCK = 32  # inputs that share a scale, of weights and of activations
SUPER = 8  # blocks that share d and dmin in the form SIX
HALF, SIX = 1, 2
NIBBLE_BYTES = UNIT * BLOCK // 2
_HEAD = {HALF: 0, SIX: 2 * 2 * UNIT}
_TAIL = {HALF: 2 * 2 * UNIT, SIX: 2 * UNIT}
SUPER_BYTES = {form: _HEAD[form] + SUPER * (NIBBLE_BYTES + _TAIL[form]) for form in (HALF, SIX)}
"""Bytes of 256 inputs of a unit; HALF takes any whole number of blocks, SIX of 8."""


class _ByteDot:
    """Quads of one block in whole bytes: `isa`'s own arithmetic, sums in 32 bits."""

    def __init__(self, b: Any, kind: str) -> None:
        self._does: Any = arithmetic(b, kind)
        self._b, self.lanes = b, SHAPES[kind].lanes

    def activations(self, at: Any) -> Any:
        return self._does.activations(at)

    def add(self, acc: Any, weights: Any, activations: Any) -> Any:
        acc = ir.Constant(self._does.acc_type, [0] * self.lanes) if acc is None else acc
        return self._does.add(acc, self._b.bitcast(weights, self._does.acc_type), activations)

    def total(self, acc: Any) -> Any:
        return acc


class _PairDot:
    """AVX2: pairs in 16 bits.

    The sums pass through an empty piece of assembly. LLVM would otherwise turn their chains into trees, which need more
    registers than there are (83 instead of 96 G multiply-adds a second).
    """

    def __init__(self, b: Any, kind: str) -> None:
        self._b, self.lanes = b, SHAPES[kind].lanes
        self._bytes, self._pairs = ir.VectorType(I8, 4 * self.lanes), ir.VectorType(I16, 2 * self.lanes)

    def activations(self, at: Any) -> Any:
        return self._b.bitcast(broadcast(self._b, load(self._b, at, I32), self.lanes), self._bytes)

    def add(self, acc: Any, weights: Any, activations: Any) -> Any:
        b = self._b
        function = emit.declared(b.module, "llvm.x86.avx2.pmadd.ub.sw", self._pairs, [self._bytes] * 2)
        pairs = b.call(function, [weights, activations])
        fixed = ir.InlineAsm(ir.FunctionType(self._pairs, [self._pairs]), "", "=x,0", side_effect=True)
        return b.call(fixed, [pairs if acc is None else b.add(acc, pairs)])

    def total(self, acc: Any) -> Any:
        wide = ir.VectorType(I32, self.lanes)
        function = emit.declared(self._b.module, "llvm.x86.avx2.pmadd.wd", wide, [self._pairs] * 2)
        return self._b.call(function, [acc, ir.Constant(self._pairs, [1] * self._pairs.count)])


class _PlainDot:
    """Products in 16 bits, four sums a channel (8 products of at most 1,905 each); what the compiler makes of it."""

    def __init__(self, b: Any, kind: str) -> None:
        self._b, self.lanes = b, SHAPES[kind].lanes
        self._bytes, self._shorts = ir.VectorType(I8, 4 * self.lanes), ir.VectorType(I16, 4 * self.lanes)

    def activations(self, at: Any) -> Any:
        spread = self._b.bitcast(broadcast(self._b, load(self._b, at, I32), self.lanes), self._bytes)
        return self._b.sext(spread, self._shorts)

    def add(self, acc: Any, weights: Any, activations: Any) -> Any:
        product = self._b.mul(self._b.zext(weights, self._shorts), activations)
        return product if acc is None else self._b.add(acc, product)

    def total(self, acc: Any) -> Any:
        b = self._b
        parts = b.sext(acc, ir.VectorType(I32, 4 * self.lanes))
        undef = ir.Constant(parts.type, ir.Undefined)
        of = lambda i: b.shuffle_vector(parts, undef, emit.indices(range(i, 4 * self.lanes, 4)))  # noqa: E731
        return b.add(b.add(of(0), of(1)), b.add(of(2), of(3)))


def _dot(b: Any, kind: str) -> Any:
    return {"avx2": _PairDot, "portable": _PlainDot}.get(kind, _ByteDot)(b, kind)


def _halves(b: Any, at: Any, lanes: int, plain: bool) -> Any:
    """float16 [lanes] as float32. `plain`: without an instruction for it, which not every CPU has (and numba lacks the
    function that LLVM would call). Numbers must be finite."""
    floats, words = ir.VectorType(F32, lanes), ir.VectorType(I32, lanes)
    if not plain:
        return b.fpext(load(b, at, ir.VectorType(ir.HalfType(), lanes)), floats)
    many = lambda x: ir.Constant(words, [x] * lanes)  # noqa: E731
    bits = b.zext(load(b, at, ir.VectorType(I16, lanes)), words)
    size = b.and_(bits, many(0x7FFF))
    shifted = b.shl(size, many(13))
    normal = b.add(shifted, many(112 << 23))
    # A subnormal number: its bits below 2**-14 as a fraction, without ever making a subnormal float32.
    least = ir.Constant(floats, [2.0**-14] * lanes)
    below = b.bitcast(b.fsub(b.bitcast(b.add(shifted, many(113 << 23)), floats), least), words)
    whole = b.select(b.icmp_unsigned("<", size, many(0x400)), below, normal)
    return b.bitcast(b.or_(whole, b.shl(b.and_(bits, many(0x8000)), many(16))), floats)


def _tile_function(module: Any, kind: str, form: int, rows: int) -> Any:
    """``void tile(w, a, lda, blocks, scales, sums, lds, out, more, ahead, pace)``, see `half_tile`."""
    name = f"exactspec_nibbles_{kind}_{form}_{rows}"
    known = module.globals.get(name)
    if known:
        return known
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [I64] * 11), name)
    function.linkage = "internal"
    function.attributes.add("noinline")
    b = ir.IRBuilder(function.append_basic_block("entry"))
    columns = NIBBLE_COLUMNS[kind][rows - 1]
    w, a, lda, blocks, scales, sums, lds, out, more, ahead, pace = function.args
    pace = b.sdiv(b.mul(pace, const(columns)), const(UNIT))
    for first in range(0, UNIT, columns):
        _Pass(b, kind, form, rows, first, w, a, lda, scales, sums, lds, out, ahead, pace).write(blocks, more)
        ahead = b.add(ahead, b.mul(blocks, pace))
    b.ret_void()
    return function


class _Pass:
    """Writes one pass of a tile: channels first .. first + columns - 1 of the unit over all blocks. `ahead`: where it
    begins to prefetch, `pace` bytes a block."""

    def __init__(self, b: Any, kind: str, form: int, rows: int, first: int, *arguments: Any) -> None:
        self.b, self.form, self.rows, self.first = b, form, rows, first
        self.w, self.a, self.lda, self.scales, self.sums, self.lds, self.out, self.ahead, self.pace = arguments
        self.columns = NIBBLE_COLUMNS[kind][rows - 1]
        self.plain = kind == "portable"
        self.does = _dot(b, kind)
        self.lanes: int = self.does.lanes
        self.vectors = self.columns // self.lanes
        self.floats = ir.VectorType(F32, self.lanes)
        self.level = 1 if self.columns == UNIT else 2

    def write(self, blocks: Any, more: Any) -> None:
        b = self.b
        with b.if_then(b.icmp_signed("==", more, const(0))):
            for r in range(self.rows):
                for v in range(self.vectors):
                    emit.store(b, ir.Constant(self.floats, [0.0] * self.lanes), self._place(r, v))
        size = const(NIBBLE_BYTES + _TAIL[self.form])
        if self.form == HALF:
            self._loop(blocks, lambda i: self._block(i, b.add(self.w, b.mul(i, size)), None))
            return

        def eight(i: Any) -> None:
            head = b.add(self.w, b.mul(i, const(SUPER_BYTES[SIX])))
            shared = [[self._half(head, part, v) for part in range(2)] for v in range(self.vectors)]
            start = b.add(head, const(_HEAD[SIX]))
            begin = b.mul(i, const(SUPER))
            self._loop(const(SUPER), lambda j: self._block(b.add(begin, j), b.add(start, b.mul(j, size)), shared))

        self._loop(b.sdiv(blocks, const(SUPER)), eight)

    def _loop(self, count: Any, body: Any) -> None:
        b = self.b
        before, head, done = b.block, b.append_basic_block("loop"), b.append_basic_block("done")
        b.branch(head)
        b.position_at_end(head)
        i = b.phi(I64)
        i.add_incoming(const(0), before)
        body(i)
        following = b.add(i, const(1))
        i.add_incoming(following, b.block)
        b.cbranch(b.icmp_signed("<", following, count), head, done)
        b.position_at_end(done)

    def _block(self, i: Any, at: Any, shared: Any) -> None:
        b, rows, vectors = self.b, self.rows, self.vectors
        coming = b.add(self.ahead, b.mul(i, self.pace))
        for line in range(0, SUPER_BYTES[self.form] // SUPER * self.columns // UNIT, LINE):
            prefetch(b, b.add(coming, const(line)), self.level)
        stored = ir.VectorType(I8, 4 * self.lanes)
        many = lambda x: ir.Constant(stored, [x] * stored.count)  # noqa: E731
        row = [b.add(b.add(self.a, b.mul(self.lda, const(r))), b.mul(i, const(BLOCK))) for r in range(rows)]
        acc: list[list[Any]] = [[None] * vectors for _ in range(rows)]
        for part in range(BLOCK // 8):
            place = b.add(at, const(4 * UNIT * part + 4 * self.first))
            both = [load(b, b.add(place, const(4 * self.lanes * v)), stored) for v in range(vectors)]
            low, high = [b.and_(x, many(15)) for x in both], [b.lshr(x, many(4)) for x in both]
            for quad, weights in enumerate((low, high)):
                for r in range(rows):
                    four = self.does.activations(b.add(row[r], const(8 * part + 4 * quad)))
                    for v in range(vectors):
                        acc[r][v] = self.does.add(acc[r][v], weights[v], four)
        pairs = [self._scale_and_minimum(at, v, shared) for v in range(vectors)]
        for r in range(rows):
            cell = b.mul(b.add(b.mul(self.lds, const(r)), i), const(4))
            scale = broadcast(b, load(b, b.add(self.scales, cell), F32), self.lanes)
            total = broadcast(b, load(b, b.add(self.sums, cell), F32), self.lanes)
            for v, (weight_scale, minimum) in enumerate(pairs):
                place = self._place(r, v)
                product = b.fmul(b.sitofp(self.does.total(acc[r][v]), self.floats), scale)
                result = emit.fma(b, total, minimum, load(b, place, self.floats))
                emit.store(b, emit.fma(b, product, weight_scale, result), place)

    def _scale_and_minimum(self, at: Any, v: int, shared: Any) -> tuple[Any, Any]:
        b, behind = self.b, self.b.add(at, const(NIBBLE_BYTES))
        if self.form == HALF:
            return self._half(behind, 0, v), self._half(behind, 1, v)
        found = []
        for part in range(2):
            bytes_ = load(b, b.add(behind, const(UNIT * part + self._channel(v))), ir.VectorType(I8, self.lanes))
            multiple = b.sitofp(b.zext(bytes_, ir.VectorType(I32, self.lanes)), self.floats)
            found.append(b.fmul(multiple, shared[v][part]))
        return found[0], found[1]

    def _half(self, table: Any, part: int, v: int) -> Any:
        return _halves(self.b, self.b.add(table, const(2 * (UNIT * part + self._channel(v)))), self.lanes, self.plain)

    def _channel(self, v: int) -> int:
        return self.first + self.lanes * v

    def _place(self, r: int, v: int) -> Any:
        return self.b.add(self.out, const(4 * (UNIT * r + self._channel(v))))


def _call_tile(isa: Any, form: int) -> Any:
    kind = isa.kind

    def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
        _, rows, *rest = args
        most = len(NIBBLE_COLUMNS[kind])
        emit.by_rows(b, rows, most, lambda count: _tile_function(b.module, kind, form, count), rest)
        return context.get_dummy_value()

    return types.void(isa, *[types.int64] * 12), codegen


@intrinsic
def half_tile(typingctx, isa, rows, w, a, lda, blocks, scales, sums, lds, out, more, ahead, pace):
    """One unit of 32 channels in the form HALF for `rows` rows (1 .. `most_nibble_rows`) over `blocks` blocks.

    out float32 [rows, 32] as above, starting from what is there if `more`. `a`: activations, a byte each, rows `lda`
    bytes apart. `scales` float32 [rows, lds]: of the activations of each block; `sums`, the same shape: minus scale
    times sum of the block's activations. Meanwhile memory from `ahead` on is fetched, `pace` bytes a block.
    """
    return _call_tile(isa, HALF)


@intrinsic
def six_tile(typingctx, isa, rows, w, a, lda, blocks, scales, sums, lds, out, more, ahead, pace):
    """`half_tile` for the form SIX; `blocks` is a multiple of 8."""
    return _call_tile(isa, SIX)


def _constant(value: Any) -> Any:
    def make(typingctx, isa):
        number = value(NIBBLE_COLUMNS[isa.kind])

        def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
            return const(number)

        return types.int64(isa), codegen

    return intrinsic(make)


most_nibble_rows = _constant(len)  # of the tallest tile
full_nibble_rows = _constant(lambda columns: sum(c == UNIT for c in columns))  # of the tallest tile over a whole unit
