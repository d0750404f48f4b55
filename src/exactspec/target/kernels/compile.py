"""Compiling the kernels once per machine: a cache folder that is keyed by everything that goes into them.

numba's own key sees only the source file of the outermost function; this folder's name also hashes every kernel
source, the numba and llvmlite versions and the CPU's features. A damaged entry is thrown away and compiled again.
"""

from __future__ import annotations

import hashlib
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from exactspec.target.cpu import CpuInfo
from exactspec.target.home import default_home

_LOCK = threading.Lock()  # numba's configuration is one per process


def kernel_key(cpu: CpuInfo) -> str:
    """Name of the cache folder: hash of kernel sources, compiler versions and CPU features."""
    import llvmlite
    import numba

    digest = hashlib.sha256()
    for part in (numba.__version__, llvmlite.__version__, cpu.llvm_name, *cpu.features):
        digest.update(part.encode() + b"\0")
    for source in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(source.name.encode() + b"\0" + source.read_bytes())
    return digest.hexdigest()[:16]


def kernel_folder(cpu: CpuInfo, home: Path | None = None) -> Path:
    return (home or default_home()) / "kernels" / kernel_key(cpu)


def load_kernels(cpu: CpuInfo, *, home: Path | None = None, progress: Callable[[str], None] | None = None) -> Any:
    """The compiled ``serve(frames, threads, thread, seen, spins)`` of `cpu.instruction_set`.

    Compiles on the first use on a machine and says so through `progress`; afterwards loads from the cache folder.
    Works without a writable folder too (compiles every time).
    """
    import numba
    from numba import from_dtype, types

    from exactspec.target.kernels import forward
    from exactspec.target.kernels.frame import FRAME

    if numba.config.DISABLE_JIT:
        raise ValueError("NUMBA_DISABLE_JIT is set: unset it, the kernels exist only in compiled form")
    function = {
        "avx512vnni": forward.serve_avx512vnni,
        "avx512vnni-256": forward.serve_avx512vnni_256,
        "avxvnni": forward.serve_avxvnni,
        "portable": forward.serve_portable,
    }[cpu.instruction_set]
    frames = types.Array(from_dtype(FRAME), 1, "C")
    signature = types.int64(frames, types.int64, types.int64, types.int64, types.int64)
    folder = kernel_folder(cpu, home)
    say = progress or (lambda message: None)

    def build() -> Any:
        kernel = numba.njit(nogil=True, error_model="numpy", cache=cached)(function)
        if not (cached and any(folder.rglob(f"*{function.__name__}*.nbc"))):
            say(f"compiling the kernels for this machine ({cpu.instruction_set}), once; takes some tens of seconds")
        kernel.compile(signature)
        return kernel

    with _LOCK:
        before = numba.config.CACHE_DIR
        cached = _writable(folder)
        try:
            numba.config.CACHE_DIR = str(folder) if cached else before
            try:
                return build()
            except Exception:
                if not cached:
                    raise
                shutil.rmtree(folder, ignore_errors=True)  # a torn or foreign file: compile afresh
                cached = _writable(folder)
                return build()
        finally:
            numba.config.CACHE_DIR = before


def _writable(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f".probe-{threading.get_ident()}"
        probe.touch()
        probe.unlink()
    except OSError:
        return False
    return True
