"""What this machine is: which instruction set the products use, how many threads, how fast memory reads."""

from __future__ import annotations

import os
import platform
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
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
        if {"avx2", "fma"} <= features:
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


def read_bandwidth(threads: int, *, megabytes: int = 256, rounds: int = 5) -> float:
    """Bytes per nanosecond (GB/s) that `threads` threads read together from memory: best of `rounds` sums."""
    block = np.ones(megabytes * 2**20 // 8, dtype=np.int64)
    parts = np.array_split(block, threads)
    best = 0.0
    for _ in range(rounds):
        workers = [threading.Thread(target=part.max) for part in parts]
        start = time.perf_counter()
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        best = max(best, block.nbytes / (time.perf_counter() - start) / 1e9)
    return best
