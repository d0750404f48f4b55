"""Ctrl-C at any line of a forward or a commit leaves target, cache and forks as good as new."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

import numpy as np
import pytest
from tiny_weights import RandomWeights

from exactspec.target.base import Segment, Want
from exactspec.target.cache import ExactCache
from exactspec.target.exact import ExactTarget
from exactspec.target.rope import RopeTable
from exactspec.target.scratch import Scratch

FILES = ("exact.py", "cache.py", "team.py", "scratch.py", "rope.py", "segments.py")
PROMPT = [(3 * i) % 250 for i in range(120)]
TREE, PARENTS = list(range(1, 11)), [-1, 0, 0, 1, 2, *range(4, 9)]


class Interrupted(KeyboardInterrupt):
    pass


def interrupted_at(count: int, work: Callable[[], Any]) -> bool:
    """Run `work`, raising where the target's own code comes to its line number `count` in order of execution.
    False: it ended first. Not on the line of `with lock` in `forward`: there Python itself holds signals back, and
    tracing does not."""
    left = count

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal left
        if not frame.f_code.co_filename.endswith(FILES):
            return None
        if event == "line" and frame.f_code.co_name != "forward":
            left -= 1
            if left == 0:
                raise Interrupted
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    except Interrupted:
        return True
    finally:
        sys.settrace(before)
    return False


def follows(target: ExactTarget, cache: ExactCache) -> np.ndarray:
    (rows,) = target.forward([Segment.chain(cache, [7, 8, 9], Want.LOGITS)])
    return rows.logits.copy()


@pytest.mark.parametrize("spins", [0, 30_000], ids=["helpers asleep", "helpers awake"])
def test_every_line(spins: int) -> None:
    target = ExactTarget(RandomWeights(num_layers=1), threads=2)
    target._team._spins = spins
    base = target.new_cache()
    target.forward([Segment.chain(base, PROMPT, Want.NONE)])
    base.keep(range(len(PROMPT)))
    expected = follows(target, base.fork())
    wrong: list[int] = []
    reached = 0

    def all_counts() -> None:
        nonlocal reached
        while True:
            reached += 1
            # Everything is at its start: pages shared and missing, buffers too small, no angles yet.
            target._scratch, target._rope = Scratch(), RopeTable(target.config, target.packed.sizes.half_pad)
            cache, other = base.fork(), base.fork()

            def work(cache: ExactCache = cache) -> None:
                segment = Segment(cache, np.array(TREE), np.array(PARENTS), np.full(10, Want.LOGITS))
                target.forward([segment])
                cache.keep([0, 2, 4])

            stopped = interrupted_at(reached, work)
            if cache.length > len(PROMPT):
                cache.truncate(len(PROMPT))
            caches = [cache, other, base.fork()]
            for rows in target.forward([Segment.chain(one, [7, 8, 9], Want.LOGITS) for one in caches]):
                if not np.array_equal(rows.logits[rows.logits_index], expected):
                    wrong.append(reached)
            if not stopped:
                return

    failures: list[BaseException] = []

    def guarded() -> None:
        try:
            all_counts()
        except BaseException as error:
            failures.append(error)

    worker = threading.Thread(target=guarded, daemon=True)
    worker.start()
    worker.join(60)
    assert not worker.is_alive(), f"hangs after an interrupt at line {reached}"
    assert not failures, f"after an interrupt at line {reached}: {failures[0]!r}"
    assert not wrong
    assert reached > 100
    target.close()
