"""Compiling the kernels once per machine: a cache folder that is keyed by everything that goes into them.

numba's own key sees only the source file of the outermost function; this folder's name also hashes every kernel
source, the numba and llvmlite versions and the CPU's features. A damaged folder is thrown away and compiled again
(see kept).
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from exactspec.target.cpu import CpuInfo
from exactspec.target.home import default_home
from exactspec.target.kernels.kept import forget_old, intact, kept

_Built = TypeVar("_Built")
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


def _stamp() -> str:
    """What numba compares besides: place and time of the sources. Said here, so that a silent recompilation of half a
    minute cannot happen."""
    sources = sorted(Path(__file__).parent.glob("*.py"))
    return "|".join([str(Path(__file__).parent), *(str(source.stat().st_mtime_ns) for source in sources)])


def are_compiled(cpu: CpuInfo, home: Path | None = None) -> bool:
    """Whether `load_kernels` would find them, undamaged."""
    return intact(kernel_folder(cpu, home), _stamp())


@dataclass(frozen=True, slots=True)
class Packing:
    """The compiled functions that pack weights: to int8 (see packing), and a file's four-bit blocks (see
    nibble_packing)."""

    rows: Any
    half: Any
    six: Any


@dataclass(frozen=True, slots=True)
class Kernels:
    """Compiled functions. `serve`: ``serve(frames, threads, thread, seen, spins)`` of one instruction set (see
    forward)."""

    serve: Any
    packing: Packing


def load_kernels(cpu: CpuInfo, *, home: Path | None = None, progress: Callable[[str], None] | None = None) -> Kernels:
    """The kernels for `cpu.instruction_set`.

    Compiles on the first use on a machine and says so through `progress`; afterwards loads from the cache folder.
    Works without a writable folder too: loads what lies there, or compiles every time.
    Raises ValueError if numba's compiler is switched off.
    """
    import numba
    from numba import from_dtype, types

    from exactspec.target.kernels import forward, nibble_packing, packing
    from exactspec.target.kernels.frame import FRAME

    if numba.config.DISABLE_JIT:
        raise ValueError("NUMBA_DISABLE_JIT is set: unset it, the kernels exist only in compiled form")
    serve = getattr(forward, "serve_" + cpu.instruction_set.replace("-", "_"))
    array = lambda kind, dims, layout="C": types.Array(kind, dims, layout)  # noqa: E731
    i64 = types.int64
    blocks = types.Array(types.uint8, 2, "C", readonly=True)  # arrays that may be written are taken, too
    units = array(types.uint8, 2)
    signatures = {
        serve: i64(array(from_dtype(FRAME), 1), i64, i64, i64, i64),
        packing.pack_rows: types.void(
            array(types.float32, 2, "A"), array(i64, 1), array(i64, 1), array(types.uint8, 4), array(types.float32, 1)
        ),
        nibble_packing.pack_half: types.void(blocks, i64, array(i64, 1), units),
        nibble_packing.pack_six: types.void(blocks, array(i64, 1), units),
    }
    say = progress or (lambda message: None)

    def build(folder: Path | None) -> Kernels:
        if folder is None or not any(folder.rglob(f"*{serve.__name__}*.nbc")):
            say(f"compiling the kernels for this machine ({cpu.instruction_set}), once: half a minute or so")
        compiled = []
        for function, signature in signatures.items():
            kernel = numba.njit(nogil=True, error_model="numpy", cache=folder is not None)(function)
            kernel.compile(signature)
            kernel.disable_compile()  # another signature would be compiled, and written to the folder, in mid-use
            compiled.append(kernel)
        return Kernels(compiled[0], Packing(*compiled[1:]))

    waited: list[None] = []

    def waiting() -> None:
        if not waited:
            waited.append(say("waiting for another process that compiles the kernels"))

    folder = kernel_folder(cpu, home)
    compiled = _in_folder(folder, _stamp(), build, waiting)
    forget_old(folder)
    return compiled


def load_one(function: Callable[..., Any], signature: Any, *, home: Path | None = None) -> Any:
    """A kernel that only some files need (one type's dequantisation), compiled when it is first wanted and kept as the
    others are. What it calls must be in its own source file."""
    import llvmlite
    import numba
    from llvmlite import binding

    source = Path(function.__code__.co_filename)
    digest = hashlib.sha256(source.read_bytes())
    for part in (numba.__version__, llvmlite.__version__, binding.get_host_cpu_name()):
        digest.update(part.encode() + b"\0")
    # One folder a kernel: it is written once, so another process never sees it grow.
    folder = (home or default_home()) / "kernels" / f"{digest.hexdigest()[:16]}-{function.__name__.strip('_')}"

    def build(folder: Path | None) -> Any:
        kernel = numba.njit(nogil=True, error_model="numpy", cache=folder is not None)(function)
        kernel.compile(signature)
        kernel.disable_compile()
        return kernel

    return _in_folder(folder, f"{source}|{source.stat().st_mtime_ns}", build, None)


def _in_folder(
    folder: Path, stamp: str, build: Callable[[Path | None], _Built], waiting: Callable[[], None] | None
) -> _Built:
    """What `build` makes, with numba's files in a kept folder; None where nothing can be kept."""
    import numba

    with _LOCK:
        before = numba.config.CACHE_DIR
        try:
            with kept(folder, stamp=stamp, waiting=waiting) as place:
                if place is None:
                    return build(None)
                numba.config.CACHE_DIR = str(place)
                try:
                    return build(place)
                except Exception:  # numba could not read or write there: do without
                    return build(None)
        finally:
            numba.config.CACHE_DIR = before
