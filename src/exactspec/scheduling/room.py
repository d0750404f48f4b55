"""The memory of keys and values: who may begin, who has to make room, what is kept for later requests.

One limit holds for everything: running requests and kept prefixes. Before every step there is room for what the step
may add; kept prefixes go first, then the youngest running request gives its memory up and is computed again later. The
oldest never has to: the limit holds at least one full context.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from exactspec.memory import available_memory
from exactspec.scheduling.footprint import Footprint, parts
from exactspec.scheduling.job import Job
from exactspec.scheduling.prefix import PrefixTree, common_ids
from exactspec.target.base import Cache, Target

_FOLLOW = 32
"""Tokens that are worth waiting for, where another request is computing them already."""

_UNKNOWN = 1 << 30
"""Limit in bytes where neither the machine nor the target tells."""


class Room:
    """`limit` in bytes; None takes half of what is free, and at least a full context. `rows`: most rows that one
    request has in a step. `keep`: whether ended requests' caches are kept. Raises ValueError on a limit below one
    full context."""

    def __init__(self, target: Target, *, limit: int | None, rows: int, keep: bool) -> None:
        self.footprint = Footprint(target)
        self._rows = rows
        least = self.footprint(target.max_length + rows)
        if limit is None:
            free = available_memory()
            limit = max(least, _UNKNOWN if free is None else free // 2)
        elif limit < least:
            raise ValueError(
                f"cache_bytes must hold one full context: at least {least} for {target.max_length} tokens, got {limit};"
                " raise it, or open the model with a smaller context"
            )
        self.limit = limit
        self.prefixes = PrefixTree(limit if keep else 0, exact=target.exact)

    def used(self, running: Sequence[Job]) -> int:
        """Bytes of kept prefixes and running requests, shared ones once."""
        own = {part: n for job in running for part, n in parts(job.request.cache) if not self.prefixes.holds(part)}
        return self.prefixes.nbytes + sum(own.values())

    def admits(self, job: Job, running: Sequence[Job]) -> bool:
        """Whether all running requests and this one are expected to end without having to make room."""
        expected = sum(self._at_end(other) for other in running)
        return not running or expected + self._at_end(job) <= self.limit

    def _at_end(self, job: Job) -> int:
        tokens = max(len(job.request.history), job.request.prompt_tokens + job.expected)
        return self.footprint(tokens + self._rows)

    def make(self, running: list[Job]) -> list[Job]:
        """Frees what the next step may need. Returns the jobs that had to give way, taken out of `running`."""
        gone: list[Job] = []
        while True:
            most = self.prefixes.nbytes + sum(self._next(job) for job in running)
            if most <= self.limit:  # cheap, and nearly always enough; shared pages count twice
                return gone
            if self.used(running) + sum(self._growth(job) for job in running) <= self.limit:
                return gone
            if len(self.prefixes):
                self.prefixes.drop_oldest()
            elif len(running) > 1:
                job = running.pop()
                job.request.forget()
                gone.append(job)
            else:
                return gone

    def _next(self, job: Job) -> int:
        """Bytes after the next step, if nothing were shared."""
        cache = job.request.cache
        return max(cache.nbytes, self.footprint(cache.length + self._rows))

    def _growth(self, job: Job) -> int:
        """Bytes that the next step may add: new pages, and a copy of one that is shared."""
        cache = job.request.cache
        return max(0, self.footprint(cache.length + self._rows) - cache.nbytes) + self.footprint(1)

    def look_up(self, job: Job) -> int:
        """Let a request that begins go on from the longest kept prefix; returns the tokens that it need not compute."""
        if job.request.begun:  # computed again after it had to make room: its drafter knows this very cache
            return 0
        found, n = self.prefixes.match(job.prompt[:-1])
        return 0 if found is None else _hand(job, found, n)

    def follow(self, job: Job, older: Sequence[Job]) -> tuple[int, bool]:
        """Let a request that is still reading its prompt go on from an older running one's, if that is ahead. Returns
        the tokens gained, and whether to wait because an older one is computing what comes next."""
        request, gained = job.request, 0
        if request.begun:
            return 0, False
        wait = False
        for other in older:
            common = job.common.get(other.ticket.id)
            if common is None:
                common = job.common[other.ticket.id] = common_ids(job.prompt[:-1], other.prompt)
            there = min(common, other.request.cache.length)
            if there - request.cache.length >= _FOLLOW:
                gained += _hand(job, other.request.cache, there)
            coming = min(common, other.request.prompt_tokens - 1)
            wait = wait or (other.request.prompt_left > 0 and coming - request.cache.length >= _FOLLOW)
        return gained, wait

    def keep(self, job: Job) -> None:
        """An ended request: its cache is kept for later ones, or freed."""
        request = job.request
        cache = request.give_cache()
        self.footprint.see(cache)
        self.prefixes.insert(np.array(request.history[: cache.length], dtype=np.int64), cache)


def _hand(job: Job, cache: Cache, n: int) -> int:
    """Let a job go on from the first n tokens of another's cache; returns the tokens gained."""
    gain = n - job.request.cache.length
    if gain <= 0:
        return 0
    twin = cache.fork()
    twin.truncate(n)
    job.request.reuse(twin)
    return gain
