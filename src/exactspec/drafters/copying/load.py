"""The copy drafter's compiled functions, kept once per machine (see `drafters.compiling`)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from exactspec.drafters.compiling import Once, Tell, compile_all

NAME = "copy"
PACKAGE = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Compiled:
    """The functions of `entry`, compiled."""

    extend: Any
    cut: Any
    find: Any
    propose: Any
    take_in: Any


def _compiled(*, progress: Tell | None) -> Compiled:
    from numba import types

    from exactspec.drafters.copying import entry

    i32, i64, f32 = types.int32, types.int64, types.float32
    a = lambda kind, dims: types.Array(kind, dims, "C")  # noqa: E731
    text = (a(i32, 1), a(i32, 1), a(i32, 1))
    state = (a(i64, 1), a(i32, 2), a(i32, 2), a(i32, 2), a(f32, 2), a(f32, 3), a(f32, 5), a(i64, 2), a(f32, 2))
    signatures = {
        "extend": types.void(*text, i64, i64),
        "cut": types.void(*text, i64, i64),
        "find": i64(*text, a(i32, 1), i64, a(i64, 2)),
        "propose": i64(*text, *text, *text, *state, a(i64, 2), a(f32, 1), i64, i64),
        "take_in": types.void(*text, a(i32, 1), a(i32, 1), *state, a(i64, 1)),
    }
    functions = compile_all(NAME, (PACKAGE,), entry, signatures, takes="half a minute or so", progress=progress)
    return Compiled(**functions)


compiled = Once(_compiled)
"""The compiled functions; the first call of a process loads them, the first on a machine compiles (half a
minute or so).

Raises ValueError if numba's compiler is switched off.
"""
