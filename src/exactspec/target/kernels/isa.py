"""Instruction sets of the integer products: their names as numba types, and how each multiplies and adds.

Instruction sets are *types*, not values: a function compiled for one never holds another's instructions.

One *quad* is four inputs of one output channel. Every set gives the same integers, ``acc + sum(stored * a)`` over the
quad with `stored` uint8 and `a` a signed integer; they differ in how the activations lie in memory:

===================  ===================================================================  =================
name                 one quad of 8 or 16 channels                                         activations
===================  ===================================================================  =================
avx512vnni (-256)    ``vpdpbusd``: four products and their sum in one instruction         bytes
avxvnni              the same, encoded for CPUs without AVX-512                           bytes
avx2                 even and odd inputs apart as int16, two ``vpmaddwd``, two adds       int16, see `EVEN_ODD`
portable             products in int16, added in pairs (what ``smlal`` does)              bytes
avx512vnni-emulated  the tiles of avx512vnni with the instruction spelled out, for tests  bytes
===================  ===================================================================  =================

*Wide* activations have 16 bits, at most `WIDE_LIMIT` in size. Sets that take bytes hold them in two *planes*,
``a = 256 * high + low`` with both signed, and do two products; for avx2 they cost nothing.
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
from exactspec.target.kernels.emit import I8, I32, broadcast, const, load

I16 = ir.IntType(16)
NARROW_LIMIT = 127
WIDE_LIMIT = 127 * 256  # the largest whose high byte, with a signed low byte, still fits
EVEN_ODD = (0, 2, 1, 3)
"""Order of a quad's inputs in int16 activations: the even ones meet the low bytes of 16-bit weight lanes, the odd ones
the high bytes, so that neither needs a shuffle."""


@dataclass(frozen=True, slots=True)
class Shape:
    """How a tile fits the register file.

    `lanes`: int32 lanes a vector. `columns`: channels a pass of a tile with 1, 2, ... rows; the tallest tile has as
    many rows as there are entries. `activation_bytes` of one input and plane; `planes` of wide activations.
    """

    lanes: int
    columns: tuple[int, ...]
    activation_bytes: int = 1
    planes: int = 2

    @property
    def rows(self) -> int:
        return len(self.columns)

    @property
    def wide_rows(self) -> int:
        return self.rows // self.planes


SHAPES = {
    "avx512vnni": Shape(lanes=16, columns=(32,) * 12),
    "avx512vnni-256": Shape(lanes=8, columns=(32,) * 6),
    "avxvnni": Shape(lanes=8, columns=(32,) * 2),
    "avx2": Shape(lanes=8, columns=(32, 32, 16, 16, 16, 16), activation_bytes=2, planes=1),
    "portable": Shape(lanes=8, columns=(8,) * 4),
    "avx512vnni-emulated": Shape(lanes=16, columns=(32,) * 12),
}

NIBBLE_COLUMNS = {
    "avx512vnni": (32,) * 12,
    "avx512vnni-256": (32,) * 6,
    "avxvnni": (32, 32, 16, 16),
    "avx2": (32, 32, 16, 16, 16),
    "portable": (8,) * 4,
    "avx512vnni-emulated": (32,) * 3,  # a block is long, spelled out
}
"""`Shape.columns` of the products with four-bit weights (see nibbles), whose activations are bytes in every set."""


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
avx2 = _tag("avx2")
portable = _tag("portable")
avx512vnni_emulated = _tag("avx512vnni-emulated")


class Vnni:
    """One instruction a quad and vector."""

    def __init__(self, b: Any, lanes: int) -> None:
        self.b, self.lanes = b, lanes
        self.acc_type = self._vector = ir.VectorType(I32, lanes)

    def weights(self, at: Any) -> Any:
        return load(self.b, at, self._vector)

    def activations(self, at: Any) -> Any:
        return broadcast(self.b, load(self.b, at, I32), self.lanes)

    def add(self, acc: Any, weights: Any, activations: Any) -> Any:
        name = f"llvm.x86.avx512.vpdpbusd.{32 * self.lanes}"
        function = emit.declared(self.b.module, name, self._vector, [self._vector] * 3)
        return self.b.call(function, [acc, weights, activations])

    def total(self, acc: Any) -> Any:
        return acc


class Emulated(Vnni):
    """What `Vnni` does, by shifts and products of whole lanes."""

    def add(self, acc: Any, weights: Any, activations: Any) -> Any:
        b = self.b
        many = lambda x: ir.Constant(self._vector, [x] * self.lanes)  # noqa: E731
        for i in range(4):
            w = b.and_(b.lshr(weights, many(8 * i)), many(255))
            a = b.ashr(b.shl(activations, many(24 - 8 * i)), many(24))
            acc = b.add(acc, b.mul(w, a))
        return acc


class Avx2:
    """Weights as two vectors of int16 lanes: even inputs (low bytes) and odd inputs (high bytes). 255 * 2**15 * 2
    stays far below 2**31."""

    def __init__(self, b: Any, lanes: int) -> None:
        self.b, self.lanes = b, lanes
        self.acc_type = ir.VectorType(I32, lanes)
        self._wide = ir.VectorType(I16, 2 * lanes)

    def weights(self, at: Any) -> Any:
        both = load(self.b, at, self._wide)
        eight = lambda x: ir.Constant(self._wide, [x] * self._wide.count)  # noqa: E731
        return self.b.and_(both, eight(255)), self.b.lshr(both, eight(8))

    def activations(self, at: Any) -> Any:
        pair = lambda x: self.b.bitcast(broadcast(self.b, load(self.b, x, I32), self.lanes), self._wide)  # noqa: E731
        return pair(at), pair(self.b.add(at, const(4)))

    def add(self, acc: Any, weights: Any, activations: Any) -> Any:
        function = emit.declared(self.b.module, "llvm.x86.avx2.pmadd.wd", self.acc_type, [self._wide] * 2)
        for w, a in zip(weights, activations, strict=True):
            acc = self.b.add(acc, self.b.call(function, [w, a]))
        return acc

    def total(self, acc: Any) -> Any:
        return acc


class Portable:
    """Two partial sums a channel; what the compiler makes of it."""

    def __init__(self, b: Any, lanes: int) -> None:
        self.b, self.lanes = b, lanes
        self.acc_type = ir.VectorType(I32, 2 * lanes)
        self._bytes = ir.VectorType(I8, 4 * lanes)

    def weights(self, at: Any) -> Any:
        return self.b.zext(load(self.b, at, self._bytes), ir.VectorType(I32, 4 * self.lanes))

    def activations(self, at: Any) -> Any:
        spread = self.b.bitcast(broadcast(self.b, load(self.b, at, I32), self.lanes), self._bytes)
        return self.b.sext(spread, ir.VectorType(I32, 4 * self.lanes))

    def add(self, acc: Any, weights: Any, activations: Any) -> Any:
        even, odd = self._pairs(self.b.mul(weights, activations), 2 * self.lanes)
        return self.b.add(acc, self.b.add(even, odd))

    def total(self, acc: Any) -> Any:
        even, odd = self._pairs(acc, self.lanes)
        return self.b.add(even, odd)

    def _pairs(self, wide: Any, count: int) -> tuple[Any, Any]:
        undef = ir.Constant(wide.type, ir.Undefined)
        index = lambda odd: emit.indices([2 * i + odd for i in range(count)])  # noqa: E731
        return self.b.shuffle_vector(wide, undef, index(0)), self.b.shuffle_vector(wide, undef, index(1))


def arithmetic(b: Any, kind: str) -> Vnni | Avx2 | Portable:
    """How `kind` multiplies and adds, writing through the builder `b`."""
    lanes = SHAPES[kind].lanes
    if kind == "avx2":
        return Avx2(b, lanes)
    if kind == "portable":
        return Portable(b, lanes)
    return Emulated(b, lanes) if kind.endswith("emulated") else Vnni(b, lanes)
