"""Compiling the kernels once per machine: a cache folder that is keyed by everything that goes into them.

The folder's name hashes every kernel source, the numba and llvmlite versions and the CPU's features (see numba_cache).
A damaged folder is thrown away and compiled again (see kept).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from exactspec.target.compiled.numba_cache import code_key, host_cpu, in_folder, is_compiled
from exactspec.target.cpu import CpuInfo
from exactspec.target.home import default_home


def kernel_key(cpu: CpuInfo) -> str:
    """Hash of kernel sources, compiler versions and CPU features, in hex."""
    return code_key([Path(__file__).parent], (cpu.llvm_name, *cpu.features))


def kernel_folder(cpu: CpuInfo, home: Path | None = None) -> Path:
    """Where the kernels of one instruction set are kept."""
    return (home or default_home()) / "kernels" / f"forward-{cpu.instruction_set}-{kernel_key(cpu)}"


def are_compiled(cpu: CpuInfo, home: Path | None = None) -> bool:
    """Whether `load_kernels` would find them, undamaged."""
    return is_compiled(kernel_folder(cpu, home))


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

    def build(keep: bool) -> Kernels:
        compiled = []
        for function, signature in signatures.items():
            kernel = numba.njit(nogil=True, error_model="numpy", cache=keep)(function)
            kernel.compile(signature)
            kernel.disable_compile()  # another signature would be compiled, and written to the folder, in mid-use
            compiled.append(kernel)
        return Kernels(compiled[0], Packing(*compiled[1:]))

    folder = kernel_folder(cpu, home)
    return in_folder(folder, build, what="kernels", takes="half a minute or so", progress=progress)


def load_one(function: Callable[..., Any], signature: Any, *, home: Path | None = None) -> Any:
    """A kernel that only some files need (one type's dequantisation), compiled when it is first wanted and kept as the
    others are. What it calls must be in its own source file."""
    import numba

    name = function.__name__.strip("_")
    key = code_key([Path(function.__code__.co_filename)], host_cpu())
    # One folder a kernel: it is written once, so another process never sees it grow.
    folder = (home or default_home()) / "kernels" / f"{name}-{key}"

    def build(keep: bool) -> Any:
        kernel = numba.njit(nogil=True, error_model="numpy", cache=keep)(function)
        kernel.compile(signature)
        kernel.disable_compile()
        return kernel

    return in_folder(folder, build, what=f"kernel {name}", takes="some seconds")
