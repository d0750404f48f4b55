"""What this machine is: which instruction set the products use, how many threads, how fast memory reads."""

from __future__ import annotations

import os
import platform
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

INSTRUCTION_SETS = ("avx512vnni", "avx512vnni-256", "avxvnni", "avx2", "portable")
"""Best first. All give the same integers (see kernels.isa)."""

EMULATED = "avx512vnni-emulated"
"""The tiles of avx512vnni on any CPU, slowly: for tests."""

ISA_VARIABLE = "EXACTSPEC_ISA"


@dataclass(frozen=True, slots=True)
class CpuInfo:
    """`model`: the CPU's own name. `llvm_name`: LLVM's name of its kind. `features`: LLVM's names of the features
    it has. `supported`: instruction sets that could run, best first. `instruction_set`: the one in use.
    `cores`: cores this process may use. `threads`: threads used unless told otherwise."""

    model: str
    llvm_name: str
    features: tuple[str, ...]
    supported: tuple[str, ...]
    instruction_set: str
    cores: int
    threads: int


def available_cores() -> int:
    """Cores this process may run on (affinity respected)."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _model_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith(("model name", "Processor")):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def supported_sets(features: frozenset[str], machine: str) -> tuple[str, ...]:
    """Instruction sets that a CPU with these LLVM feature names can run, best first."""
    found = []
    if machine.lower() in ("x86_64", "amd64"):
        if {"avx512vnni", "avx512f", "avx512bw"} <= features:
            found.append("avx512vnni")
        if {"avx512vnni", "avx512vl"} <= features:
            found.append("avx512vnni-256")
        if "avxvnni" in features:
            found.append("avxvnni")
        if {"avx2", "fma", "f16c"} <= features:
            found.append("avx2")
    return (*found, "portable")


def describe_cpu(env: Mapping[str, str] | None = None) -> CpuInfo:
    """This machine. `EXACTSPEC_ISA` forces an instruction set; ValueError if the CPU lacks it or it is unknown."""
    import llvmlite.binding as llvm

    env = os.environ if env is None else env
    features = frozenset(name for name, has in llvm.get_host_cpu_features().items() if has)
    supported = supported_sets(features, platform.machine())
    chosen = env.get(ISA_VARIABLE) or supported[0]
    if chosen not in (*INSTRUCTION_SETS, EMULATED):
        raise ValueError(f"{ISA_VARIABLE} must be one of {', '.join(INSTRUCTION_SETS)}, got {chosen!r}")
    if chosen not in (*supported, EMULATED):
        raise ValueError(
            f"{ISA_VARIABLE}={chosen}: this CPU has no such instructions; it can run {', '.join(supported)}"
        )
    cores = available_cores()
    return CpuInfo(_model_name(), llvm.get_host_cpu_name(), tuple(sorted(features)), supported, chosen, cores, cores)


def in_parallel(work: Sequence[Callable[[], object]]) -> float:
    """Seconds from the start to the last end of functions that run at once, each in a thread of its own. They must
    leave Python's lock to be parallel."""
    threads = [threading.Thread(target=function) for function in work]
    start = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return time.perf_counter() - start


class MemoryReader:
    """Reads a block that no cache holds with `threads` threads, each its own contiguous part, by the kernels' loads.

    Compiles at the first use in a process, about a second. Raises MemoryError if the block cannot be had, ValueError
    if numba's compiler is switched off.
    """

    def __init__(self, threads: int, *, megabytes: int = 256) -> None:
        import numba

        if numba.config.DISABLE_JIT:
            raise ValueError("NUMBA_DISABLE_JIT is set: unset it, the kernels exist only in compiled form")
        from exactspec.target.kernels.peaks import READ_STEP, read_block

        part = max(1, megabytes * 2**20 // threads // READ_STEP) * READ_STEP
        self._read: Callable[[int, int], object] = read_block
        self._block = np.ones(threads * part // 4, dtype=np.int32)  # written once, so that every page is there
        self._parts = [(self._block.ctypes.data + i * part, part) for i in range(threads)]
        self._read(self._block.ctypes.data, READ_STEP)

    def read(self) -> float:
        """GB/s of one pass over the block."""
        seconds = in_parallel([partial(self._read, *part) for part in self._parts])
        return self._block.nbytes / seconds / 1e9


def read_bandwidth(threads: int, *, megabytes: int = 256, rounds: int = 8) -> float:
    """Bytes per nanosecond (GB/s) that `threads` threads read together from memory: best of `rounds` passes."""
    reader = MemoryReader(threads, megabytes=megabytes)
    return max(reader.read() for _ in range(rounds))
