"""The recycle drafter's compiled functions, kept once per machine (see `drafters.compiling`)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from exactspec.drafters.compiling import Once, Tell, compile_all

NAME = "recycle"
PACKAGE = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Compiled:
    """The functions of `entry`, compiled."""

    propose: Any
    take_in: Any
    drop: Any


def _compiled(*, progress: Tell | None) -> Compiled:
    from numba import types

    from exactspec.drafters.recycling import entry

    i32, i64, f32 = types.int32, types.int64, types.float32
    a = lambda kind, dims: types.Array(kind, dims, "C")  # noqa: E731
    table = (a(i64, 1), a(i32, 2), a(f32, 2), a(i32, 1))
    base = (a(i64, 2), a(i64, 1), a(f32, 1))
    cells = (a(f32, 2), a(f32, 2))
    room = (a(i32, 2), a(f32, 2), a(i64, 2), a(f32, 2), a(i64, 2), a(f32, 1))
    state = (*table, *base, *cells, *room, a(i64, 1))
    rows = (types.Array(i64, 2, "A"), types.Array(f32, 2, "A"))
    signatures = {
        "propose": i64(*state, i64, i64, i64, a(i64, 2), a(f32, 1)),
        "take_in": types.void(*state, a(i64, 1), a(i64, 1), *rows, a(i64, 1)),
        "drop": types.void(a(i64, 1), a(i32, 1), i64),
    }
    functions = compile_all(NAME, (PACKAGE,), entry, signatures, takes="some seconds", progress=progress)
    return Compiled(**functions)


compiled = Once(_compiled)
"""The compiled functions; the first call of a process loads them, the first on a machine compiles (some seconds).

Raises ValueError if numba's compiler is switched off.
"""
