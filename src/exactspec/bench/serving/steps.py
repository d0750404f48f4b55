"""What a step of the scheduler's size takes: a forward of many rows, shared out to several requests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any

from exactspec.bench.kernels import FILL_ROWS
from exactspec.target.base import Cache, Segment, Target, Want


class FullStep:
    """Times forwards of `rows` rows, equally many for each of some requests, behind that request's own context.

    Contexts are filled once. `contexts`: ids of each request before the rows; `following`: the ids of its rows, at
    least `rows` divided by the number of requests. Raises ValueError on rows that cannot be shared out equally.
    """

    def __init__(
        self,
        target: Target,
        contexts: Sequence[Sequence[int]],
        following: Sequence[Sequence[int]],
        *,
        rows: int,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        each = rows // max(len(contexts), 1)
        if not contexts or each * len(contexts) != rows:
            raise ValueError(f"{rows} rows cannot be shared out equally to {len(contexts)} requests")
        if min(map(len, following)) < each:
            raise ValueError(f"every request needs {each} ids for its rows")
        self.rows = rows
        self._target, self._clock = target, clock
        self._parts: list[tuple[Cache, list[int]]] = []
        for ids, after in zip(contexts, following, strict=True):
            cache = target.new_cache()
            for at in range(0, len(ids), FILL_ROWS):
                block = ids[at : at + FILL_ROWS]
                target.forward([Segment.chain(cache, block, Want.NONE)])
                cache.keep(range(len(block)))
            self._parts.append((cache, list(after[:each])))

    def seconds(self) -> float:
        """Of one forward whose rows all ask for their best id. One that is not timed comes first, to wake the threads;
        the contexts stay as they are."""
        self._forward()
        start = self._clock()
        self._forward()
        return self._clock() - start

    def figures(self, repeats: int = 3) -> dict[str, Any]:
        """What result lines say: the fastest of `repeats`, and the rate of tokens where every row is accepted."""
        seconds = min(self.seconds() for _ in range(repeats))
        return {"step_rows": self.rows, "step_s": seconds, "step_tokens_per_s": self.rows / seconds}

    def _forward(self) -> None:
        self._target.forward([Segment.chain(cache, rows) for cache, rows in self._parts])
