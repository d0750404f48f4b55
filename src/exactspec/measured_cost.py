"""What rows cost on this machine: a target's forward timed by its rows, within a second, and kept.

Where reading the weights is what takes time, eight rows cost little more than one; where arithmetic does, they cost two
or three times as much. Drafts must be as long as the one or the other allows, so the budget's `CostModel` is measured
for each identity and number of threads: at the first start, a small JSON file afterwards. Where repetitions do not
agree, because the machine is busy or a second holds no repetition, the times are kept and the next start adds its own.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any, Protocol, TypeAlias

import numpy as np

from exactspec.budget import CostModel
from exactspec.target.base import Segment, Target, Want
from exactspec.target.home import default_home
from exactspec.target.json_file import read_object
from exactspec.target.small_files import try_write

ROWS = (1, 2, 4, 8, 16, 32, 64)
ALWAYS = 8  # sizes up to this one are timed however long they take; beyond the last one timed its slope goes on
ROUNDS = 3  # at least, where time allows
AGREE = 1.1  # the two fastest times of every size lie within this ratio: the machine was quiet enough
LIMIT_S = 1.0  # no round begins that would end after this; the first one ends at half of it, so that there can be two
MOST_STARTS = 6  # after so many the fastest times count, whether or not they agree

Times: TypeAlias = Mapping[int, Sequence[float]]
"""Seconds by number of rows, fastest first."""


@dataclass(frozen=True, slots=True)
class Measured:
    """`settled`: whether repetitions agreed; if not, `times` are to be gone on with."""

    cost: CostModel
    settled: bool
    times: Times = field(default_factory=dict)


def measure_cost(target: Target, *, before: Times | None = None, clock: Callable[[], float] = perf_counter) -> Measured:
    """Forwards of `ROWS` rows from an empty context, in turn, until repetitions agree; the fastest of each counts.
    `before`: what earlier starts found."""
    sizes = [rows for rows in ROWS if rows <= target.max_length]
    if len(sizes) < 2:
        return Measured(CostModel(), True)
    cache = target.new_cache()
    tokens = np.arange(sizes[-1], dtype=np.int64) % target.vocab_size
    target.forward([Segment.chain(cache, tokens[:2], Want.TOPK)])  # the first forward sets buffers up

    def seconds(rows: int) -> float:
        start = clock()
        target.forward([Segment.chain(cache, tokens[:rows], Want.TOPK)])
        return clock() - start

    began, times = clock(), {rows: list((before or {}).get(rows, ())) for rows in sizes}
    timed: list[int] = []
    last = 0.0
    for rows in sizes:
        if rows > ALWAYS and clock() - began + 2 * last > LIMIT_S / 2:  # twice the rows: twice the time at most
            break
        times[rows].append(last := seconds(rows))
        timed.append(rows)
    turn, round_s = 1, clock() - began
    while clock() - began + round_s <= LIMIT_S and not (turn >= ROUNDS and _settled(times, timed)):
        for rows in timed:
            times[rows].append(seconds(rows))
        turn += 1
    sizes = [rows for rows in sizes if times[rows]]
    fastest = {rows: tuple(sorted(times[rows])[:2]) for rows in sizes}
    one = max(fastest[sizes[0]][0], 1e-9)
    cost = np.maximum.accumulate([max(1.0, fastest[rows][0] / one) for rows in sizes])
    model = CostModel(rows=tuple(sizes), cost=(1.0, *(round(float(x), 3) for x in cost[1:])), one_s=one)
    return Measured(model, _settled(times, sizes), fastest)


def _settled(times: Times, sizes: Sequence[int]) -> bool:
    fastest = (sorted(times[rows])[:2] for rows in sizes)
    return all(len(taken) > 1 and taken[1] <= AGREE * taken[0] for taken in fastest)


class Measure(Protocol):
    def __call__(self, target: Target, *, before: Times) -> Measured: ...


def kept_cost(
    target: Target,
    *,
    threads: int,
    home: Path | None = None,
    progress: Callable[[str], None] | None = None,
    measure: Measure = measure_cost,
) -> CostModel:
    """The cost kept for this target and number of threads, measured where there is none, or none that settled.

    A file that is damaged, or of another target, is measured anew; a folder that cannot be written changes nothing.
    """
    key = hashlib.sha256(f"{target.identity}/{threads}".encode()).hexdigest()
    path = (home or default_home()) / "costs" / f"{key[:32]}.json"
    starts, before = 0, dict[int, tuple[float, ...]]()
    again = "once"
    if os.path.lexists(path):  # a file is only ever seen whole
        again = "again, because what was kept is damaged"
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError, AttributeError, OverflowError):
        found = read_object(path)
        if found.pop("check") == _check(found) and found["key"] == key:
            if found.get("settled", True):  # earlier versions kept nothing else
                rows, cost = tuple(map(int, found["rows"])), tuple(map(float, found["cost"]))
                return CostModel(rows=rows, cost=cost, one_s=float(found.get("one_s", 0.0)))
            starts = int(found["starts"])
            before = {int(rows): tuple(map(float, taken)) for rows, taken in found["times"].items()}
            again = "again, because its times did not agree"
    if progress is not None:
        progress(f"measuring what rows cost on this machine, {again}")
    measured = measure(target, before=before)
    model = measured.cost
    record = {
        "key": key,
        "rows": model.rows,
        "cost": model.cost,
        "one_s": model.one_s,
        "identity": target.identity,
        "settled": measured.settled or starts + 1 >= MOST_STARTS,
        "starts": starts + 1,
        "times": {str(rows): taken for rows, taken in measured.times.items()},
    }
    try_write(path, json.dumps(record | {"check": _check(record)}))
    return model


def _check(record: dict[str, Any]) -> str:
    """A cost with another digit would be a cost, too: it would change no token, but the speed of all."""
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()[:16]
