"""Time of one forward by its rows and its context, beside what the machine's memory can read.

Every cell is a median over repeats that visit all cells in turn, so that drift of the machine falls on all of them.
The reading bandwidth is measured before and after, with as many threads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from time import perf_counter
from typing import Protocol

import numpy as np

from exactspec.target.base import Cache, Segment, SegmentRows, Want
from exactspec.target.cpu import read_bandwidth


class Timed(Protocol):
    """What is measured: a target that knows the bytes a forward of one row reads."""

    threads: int

    @property
    def vocab_size(self) -> int: ...
    @property
    def max_length(self) -> int: ...
    @property
    def weight_bytes(self) -> int: ...
    def new_cache(self) -> Cache: ...
    def forward(self, segments: Sequence[Segment]) -> list[SegmentRows]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """`milliseconds`: median of a forward over `rows` chained rows behind `context` tokens. `ratio`: to one row at
    the same context. `gigabytes_per_s`: the weights' bytes over that time. `share`: of the measured bandwidth."""

    rows: int
    context: int
    milliseconds: float
    ratio: float
    gigabytes_per_s: float
    share: float


def measure(target: Timed, *, rows: Sequence[int], contexts: Sequence[int], repeats: int) -> tuple[Cell, ...]:
    """One cell per row count and context. Raises ValueError if a cell does not fit the target's context."""
    longest = max(contexts) + max(rows)
    if longest > target.max_length:
        raise ValueError(f"{longest} positions do not fit the model's context of {target.max_length} tokens")
    counts = sorted({1, *rows})
    tokens = np.random.default_rng(0).integers(0, target.vocab_size, longest)
    caches: dict[int, Cache] = {}
    for context in contexts:
        cache = caches[context] = target.new_cache()
        for start in range(0, context, 512):
            block = tokens[start : min(start + 512, context)]
            target.forward([Segment.chain(cache, block, Want.NONE)])
            cache.keep(range(len(block)))
    times: dict[tuple[int, int], list[float]] = {(n, c): [] for n in counts for c in contexts}
    bandwidth = [read_bandwidth(target.threads)]
    for repeat in range(repeats + 1):
        for (n, context), taken in times.items():
            start_s = perf_counter()
            target.forward([Segment.chain(caches[context], tokens[:n])])
            if repeat:  # the first round warms up
                taken.append(perf_counter() - start_s)
    bandwidth.append(read_bandwidth(target.threads))
    read = max(bandwidth)
    cells = []
    for (n, context), taken in times.items():
        if n not in rows:
            continue
        seconds = median(taken)
        rate = target.weight_bytes / seconds / 1e9
        cells.append(
            Cell(
                rows=n,
                context=context,
                milliseconds=1e3 * seconds,
                ratio=seconds / median(times[1, context]),
                gigabytes_per_s=rate,
                share=rate / read,
            )
        )
    return tuple(cells)


def markdown(cells: Sequence[Cell]) -> str:
    """Rows down, contexts across: milliseconds (ratio to one row), and the one-row share of the bandwidth."""
    contexts = sorted({cell.context for cell in cells})
    by_place = {(cell.rows, cell.context): cell for cell in cells}
    lines = ["| rows | " + " | ".join(f"context {c}: ms (ratio), GB/s (share of read)" for c in contexts) + " |"]
    lines.append("|---" * (len(contexts) + 1) + "|")
    for n in sorted({cell.rows for cell in cells}):
        row = [by_place[n, c] for c in contexts]
        told = (f"{x.milliseconds:.2f} ({x.ratio:.2f}), {x.gigabytes_per_s:.1f} ({100 * x.share:.0f}%)" for x in row)
        lines.append(f"| {n} | " + " | ".join(told) + " |")
    return "\n".join(lines)
