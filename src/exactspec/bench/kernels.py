"""Time of one forward by its rows and its context, ours and a peer's, beside what the machine can do at most.

A *cell* is a number of chained rows behind a context. What counts are ratios, so every visit to a cell times one row
and then its rows (in odd rounds the other way round), ours and the peer's one right after the other: drift of the
machine falls on all of them. Rounds visit all contexts in turn; each round of a context is one JSON line, with the
machine's limits as they were read at its start. A context is filled once and kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from time import perf_counter
from typing import Any, Protocol

import numpy as np

from exactspec.bench.peaks import Peaks
from exactspec.bench.provenance import Provenance
from exactspec.bench.store import Line, ResultFile
from exactspec.bench.work import attention_work, product_work
from exactspec.target.base import Cache, IntArray, Segment, Target, Want
from exactspec.target.weights import ModelConfig

KIND = "forward"
FILL_ROWS = 256
_SEED = 0


class Timed(Target, Protocol):
    """What is measured: a target that knows its sizes and the bytes that a forward of one row reads."""

    threads: int
    config: ModelConfig

    @property
    def weight_bytes(self) -> int: ...


class TimedPeer(Protocol):
    """Another engine on the same file, see `exactspec.bench.peers.llama_cpp.LlamaCppPeer`."""

    def fill(self, ids: Sequence[int], *, rows: int) -> None: ...
    def time_rows(self, context: int, counts: Sequence[int], tokens: Sequence[int]) -> Sequence[float]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to measure. `rows`, `contexts`: the cells, each rows behind each context. `repeats`: rounds.

    Raises ValueError on no cells or counts below 1.
    """

    model: str
    rows: tuple[int, ...]
    contexts: tuple[int, ...]
    repeats: int

    def __post_init__(self) -> None:
        if not self.rows or not self.contexts or min(*self.rows, *self.contexts, self.repeats) < 1:
            raise ValueError("rows, contexts and repeats must be given and at least 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """What the measuring goes through. `peaks`: one reading of the machine's limits. `peer`: its name and the engine,
    or None. `clock`: seconds."""

    out: ResultFile
    provenance: Callable[[], Provenance]
    progress: Callable[[str], None]
    peaks: Callable[[], Peaks]
    peer: tuple[str, Callable[[], TimedPeer]] | None = None
    clock: Callable[[], float] = perf_counter


def measure(target: Timed, plan: Plan, tools: Tools) -> list[Line]:
    """Measure the rounds that the file does not hold yet; all lines of the plan, old and new, in order of rounds.

    Raises ValueError if a cell does not fit the target's context.
    """
    longest = max(plan.contexts) + max(plan.rows)
    if longest > target.max_length:
        raise ValueError(f"{longest} positions do not fit the model's context of {target.max_length} tokens")
    same: dict[str, Any] = {
        "kind": KIND,
        "model": plan.model,
        "identity": target.identity,
        "peer": None if tools.peer is None else tools.peer[0],
        "rows": list(plan.rows),
        "config": tools.provenance().config,
    }
    visits = [
        (repeat, context)
        for repeat in range(plan.repeats)
        for context in plan.contexts
        if not _held(tools.out, same, repeat, context)
    ]
    if not visits:
        tools.progress(f"{plan.model}: forwards measured before")
    else:
        _visit(target, plan, tools, visits, same)
    return [
        line
        for line in tools.out.lines
        if _agrees(line, same) and line["context"] in plan.contexts and line["repeat"] < plan.repeats
    ]


def _visit(target: Timed, plan: Plan, tools: Tools, visits: Sequence[tuple[int, int]], same: dict[str, Any]) -> None:
    ids = np.random.default_rng(_SEED).integers(0, target.vocab_size, max(plan.contexts) + max(plan.rows))
    contexts = sorted({context for _, context in visits})
    tools.progress(f"{plan.model}: filling contexts of {', '.join(map(str, contexts))} tokens")
    forwards = Forwards(target, ids, contexts, tools.clock)
    peer = None if tools.peer is None else tools.peer[1]()
    if peer is not None:
        for context in contexts:
            peer.fill(ids[:context].tolist(), rows=max(plan.rows))
    tokens = ids[: max(plan.rows)]
    clock = _TimeLeft(tools.clock, [context for _, context in visits])
    warm: set[int] = set()
    for repeat, context in visits:
        if context not in warm:
            warm.add(context)
            _cells(forwards, peer, context, plan.rows, tokens, repeat)  # compiles, grows buffers: not measured
        clock.start()
        peaks = tools.peaks()
        cells = _cells(forwards, peer, context, plan.rows, tokens, repeat)
        left = clock.end(context)
        line = {
            **same,
            "context": context,
            "repeat": repeat,
            "cells": cells,
            "peaks": asdict(peaks),
            "weight_bytes": target.weight_bytes,
            "work": [[product_work(target.config, n), attention_work(target.config, n, context)] for n in plan.rows],
            "provenance": asdict(tools.provenance()),
        }
        tools.out.append([line])
        times = ", ".join(f"{cell['rows']}: {1e3 * cell['s']:.1f}" for cell in cells)
        tools.progress(f"{plan.model} context {context} round {repeat + 1}/{plan.repeats}, ms by rows: {times}; {left}")


class Forwards:
    """Times our forwards behind contexts that are filled once, the shorter ones being beginnings of the longest."""

    def __init__(self, target: Timed, ids: IntArray, contexts: Sequence[int], clock: Callable[[], float]) -> None:
        self._target, self._clock = target, clock
        self._caches: dict[int, Cache] = {}
        cache = target.new_cache()
        for start, end in pairwise([0, *contexts]):
            for at in range(start, end, FILL_ROWS):
                block = ids[at : min(at + FILL_ROWS, end)]
                target.forward([Segment.chain(cache, block, Want.NONE)])
                cache.keep(range(len(block)))
            self._caches[end] = cache.fork()

    def time_rows(self, context: int, counts: Sequence[int], tokens: IntArray) -> list[float]:
        """Seconds of one forward of the first n tokens, each asked for its best id, for every n in `counts` in turn.
        An untimed forward comes first: it wakes the threads. The context stays as it is."""
        cache = self._caches[context]
        self._forward(cache, tokens[: counts[0]])
        return [self._forward(cache, tokens[:n]) for n in counts]

    def _forward(self, cache: Cache, tokens: IntArray) -> float:
        segment = Segment.chain(cache, tokens)
        start = self._clock()
        self._target.forward([segment])
        return self._clock() - start


def _cells(
    forwards: Forwards, peer: TimedPeer | None, context: int, rows: Sequence[int], tokens: IntArray, repeat: int
) -> list[dict[str, float]]:
    """One visit to every cell: `one_s` and `s`, seconds of one row and of the cell's rows; `peer_*` likewise."""
    cells = []
    for n in rows:
        cell: dict[str, float] = {"rows": n}
        counts = (1,) if n == 1 else (1, n) if repeat % 2 == 0 else (n, 1)
        engines: list[tuple[str, Callable[[], Sequence[float]]]] = [
            ("", lambda: forwards.time_rows(context, counts, tokens))  # noqa: B023 - called now
        ]
        if peer is not None:
            engines.append(("peer_", lambda: peer.time_rows(context, counts, tokens.tolist())))  # noqa: B023
        for prefix, time_rows in engines if repeat % 2 == 0 else engines[::-1]:
            by_count = dict(zip(counts, time_rows(), strict=True))
            cell[f"{prefix}one_s"], cell[f"{prefix}s"] = by_count[1], by_count[n]
        cells.append(cell)
    return cells


def _agrees(line: Line, same: dict[str, Any]) -> bool:
    return all(line.get(key) == value for key, value in same.items())


def _held(out: ResultFile, same: dict[str, Any], repeat: int, context: int) -> bool:
    return any(_agrees(line, {**same, "repeat": repeat, "context": context}) for line in out.lines)


@dataclass(slots=True)
class _TimeLeft:
    """Estimates what is left from the time that a visit to the same context took."""

    clock: Callable[[], float]
    visits: list[Any]
    taken: dict[Any, float] = field(default_factory=dict)
    began: float = 0.0

    def start(self) -> None:
        self.began = self.clock()

    def end(self, visit: Any) -> str:
        self.taken[visit] = self.clock() - self.began
        self.visits.remove(visit)
        if not self.visits:
            return "done"
        longest = max(self.taken.values())
        left = sum(self.taken.get(other, longest) for other in self.visits)
        return f"{left:.0f} s left" if left < 120 else f"{left / 60:.0f} min left"
