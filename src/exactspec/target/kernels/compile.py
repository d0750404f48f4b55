"""Compiling the kernels once per machine: a cache folder that is keyed by everything that goes into them.

numba's own key sees only the source file of the outermost function; this folder's name also hashes every kernel
source, the numba and llvmlite versions and the CPU's features. A damaged entry is thrown away and compiled again.
"""

from __future__ import annotations

import hashlib
import shutil
import threading
from collections.abc import Callable
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class Kernels:
    """Compiled functions. `serve`: ``serve(frames, threads, thread, seen, spins)`` of one instruction set (see
    forward). `pack_rows`: see packing."""

    serve: Any
    pack_rows: Any


def load_kernels(cpu: CpuInfo, *, home: Path | None = None, progress: Callable[[str], None] | None = None) -> Kernels:
    """The kernels for `cpu.instruction_set`.

    Compiles on the first use on a machine and says so through `progress`; afterwards loads from the cache folder.
    Works without a writable folder too (compiles every time). Raises ValueError if numba's compiler is switched off.
    """
    import numba
    from numba import from_dtype, types

    from exactspec.target.kernels import forward, packing
    from exactspec.target.kernels.frame import FRAME

    if numba.config.DISABLE_JIT:
        raise ValueError("NUMBA_DISABLE_JIT is set: unset it, the kernels exist only in compiled form")
    serve = {
        "avx512vnni": forward.serve_avx512vnni,
        "avx512vnni-256": forward.serve_avx512vnni_256,
        "avxvnni": forward.serve_avxvnni,
        "portable": forward.serve_portable,
    }[cpu.instruction_set]
    array = lambda kind, dims, layout="C": types.Array(kind, dims, layout)  # noqa: E731
    i64 = types.int64
    signatures = {
        serve: i64(array(from_dtype(FRAME), 1), i64, i64, i64, i64),
        packing.pack_rows: types.void(
            array(types.float32, 2, "A"), array(i64, 1), array(i64, 1), array(types.uint8, 4), array(types.float32, 1)
        ),
    }
    folder = kernel_folder(cpu, home)
    say = progress or (lambda message: None)

    def build(cached: bool) -> Kernels:
        if not (cached and any(folder.rglob(f"*{serve.__name__}*.nbc"))):
            say(f"compiling the kernels for this machine ({cpu.instruction_set}), once: half a minute or so")
        compiled = []
        for function, signature in signatures.items():
            kernel = numba.njit(nogil=True, error_model="numpy", cache=cached)(function)
            kernel.compile(signature)
            compiled.append(kernel)
        return Kernels(*compiled)

    with _LOCK:
        before = numba.config.CACHE_DIR
        cached = _writable(folder)
        try:
            numba.config.CACHE_DIR = str(folder) if cached else before
            try:
                return build(cached)
            except Exception:
                if not cached:
                    raise
                shutil.rmtree(folder, ignore_errors=True)  # a torn or foreign file: compile afresh
                return build(_writable(folder))
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
