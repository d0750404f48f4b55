"""The LLVM that several kernels write alike: unaligned loads, broadcasts, declarations, a switch over tile heights.

`b` is an llvmlite IRBuilder; addresses are int64 values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir

I8, I32, I64, F32 = ir.IntType(8), ir.IntType(32), ir.IntType(64), ir.FloatType()


def const(x: int) -> Any:
    return ir.Constant(I64, x)


def indices(values: Sequence[int]) -> Any:
    """A constant vector of int32, as shuffles take it."""
    return ir.Constant(ir.VectorType(I32, len(values)), list(values))


def load(b: Any, address: Any, kind: Any) -> Any:
    value = b.load(b.inttoptr(address, kind.as_pointer()))
    value.align = 1
    return value


def store(b: Any, value: Any, address: Any) -> None:
    b.store(value, b.inttoptr(address, value.type.as_pointer())).align = 1


def broadcast(b: Any, scalar: Any, lanes: int) -> Any:
    undefined = ir.Constant(ir.VectorType(scalar.type, lanes), ir.Undefined)
    one = b.insert_element(undefined, scalar, ir.Constant(I32, 0))
    return b.shuffle_vector(one, undefined, indices([0] * lanes))


def declared(module: Any, name: str, returns: Any, arguments: Sequence[Any]) -> Any:
    """The external function or LLVM intrinsic `name`, declared once a module."""
    return module.globals.get(name) or ir.Function(module, ir.FunctionType(returns, arguments), name)


def fma(b: Any, x: Any, y: Any, z: Any) -> Any:
    """x * y + z, rounded once."""
    kind = x.type
    name = f"llvm.fma.v{kind.count}f32"
    return b.call(declared(b.module, name, kind, [kind] * 3), [x, y, z])


def by_rows(b: Any, rows: Any, most: int, function: Callable[[int], Any], arguments: Sequence[Any]) -> None:
    """Call ``function(rows)`` for the run-time value `rows` in 1 .. most; nothing for any other."""
    done = b.append_basic_block("tiles")
    switch = b.switch(rows, done)
    for count in range(1, most + 1):
        block = b.append_basic_block(f"tile{count}")
        switch.add_case(const(count), block)
        b.position_at_end(block)
        b.call(function(count), arguments)
        b.branch(done)
    b.position_at_end(done)
