"""What a drafter costs by itself: its time per step on histories of different lengths, with no model at all."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from exactspec.drafters.base import Context, DraftBudget, Drafter, Verified
from exactspec.target.base import Cache, IntArray, SegmentRows
from exactspec.tree import ROOT, DraftTree

MAX_NODES = 48


@dataclass(frozen=True, slots=True)
class DrafterCost:
    """Medians over the steps, in microseconds; `slowest_propose_us` is the 99th percentile. `tau`: tokens a step."""

    history: int
    steps: int
    tau: float
    propose_us: float
    slowest_propose_us: float
    commit_us: float


def drafter_cost(
    drafter: Drafter, tokens: Sequence[int], *, history: int, clock: Callable[[], float] = time.perf_counter
) -> DrafterCost:
    """Replay `tokens` from position `history` on: propose, accept what agrees, commit; each of the two timed.

    Raises ValueError unless some tokens follow the history.
    """
    if not 0 < history < len(tokens):
        raise ValueError(f"tokens must follow a history of {history}, got {len(tokens)} in all")
    ids = np.asarray(tokens, dtype=np.int64)
    state = drafter.begin(Context(ids[:history], np.empty(0, dtype=np.int64), NoCache(history - 1)))
    proposing: list[float] = []
    committing: list[float] = []
    at = history
    while at < len(ids):
        start = clock()
        tree = drafter.propose(state, DraftBudget(MAX_NODES, MAX_NODES))
        proposed = clock()
        path = agreeing_path(tree, ids[at:])
        emitted = ids[at : at + len(path) + 1]
        rows = rows_of_nothing(len(tree) + 1)
        verified = Verified(tree, np.array(path, dtype=np.int64), emitted, rows, NoCache(at + len(path)))
        before = clock()
        drafter.commit(state, verified)
        committing.append(clock() - before)
        proposing.append(proposed - start)
        at += len(emitted)
    drafter.close(state)
    return DrafterCost(
        history=history,
        steps=len(proposing),
        tau=(at - history) / len(proposing),
        propose_us=1e6 * median(proposing),
        slowest_propose_us=1e6 * float(np.quantile(proposing, 0.99)),
        commit_us=1e6 * median(committing),
    )


def agreeing_path(tree: DraftTree, coming: IntArray) -> list[int]:
    """Nodes from the root down that hold the coming tokens, all but the last of which a draft may hold."""
    children = {(int(p), int(t)): i for i, (p, t) in enumerate(zip(tree.parents, tree.tokens, strict=True))}
    path: list[int] = []
    for token in coming[:-1]:
        node = children.get((path[-1] if path else ROOT, int(token)))
        if node is None:
            break
        path.append(node)
    return path


def rows_of_nothing(n: int) -> SegmentRows:
    """Rows of a target that was asked for nothing."""
    none = np.full(n, -1, dtype=np.int64)
    empty = np.empty((n, 0), dtype=np.float32)
    return SegmentRows(none, empty, none, empty[:0], np.empty((n, 0), dtype=np.int64), empty)


@dataclass(frozen=True, slots=True)
class NoCache:
    """A cache that only knows its length: drafters that copy need no more."""

    length: int
    nbytes: int = 0

    def keep(self, rows: Sequence[int] | IntArray) -> None:
        raise ValueError("no target is running: there is nothing to keep")

    def truncate(self, n: int) -> None:
        raise ValueError("no target is running: there is nothing to truncate")

    def fork(self) -> Cache:
        return self
