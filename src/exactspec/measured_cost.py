"""What rows cost on this machine: a target's forward timed by its rows, once, and kept.

Where reading the weights is what takes time, eight rows cost little more than one; where arithmetic does, they cost two
or three times as much. Drafts must be as long as the one or the other allows, so the budget's `CostModel` is measured
for each identity and number of threads: a second or a few at the first start, a small JSON file afterwards.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from exactspec.budget import CostModel
from exactspec.target.base import Segment, Target, Want
from exactspec.target.home import default_home
from exactspec.target.small_files import try_write

ROWS = (1, 2, 4, 8, 16, 32, 64)
ROUNDS = 3  # at least, where time allows
AGREE = 1.1  # the two fastest times of every size lie within this ratio: the machine was quiet enough
LIMIT_S = 3.0  # no further round begins after this


@dataclass(frozen=True, slots=True)
class Measured:
    """`settled`: whether repetitions agreed. What a busy machine shows is used, but not kept."""

    cost: CostModel
    settled: bool


def measure_cost(target: Target, *, clock: Callable[[], float] = perf_counter) -> Measured:
    """Forwards of `ROWS` rows from an empty context, in turn, until repetitions agree; the fastest of each counts."""
    sizes = [rows for rows in ROWS if rows <= target.max_length]
    if len(sizes) < 2:
        return Measured(CostModel(), True)
    cache = target.new_cache()
    tokens = np.arange(sizes[-1], dtype=np.int64) % target.vocab_size
    times: dict[int, list[float]] = {rows: [] for rows in sizes}
    target.forward([Segment.chain(cache, tokens[:2], Want.TOPK)])  # the first forward sets buffers up
    began, turn, settled = clock(), 0, False
    while turn == 0 or (clock() - began <= LIMIT_S and not (turn >= ROUNDS and settled)):
        for rows in sizes:
            start = clock()
            target.forward([Segment.chain(cache, tokens[:rows], Want.TOPK)])
            times[rows] = sorted([*times[rows], clock() - start])
        turn += 1
        settled = all(len(taken) > 1 and taken[1] <= AGREE * taken[0] for taken in times.values())
    one = max(times[sizes[0]][0], 1e-9)
    cost = np.maximum.accumulate([max(1.0, times[rows][0] / one) for rows in sizes])
    model = CostModel(rows=tuple(sizes), cost=(1.0, *(round(float(x), 3) for x in cost[1:])), one_s=one)
    return Measured(model, settled)


def kept_cost(
    target: Target,
    *,
    threads: int,
    home: Path | None = None,
    progress: Callable[[str], None] | None = None,
    measure: Callable[[Target], Measured] = measure_cost,
) -> CostModel:
    """The cost kept for this target and number of threads, else a new measurement, which is then kept if it settled.

    A file that is damaged, or of another target, is measured anew; a folder that cannot be written changes nothing.
    """
    key = hashlib.sha256(f"{target.identity}/{threads}".encode()).hexdigest()
    path = (home or default_home()) / "costs" / f"{key[:32]}.json"
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
        found = json.loads(path.read_text(encoding="utf-8"))
        if found.pop("check") == _check(found) and found["key"] == key:
            rows, cost = tuple(map(int, found["rows"])), tuple(map(float, found["cost"]))
            return CostModel(rows=rows, cost=cost, one_s=float(found.get("one_s", 0.0)))
    if progress is not None:
        damaged = os.path.lexists(path)  # a file is only ever seen whole
        again = "again, because what was kept is damaged" if damaged else "once"
        progress(f"measuring what rows cost on this machine, {again}")
    measured = measure(target)
    model = measured.cost
    if not measured.settled:
        return model
    record = {"key": key, "rows": model.rows, "cost": model.cost, "one_s": model.one_s, "identity": target.identity}
    try_write(path, json.dumps(record | {"check": _check(record)}))
    return model


def _check(record: dict[str, Any]) -> str:
    """A cost with another digit would be a cost, too: it would change no token, but the speed of all."""
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()[:16]
