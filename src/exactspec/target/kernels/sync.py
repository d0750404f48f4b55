"""Threads that meet inside compiled code: atomics, a spinning barrier, work sharing, the float environment.

One forward is one call per thread; inside it the threads meet about nine times a layer. Waking threads through
the operating system costs tens of microseconds, a spin a fraction of one. A spinning thread yields its core to
the system after a while, so a busy machine still makes progress.

Memory layout of a team's block (int64 cells, one cache line of 8 cells each): see the *_CELL constants.
"""

from __future__ import annotations

import sys
from typing import Any

from llvmlite import ir
from numba import njit
from numba.core import types
from numba.extending import intrinsic

from exactspec.target.kernels.emit import I32, I64, declared

LINE = 64  # bytes of a cache line
GENERATION_CELL = 0  # number of jobs started
ARRIVED_CELL = 1  # threads waiting at the barrier
PHASE_CELL = 2  # number of barriers passed
COMING_CELL = 3  # 1 from the announcement of a job to its start: no thread goes to sleep
PARKED_CELL = 4  # + thread: 1 while that thread sleeps in the operating system
MAX_THREADS = 64
COUNTER_CELL = PARKED_CELL + MAX_THREADS  # + slot * MAX_THREADS + thread: next unit of a thread's share
COUNTER_SLOTS = 2  # work-sharing phases alternate between two sets of counters
CELLS = COUNTER_CELL + COUNTER_SLOTS * MAX_THREADS

SPINS_BEFORE_YIELD = 400  # some 20 microseconds


def _cell(b: Any, address: Any) -> Any:
    return b.inttoptr(address, I64.as_pointer())


@intrinsic
def fetch_add(typingctx, address, amount):
    """Add to an int64 cell; returns the value before. Sequentially consistent, as all here."""

    def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
        return b.atomic_rmw("add", _cell(b, args[0]), args[1], "seq_cst")

    return types.int64(types.int64, types.int64), codegen


@intrinsic
def exchange(typingctx, address, value):
    def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
        return b.atomic_rmw("xchg", _cell(b, args[0]), args[1], "seq_cst")

    return types.int64(types.int64, types.int64), codegen


@intrinsic
def atomic_load(typingctx, address):
    def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
        return b.load_atomic(_cell(b, args[0]), "seq_cst", 8)

    return types.int64(types.int64), codegen


@intrinsic
def relax(typingctx):
    """Tell the core that this is a spin."""

    def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
        triple = b.module.triple
        if triple.startswith(("x86_64", "i686", "i386")):
            name, arguments = "llvm.x86.sse2.pause", []
        elif triple.startswith(("aarch64", "arm64")):
            name, arguments = "llvm.aarch64.hint", [ir.Constant(I32, 1)]  # yield
        else:
            return context.get_dummy_value()
        b.call(declared(b.module, name, ir.VoidType(), [a.type for a in arguments]), arguments)
        return context.get_dummy_value()

    return types.void(), codegen


@intrinsic
def give_way(typingctx):
    """Offer the core to another thread (sched_yield; a plain spin where there is none)."""

    def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
        if sys.platform != "win32":
            b.call(declared(b.module, "sched_yield", I32, []), [])
        return context.get_dummy_value()

    return types.void(), codegen


@intrinsic
def run_job(typingctx, function, frame, threads, thread):
    """Call the compiled function at an address, see `job` in frame."""

    def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
        kind = ir.FunctionType(ir.VoidType(), [I64] * 3)
        b.call(b.inttoptr(args[0], kind.as_pointer()), list(args[1:]))
        return context.get_dummy_value()

    return types.void(*[types.int64] * 4), codegen


def _mxcsr(b: Any, which: str, slot: Any) -> None:
    pointer = ir.IntType(8).as_pointer()
    function = declared(b.module, f"llvm.x86.sse.{which}mxcsr", ir.VoidType(), [pointer])
    b.call(function, [b.bitcast(slot, pointer)])


@intrinsic
def enter_float_mode(typingctx):
    """Set this thread's float environment: nearest rounding, no traps, denormals as zero. Returns the old one.

    The flags are per thread, and other libraries change them; equal bits need them equal everywhere.
    """

    def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
        if not b.module.triple.startswith(("x86_64", "i686", "i386")):
            return ir.Constant(I32, 0)
        slot = b.alloca(I32)
        _mxcsr(b, "st", slot)
        old = b.load(slot)
        b.store(ir.Constant(I32, 0x9FC0), slot)
        _mxcsr(b, "ld", slot)
        return old

    return types.int32(), codegen


@intrinsic
def leave_float_mode(typingctx, old):
    def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
        if b.module.triple.startswith(("x86_64", "i686", "i386")):
            slot = b.alloca(I32)
            b.store(args[0], slot)
            _mxcsr(b, "ld", slot)
        return context.get_dummy_value()

    return types.void(types.int32), codegen


@njit(nogil=True, error_model="numpy")
def barrier(team: int, threads: int) -> None:
    """Wait until all threads of the team are here. Writes before it are seen by all after it."""
    if threads == 1:
        return
    phase = atomic_load(team + PHASE_CELL * LINE)
    if fetch_add(team + ARRIVED_CELL * LINE, 1) == threads - 1:
        exchange(team + ARRIVED_CELL * LINE, 0)
        fetch_add(team + PHASE_CELL * LINE, 1)
        return
    spins = 0
    while atomic_load(team + PHASE_CELL * LINE) == phase:
        relax()
        spins += 1
        if spins > SPINS_BEFORE_YIELD:
            give_way()


@njit(nogil=True, error_model="numpy")
def share_start(units, threads, thread):
    """First unit of a thread's own contiguous share of 0..units-1."""
    return units * thread // threads


@njit(nogil=True, error_model="numpy")
def reset_counter(team: int, slot: int, thread: int) -> None:
    exchange(team + (COUNTER_CELL + slot * MAX_THREADS + thread) * LINE, 0)


@njit(nogil=True, error_model="numpy")
def next_unit(team, slot, units, threads, thread):
    """The next unit for this thread: its own share in order, then what slower threads have left; -1 at the end.

    Who computes a unit never matters to the bits: units are independent.
    """
    for step in range(threads):
        owner = (thread + step) % threads
        start = share_start(units, threads, owner)
        end = share_start(units, threads, owner + 1)
        counter = team + (COUNTER_CELL + slot * MAX_THREADS + owner) * LINE
        if step and atomic_load(counter) >= end - start:
            continue
        unit = start + fetch_add(counter, 1)
        if unit < end:
            return unit
    return -1
