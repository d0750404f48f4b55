"""The compiled entries: one C function an instruction set, which the target's threads call (see kernels.frame.job)."""

from __future__ import annotations

from numba import carray

from exactspec.drafters.layer.kernels.grow import run
from exactspec.target.kernels.isa import avx2, avx512vnni, avx512vnni_256, avx512vnni_emulated, avxvnni, portable


def run_avx512vnni(frame, threads, thread):
    run(avx512vnni(), carray(frame, 1)[0], threads, thread)


def run_avx512vnni_256(frame, threads, thread):
    run(avx512vnni_256(), carray(frame, 1)[0], threads, thread)


def run_avxvnni(frame, threads, thread):
    run(avxvnni(), carray(frame, 1)[0], threads, thread)


def run_avx2(frame, threads, thread):
    run(avx2(), carray(frame, 1)[0], threads, thread)


def run_avx512vnni_emulated(frame, threads, thread):
    run(avx512vnni_emulated(), carray(frame, 1)[0], threads, thread)


def run_portable(frame, threads, thread):
    run(portable(), carray(frame, 1)[0], threads, thread)
