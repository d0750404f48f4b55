"""The compiled functions, kept once per machine (see `drafters.compiling`)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from exactspec.drafters.compiling import Once, Tell, compile_all


@dataclass(frozen=True, slots=True)
class Compiled:
    """The functions of `entry`, compiled."""

    exp: Any
    pick: Any


def _compiled(*, progress: Tell | None) -> Compiled:
    from numba import types

    from exactspec.softmax import entry

    row = types.Array(types.float64, 1, "C")
    signatures = {"exp": types.void(row), "pick": types.int64(row, types.float64)}
    package = Path(__file__).parent
    functions = compile_all(
        "softmax", (package,), entry, signatures, what="sampler", takes="some seconds", progress=progress
    )
    return Compiled(**functions)


compiled = Once(_compiled)
"""The compiled functions; the first call of a process loads them, the first on a machine compiles (some seconds).

Raises ValueError if numba's compiler is switched off.
"""
