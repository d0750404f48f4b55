"""The draft layer's compiled job, kept once per machine (see `drafters.compiling`)."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from exactspec.drafters.compiling import compile_c, is_kept
from exactspec.target import kernels

NAME = "longspec"
PACKAGES = (Path(__file__).parent, Path(kernels.__path__[0]))


def prepare(instruction_set: str, progress: Callable[[str], None] | None = None) -> None:
    """Load it now, so that no request waits; says so where it has to be compiled first. Raises as `compiled` does."""
    if progress is not None and not is_kept(f"{NAME}-{instruction_set}", *PACKAGES):
        progress("compiling the draft layer for this machine, once: half a minute or so")
    compiled(instruction_set)


@cache
def compiled(instruction_set: str) -> Any:
    """The C function of one instruction set; the first call of a process loads it, the first on a machine compiles.

    Raises ValueError if numba's compiler is switched off.
    """
    from numba import from_dtype, types

    from exactspec.drafters.layer.kernels import entry
    from exactspec.drafters.layer.kernels.frame import FRAME

    function = getattr(entry, "run_" + instruction_set.replace("-", "_"))
    signature = types.void(types.CPointer(from_dtype(FRAME)), types.int64, types.int64)
    return compile_c(f"{NAME}-{instruction_set}", PACKAGES, function, signature)
