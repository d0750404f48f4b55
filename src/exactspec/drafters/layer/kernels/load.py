"""The draft layer's compiled job, kept once per machine (see `drafters.compiling`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from exactspec.drafters.compiling import Once, Tell, compile_c
from exactspec.target import kernels

NAME = "longspec"
PACKAGES = (Path(__file__).parent, Path(kernels.__path__[0]))


def _compiled(instruction_set: str, *, progress: Tell | None) -> Any:
    from numba import from_dtype, types

    from exactspec.drafters.layer.kernels import entry
    from exactspec.drafters.layer.kernels.frame import FRAME

    function = getattr(entry, "run_" + instruction_set.replace("-", "_"))
    signature = types.void(types.CPointer(from_dtype(FRAME)), types.int64, types.int64)
    name, what, takes = f"{NAME}-{instruction_set}", "draft layer", "half a minute or so"
    return compile_c(name, PACKAGES, function, signature, what=what, takes=takes, progress=progress)


compiled = Once(_compiled)
"""The C function of one instruction set; the first call of a process loads it, the first on a machine compiles.

Raises ValueError if numba's compiler is switched off.
"""
