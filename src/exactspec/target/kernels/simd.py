"""Sixteen-lane vectors inside numba functions.

numba's own loops leave the order of float additions to the compiler. Here every lane operation is one LLVM
instruction on ``<16 x float>`` or ``<16 x i32>`` with no fast-math flag, so a result is fixed by the source
alone: LLVM may split a vector to fit the CPU (8 or 4 lanes), but not reorder it, and it fuses a multiply-add
only where `fma` says so. The same source therefore gives the same bits with AVX-512, AVX2 or NEON.

Addresses are plain integers (bytes). Nothing here checks bounds; callers own sizes and padding.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.core import types
from numba.core.datamodel import models
from numba.core.datamodel.registry import default_manager
from numba.extending import intrinsic

from exactspec.target.kernels import emit

LANES = 16

_VF, _VI, _VB = (ir.VectorType(kind, LANES) for kind in (emit.F32, emit.I32, emit.I8))


class Vector(types.Type):
    """numba type of one vector register (or several, where the CPU's are narrower)."""

    def __init__(self, element: str) -> None:
        self.element = element
        super().__init__(name=f"vec16_{element}")


class VectorModel(models.PrimitiveModel):
    """How numba lowers a `Vector`: as LLVM's own vector value."""

    def __init__(self, manager: Any, kind: Vector) -> None:
        super().__init__(manager, kind, _VF if kind.element == "f32" else _VI)


# The one registration that numba demands: without a data model it cannot hold the type in a variable.
default_manager.register(Vector, VectorModel)

F32x16 = Vector("f32")
I32x16 = Vector("i32")


def _make(returns: Any, arguments: tuple[Any, ...], write: Callable[..., Any]) -> Any:
    """An intrinsic of fixed signature; `write(builder, *values)` returns the LLVM value (None for void)."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        value = write(builder, *args)
        return context.get_dummy_value() if value is None else value

    count = len(arguments)
    # numba wants a function of exactly (typingctx, *arguments).
    if count == 1:

        def one(typingctx, a):
            return returns(*arguments), codegen

        return intrinsic(one)
    if count == 2:

        def two(typingctx, a, b):
            return returns(*arguments), codegen

        return intrinsic(two)

    def three(typingctx, a, b, c):
        return returns(*arguments), codegen

    return intrinsic(three)


_A = types.int64  # an address


def _reduce(b: Any, v: Any, op: Callable[[Any, Any, Any], Any]) -> Any:
    """Lanes i and i + width/2 first, then halves again: a fixed tree of log2(16) levels."""
    width = LANES
    while width > 1:
        half = width // 2
        low, high = emit.indices(range(half)), emit.indices(range(half, width))
        undef = ir.Constant(v.type, ir.Undefined)
        v = op(b, b.shuffle_vector(v, undef, low), b.shuffle_vector(v, undef, high))
        width = half
    return b.extract_element(v, ir.Constant(emit.I32, 0))


def _unary(b: Any, name: str, x: Any) -> Any:
    """The LLVM intrinsic of that name, lane by lane."""
    kind = f"v{LANES}f32" if x.type == _VF else "f32"
    return b.call(emit.declared(b.module, f"llvm.{name}.{kind}", x.type, [x.type]), [x])


def _fmax(b: Any, x: Any, y: Any) -> Any:
    return b.select(b.fcmp_ordered(">", x, y), x, y)  # a NaN in x gives y


def _exp2(b: Any, t: Any) -> Any:
    """2**t for t <= 126; exactly 0 for t < -126. Degree-6 polynomial on [0, 1), relative error below 7e-8.

    Coefficients: minimax fit of 2**f; the integer part goes straight into the exponent field.
    """
    const = lambda x: ir.Constant(_VF, [x] * LANES)  # noqa: E731
    low = b.fcmp_ordered("<", t, const(-126.0))
    t = b.select(low, const(-126.0), t)
    t = b.select(b.fcmp_ordered(">", t, const(126.0)), const(126.0), t)
    whole = _unary(b, "floor", t)
    f = b.fsub(t, whole)
    p = const(EXP2[0])
    for c in EXP2[1:]:
        p = emit.fma(b, p, f, const(c))
    bits = b.add(b.bitcast(p, _VI), b.shl(b.fptosi(whole, _VI), ir.Constant(_VI, [23] * LANES)))
    return b.select(low, const(0.0), b.bitcast(bits, _VF))


def _weight(b: Any, t: Any) -> Any:
    """2**t for t <= 0, below 2**-126 exactly 0 or a subnormal number (which the float mode of a forward takes for 0).

    Nearest integer by adding 1.5 * 2**23; degree-5 polynomial on [-1/2, 1/2], relative error below 2e-7. At the bound
    -127 the power's bits are all 0: no comparison is needed.
    """
    const = lambda x: ir.Constant(_VF, [x] * LANES)  # noqa: E731
    t = _fmax(b, t, const(-127.0))
    shifted = b.fadd(t, const(12582912.0))
    f = b.fsub(t, b.fsub(shifted, const(12582912.0)))
    p = const(WEIGHT[0])
    for c in WEIGHT[1:]:
        p = emit.fma(b, p, f, const(c))
    whole = b.shl(b.bitcast(shifted, _VI), ir.Constant(_VI, [23] * LANES))
    return b.bitcast(b.add(b.bitcast(p, _VI), whole), _VF)


def _single(x: float) -> float:
    import struct

    return float(struct.unpack("f", struct.pack("f", x))[0])


# 2**f on [0, 1], highest power first, as float32 values; the last is exactly 1 so that 2**0 == 1.
EXP2 = tuple(
    _single(c)
    for c in (
        2.161293135450362e-4,
        1.2467841157610682e-3,
        9.675452212781757e-3,
        5.548528025133475e-2,
        2.402293056470668e-1,
        6.931470444348033e-1,
        1.0,
    )
)

# 2**f on [-1/2, 1/2] for `weight`, likewise; minimax in relative error.
WEIGHT = tuple(
    _single(c)
    for c in (
        1.3264720366289499e-3,
        9.671513022329365e-3,
        5.550733777650474e-2,
        2.402224207698376e-1,
        6.931469775578211e-1,
        1.0,
    )
)

load = _make(F32x16, (_A,), lambda b, at: emit.load(b, at, _VF))
store = _make(types.void, (_A, F32x16), lambda b, at, v: emit.store(b, v, at))
load_i32 = _make(I32x16, (_A,), lambda b, at: emit.load(b, at, _VI))
store_i32 = _make(types.void, (_A, I32x16), lambda b, at, v: emit.store(b, v, at))
splat = _make(F32x16, (types.float32,), lambda b, x: emit.broadcast(b, x, LANES))
splat_i32 = _make(I32x16, (types.int32,), lambda b, x: emit.broadcast(b, x, LANES))
load_f32 = _make(types.float32, (_A,), lambda b, at: emit.load(b, at, emit.F32))
store_f32 = _make(types.void, (_A, types.float32), lambda b, at, v: emit.store(b, v, at))
load_i32s = _make(types.int32, (_A,), lambda b, at: emit.load(b, at, emit.I32))
store_i32s = _make(types.void, (_A, types.int32), lambda b, at, v: emit.store(b, v, at))
load_i64s = _make(types.int64, (_A,), lambda b, at: emit.load(b, at, emit.I64))
store_i64s = _make(types.void, (_A, types.int64), lambda b, at, v: emit.store(b, v, at))
add = _make(F32x16, (F32x16, F32x16), lambda b, x, y: b.fadd(x, y))
sub = _make(F32x16, (F32x16, F32x16), lambda b, x, y: b.fsub(x, y))
mul = _make(F32x16, (F32x16, F32x16), lambda b, x, y: b.fmul(x, y))
div = _make(F32x16, (F32x16, F32x16), lambda b, x, y: b.fdiv(x, y))
sub_i32 = _make(I32x16, (I32x16, I32x16), lambda b, x, y: b.sub(x, y))
add_i32 = _make(I32x16, (I32x16, I32x16), lambda b, x, y: b.add(x, y))
fma = _make(
    F32x16,
    (F32x16, F32x16, F32x16),
    lambda b, x, y, z: emit.fma(b, x, y, z),
)
maximum = _make(F32x16, (F32x16, F32x16), _fmax)
minimum = _make(F32x16, (F32x16, F32x16), lambda b, x, y: b.select(b.fcmp_ordered("<", x, y), x, y))
absolute = _make(F32x16, (F32x16,), lambda b, x: _unary(b, "fabs", x))
exp2 = _make(F32x16, (F32x16,), _exp2)
weight = _make(F32x16, (F32x16,), _weight)
sqrt = _make(types.float32, (types.float32,), lambda b, x: _unary(b, "sqrt", x))
to_float = _make(F32x16, (I32x16,), lambda b, x: b.sitofp(x, _VF))
sum_lanes = _make(types.float32, (F32x16,), lambda b, v: _reduce(b, v, lambda b, x, y: b.fadd(x, y)))
sum_lanes_i32 = _make(types.int32, (I32x16,), lambda b, v: _reduce(b, v, lambda b, x, y: b.add(x, y)))
first_lane = _make(types.float32, (F32x16,), lambda b, v: b.extract_element(v, ir.Constant(emit.I32, 0)))
max_lanes = _make(types.float32, (F32x16,), lambda b, v: _reduce(b, v, _fmax))


def _round(b: Any, x: Any) -> Any:
    """Nearest integer, ties to even, as int32. |x| must be below 2**31."""
    return b.fptosi(_unary(b, "rint", x), _VI)


round_i32 = _make(I32x16, (F32x16,), _round)
store_i8 = _make(types.void, (_A, I32x16), lambda b, at, v: emit.store(b, b.trunc(v, _VB), at))
store_i8s = _make(types.void, (_A, types.int32), lambda b, at, x: emit.store(b, b.trunc(x, emit.I8), at))
store_i16s = _make(types.void, (_A, types.int32), lambda b, at, x: emit.store(b, b.trunc(x, ir.IntType(16)), at))


def _nearest_bf16(b: Any, x: Any) -> Any:
    """float32 bits whose upper halves are the nearest bfloat16, ties to even. x must be finite."""
    bits = b.bitcast(x, _VI)
    odd = b.and_(b.lshr(bits, ir.Constant(_VI, [16] * LANES)), ir.Constant(_VI, [1] * LANES))
    return b.add(bits, b.add(odd, ir.Constant(_VI, [0x7FFF] * LANES)))


def _store_bf16(b: Any, at: Any, x: Any) -> Any:
    bits = _nearest_bf16(b, x)
    undef, words = ir.Constant(_VI, ir.Undefined), ir.VectorType(emit.I32, 8)
    low = b.lshr(b.shuffle_vector(bits, undef, emit.indices(range(8))), ir.Constant(words, [16] * 8))
    high = b.and_(b.shuffle_vector(bits, undef, emit.indices(range(8, 16))), ir.Constant(words, [0xFFFF0000] * 8))
    emit.store(b, b.or_(low, high), at)


# 16 bfloat16 in int32 lanes; and stored in the order of a panel (see float_tile).
round_bf16 = _make(I32x16, (F32x16,), lambda b, x: b.lshr(_nearest_bf16(b, x), ir.Constant(_VI, [16] * LANES)))
store_bf16 = _make(types.void, (_A, F32x16), _store_bf16)


def _widen(b: Any, at: Any) -> Any:
    return b.sub(b.zext(emit.load(b, at, _VB), _VI), ir.Constant(_VI, [128] * LANES))


load_weights = _make(I32x16, (_A,), _widen)  # 16 stored weights (weight + 128 as uint8) as int32


def _gather_weights(b: Any, at: Any, stride: Any) -> Any:
    """16 stored weights of one channel: four groups of 4 bytes, `stride` bytes apart, as int32."""
    four = ir.VectorType(emit.I8, 4)
    parts = [emit.load(b, b.add(at, b.mul(stride, emit.const(i))), four) for i in range(4)]
    seq = lambda n: emit.indices(range(n))  # noqa: E731
    pair = [b.shuffle_vector(parts[0], parts[1], seq(8)), b.shuffle_vector(parts[2], parts[3], seq(8))]
    whole = b.shuffle_vector(pair[0], pair[1], seq(16))
    return b.sub(b.zext(whole, _VI), ir.Constant(_VI, [128] * LANES))


gather_weights = _make(I32x16, (_A, _A), _gather_weights)


def _mask_tail(b: Any, v: Any, count: Any, fill: Any) -> Any:
    """Lanes at and after `count` (int64) become `fill`."""
    lanes = ir.Constant(_VI, list(range(LANES)))
    limit = emit.broadcast(b, b.trunc(count, emit.I32), LANES)
    return b.select(b.icmp_signed("<", lanes, limit), v, emit.broadcast(b, fill, LANES))


mask_tail = _make(F32x16, (F32x16, types.int64, types.float32), _mask_tail)


def _mask_head(b: Any, v: Any, count: Any, fill: Any) -> Any:
    """Lanes before `count` (int64) become `fill`."""
    lanes = ir.Constant(_VI, list(range(LANES)))
    limit = emit.broadcast(b, b.trunc(count, emit.I32), LANES)
    return b.select(b.icmp_signed(">=", lanes, limit), v, emit.broadcast(b, fill, LANES))


mask_head = _make(F32x16, (F32x16, types.int64, types.float32), _mask_head)
