"""The machine's limits: rates come from work over time, the loops do the work that they are said to do."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from exactspec.bench import machine as machine_module
from exactspec.bench.machine import Machine, _rate
from exactspec.bench.peaks import Peaks
from exactspec.target.cpu import MemoryReader, describe_cpu, in_parallel
from exactspec.target.kernels.peaks import READ_STEP, multiply_add_6, multiply_add_12, read_block


def test_every_byte_is_read_once() -> None:
    block = np.random.default_rng(0).integers(0, 1000, 4 * READ_STEP, dtype=np.int32)
    for steps in (1, 3, 16):
        size = steps * READ_STEP
        assert read_block(block.ctypes.data, size) == block[: size // 4].sum()


def test_the_threads_share_the_block() -> None:
    reader = MemoryReader(3, megabytes=1)
    parts: list[tuple[int, int]] = []
    reader._read = lambda start, size: parts.append((start, size))
    assert reader.read() > 0
    parts.sort()
    assert len(parts) == 3
    assert [start for start, _ in parts[1:]] == [start + size for start, size in parts[:-1]]
    assert sum(size for _, size in parts) == reader._block.nbytes


@pytest.mark.parametrize(("run", "sums"), [(multiply_add_6, 6), (multiply_add_12, 12)])
def test_multiply_adds_are_done(run, sums: int) -> None:
    # x -> x / 2 + 1 from 1: 2 - 2**-n after n rounds, in every one of the lanes.
    for times in (1, 5):
        assert run(times, np.float32(1)) == sums * 16 * (2 - 2.0**-times)


def test_a_rate_is_work_over_time_of_a_loop_that_lasts() -> None:
    asked: list[int] = []

    def seconds(times: int) -> float:
        asked.append(times)
        return 1e-6 * times

    assert _rate(seconds, 500) == pytest.approx(500 / 1e-6 / 1e9)
    assert 1e-6 * asked[-1] >= 0.01
    assert len(asked) <= 3


def test_work_in_parallel_runs_at_once() -> None:
    meeting = threading.Barrier(3, timeout=60)
    assert in_parallel([meeting.wait] * 3) > 0  # alone, each would wait for ever


def test_readings() -> None:
    machine = Machine(2, describe_cpu().instruction_set)
    peaks = machine.peaks(readings=1)
    assert min(peaks.read_gb_per_s, peaks.products_per_ns, peaks.fma_per_ns) > 0
    assert 1 <= peaks.tile_rows <= machine._tallest
    # The loop is the products' own: a unit's channels are the sums of its weights and activations.
    for b in machine._buffers:
        assert np.abs(b.outputs).max() > 0
    with pytest.raises(ValueError, match="no instruction set"):
        Machine(1, "abacus")


def test_the_limit_of_a_model_with_both_kinds_of_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of the multiply-adds at 12, a quarter each at 20 and 40: the times add up."""
    done: list[tuple[int, int]] = []

    def product(frames, weights: int, form: int, width: int, rows: int, out: int, times: int) -> None:
        assert weights % 64 == 0
        done.append((form, rows))

    monkeypatch.setattr(machine_module, "unit_nibble_products", lambda kind: product)
    machine = Machine(1, describe_cpu().instruction_set, four_bit={1: 0.25, 2: 0.25})
    assert {form for form, _ in done} == {1, 2}
    assert machine._run_nibbles(2, 3, 1) >= 0
    assert done[-1] == (2, 3)
    tallest, heights = machine._tallest, machine._tallest_nibbles
    monkeypatch.setattr(Machine, "_product_rate", lambda self, rows: 12.0 if rows == tallest else 1.0)
    monkeypatch.setattr(Machine, "_nibble_rate", lambda self, form, rows: 20.0 * form if rows == heights else 1.0)
    peaks = machine.peaks(readings=1)
    assert peaks.products_per_ns == pytest.approx(1 / (0.5 / 12 + 0.25 / 20 + 0.25 / 40))
    assert peaks.tile_rows == tallest


def test_the_best_of_two_readings() -> None:
    one = Peaks(read_gb_per_s=1.0, products_per_ns=9.0, tile_rows=4, fma_per_ns=1.0)
    two = Peaks(read_gb_per_s=2.0, products_per_ns=8.0, tile_rows=6, fma_per_ns=3.0)
    best = Peaks(read_gb_per_s=2.0, products_per_ns=9.0, tile_rows=4, fma_per_ns=3.0)
    assert one.best(two) == two.best(one) == best
