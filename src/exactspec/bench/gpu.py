"""Time of one forward on a GPU by its rows and its context, beside what its memory can read.

Every cell is a median over repeats that visit all cells in turn, so that drift of the clock rate falls on all of them.
A forward ends when its results have reached the CPU. The reading bandwidth is measured before and after.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from time import perf_counter
from typing import Protocol

import numpy as np

from exactspec.bench.report import markdown
from exactspec.target.base import Cache, Segment, Target, Want

_FILL_ROWS = 256


class TimedGpu(Target, Protocol):
    """A target that knows the bytes a forward of one row reads, and its memory's reading bandwidth in GB/s."""

    @property
    def weight_bytes(self) -> int: ...
    def read_bandwidth(self) -> float: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuCell:
    """`milliseconds`: median of a forward over `rows` chained rows behind `context` tokens. `ratio`: to one row at the
    same context. `gb_per_s`: the weights' bytes over that time; `read_share`: of the measured bandwidth."""

    rows: int
    context: int
    milliseconds: float
    ratio: float
    gb_per_s: float
    read_share: float


def measure_gpu(
    target: TimedGpu,
    *,
    rows: Sequence[int],
    contexts: Sequence[int],
    repeats: int,
    clock: Callable[[], float] = perf_counter,
) -> list[GpuCell]:
    """One cell per row count and context, rows in turn. Raises ValueError if a cell does not fit the context."""
    longest = max(contexts) + max(rows)
    if longest > target.max_length:
        raise ValueError(f"{longest} positions do not fit the model's context of {target.max_length} tokens")
    tokens = np.random.default_rng(0).integers(0, target.vocab_size, longest)
    caches: dict[int, Cache] = {}
    for context in contexts:
        cache = caches[context] = target.new_cache()
        for start in range(0, context, _FILL_ROWS):
            block = tokens[start : min(start + _FILL_ROWS, context)]
            target.forward([Segment.chain(cache, block, Want.NONE)])
            cache.keep(range(len(block)))
    times: dict[tuple[int, int], list[float]] = {(n, c): [] for n in sorted({1, *rows}) for c in contexts}
    bandwidth = [target.read_bandwidth()]
    for repeat in range(repeats + 1):
        for (n, context), taken in times.items():
            start_s = clock()
            target.forward([Segment.chain(caches[context], tokens[:n])])
            if repeat:  # the first round compiles and warms up
                taken.append(clock() - start_s)
    bandwidth.append(target.read_bandwidth())
    cells = []
    for (n, context), taken in times.items():
        if n not in rows:
            continue
        seconds = median(taken)
        rate = target.weight_bytes / seconds / 1e9
        cells.append(
            GpuCell(
                rows=n,
                context=context,
                milliseconds=1e3 * seconds,
                ratio=seconds / median(times[1, context]),
                gb_per_s=rate,
                read_share=rate / max(bandwidth),
            )
        )
    return cells


def gpu_table(cells: Sequence[GpuCell]) -> str:
    """Rows down, contexts across, as markdown."""
    contexts = sorted({cell.context for cell in cells})
    by_place = {(cell.rows, cell.context): cell for cell in cells}
    head = ("rows", *(f"context {c}: ms (ratio), GB/s (share of read)" for c in contexts))
    lines = []
    for n in sorted({cell.rows for cell in cells}):
        row = [by_place[n, c] for c in contexts]
        told = (f"{x.milliseconds:.2f} ({x.ratio:.2f}), {x.gb_per_s:.1f} ({100 * x.read_share:.0f}%)" for x in row)
        lines.append((str(n), *told))
    return markdown(head, lines)
