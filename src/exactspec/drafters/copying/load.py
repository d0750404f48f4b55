"""Compiling the copy drafter's parts once per machine, into a folder of their own beside the kernels'.

The folder is keyed by everything that goes into the code (these sources, numba, llvmlite, the CPU) and used only while
every byte is the one written (see `target.kernels.kept`). Without a folder that can be used, it is compiled every time.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from exactspec.target.home import default_home
from exactspec.target.kernels.kept import kept

_LOCK = threading.Lock()  # numba's configuration is one per process


@dataclass(frozen=True, slots=True)
class Compiled:
    """The functions of `entry`, compiled."""

    extend: Any
    cut: Any
    find: Any
    propose: Any
    take_in: Any


def _sources() -> list[Path]:
    return sorted(Path(__file__).parent.glob("*.py"))


def _key() -> str:
    import llvmlite
    import llvmlite.binding as llvm
    import numba

    features = sorted(name for name, has in llvm.get_host_cpu_features().items() if has)
    digest = hashlib.sha256()
    for part in (numba.__version__, llvmlite.__version__, llvm.get_host_cpu_name(), *features):
        digest.update(part.encode() + b"\0")
    for source in _sources():
        digest.update(source.name.encode() + b"\0" + source.read_bytes())
    return digest.hexdigest()[:16]


def _folder() -> Path:
    return default_home() / "kernels" / f"copy-{_key()}"


def prepare(progress: Callable[[str], None] | None = None) -> None:
    """Load the functions now, so that no request waits for it; says so where they have to be compiled first.
    Raises as `compiled` does."""
    if progress is not None and not _folder().exists():
        progress("compiling the copy drafter for this machine, once: half a minute or so")
    compiled()


@cache
def compiled() -> Compiled:
    """The compiled functions; the first call of a process loads them, the first on a machine compiles (seconds).

    Raises ValueError if numba's compiler is switched off.
    """
    import numba
    from numba import types

    from exactspec.drafters.copying import entry

    if numba.config.DISABLE_JIT:
        raise ValueError("NUMBA_DISABLE_JIT is set: unset it, the copy drafter exists only in compiled form")
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

    def build(*, keep: bool) -> Compiled:
        functions = {}
        for name, signature in signatures.items():
            function = numba.njit(error_model="numpy", cache=keep)(getattr(entry, name))
            function.compile(signature)
            function.disable_compile()
            functions[name] = function
        return Compiled(**functions)

    stamp = "|".join([str(Path(__file__).parent), *(str(source.stat().st_mtime_ns) for source in _sources())])
    with _LOCK:
        before = numba.config.CACHE_DIR
        try:
            with kept(_folder(), stamp=stamp) as folder:
                if folder is None:
                    return build(keep=False)
                numba.config.CACHE_DIR = str(folder)
                try:
                    return build(keep=True)
                except Exception:  # numba could not read or write there: do without
                    return build(keep=False)
        finally:
            numba.config.CACHE_DIR = before
