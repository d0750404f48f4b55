"""One forward for many requests: what each puts in, and what each takes out.

A request that fails, in its drafter's loop, in the forward or in its walk, fails alone: a forward that raises is run
again, request by request, and those it works for go on. That changes no bit, for rows do not depend on each other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter

from exactspec.budget import choose_batch
from exactspec.results import TokenInfo
from exactspec.scheduling.job import Job
from exactspec.scheduling.pace import Pace, divide
from exactspec.target.base import Segment, SegmentRows, Target
from exactspec.tree import DraftTree


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a step did for one job: the tokens it emitted (none for prompt rows), or the error it ended with."""

    job: Job
    tokens: list[TokenInfo]
    error: BaseException | None = None


@dataclass(frozen=True, slots=True)
class Stepped:
    """`rows` of the forward, `prompt_rows` among them."""

    outcomes: list[Outcome]
    rows: int
    prompt_rows: int


@dataclass(frozen=True, slots=True)
class _Entry:
    """A job's rows in the forward, and what it does with the answer."""

    job: Job
    segment: Segment
    take: Callable[[SegmentRows], list[TokenInfo]]


class Batch:
    """`max_rows`: most rows of running answers in a step; `prompt_chunk`: most rows of prompts."""

    def __init__(
        self,
        target: Target,
        pace: Pace,
        *,
        max_rows: int,
        prompt_chunk: int,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        self._target = target
        self._pace = pace
        self._max_rows = max_rows
        self._prompt_chunk = prompt_chunk
        self._clock = clock

    def step(self, answering: Sequence[Job], reading: Sequence[Job]) -> Stepped:
        """One step of the jobs that emit tokens and the next rows of prompts of those that `reading` holds (oldest
        first). At most `max_rows` answering jobs."""
        start = self._clock()
        outcomes: list[Outcome] = []
        prompt_rows = self._pace.prompt_rows(beside=len(answering), most=self._prompt_chunk) if reading else 0
        shares = divide(prompt_rows, [job.request.prompt_left for job in reading])
        prompt_rows = sum(shares)
        entries = self._verify(answering, prompt_rows, outcomes)
        for job, rows in zip(reading, shares, strict=True):
            if rows:
                self._enter(job, lambda job=job, rows=rows: _prompt(job, rows), entries, outcomes)  # type: ignore[misc]
        if entries:
            lone = len(answering) == len(entries) == 1
            self._forward(entries, outcomes, begun=self._clock() if lone else None)
        rows = sum(len(entry.segment.tokens) for entry in entries)
        self._pace.record(rows=rows, prompt_rows=prompt_rows, seconds=self._clock() - start)
        return Stepped(outcomes, rows, prompt_rows)

    def _verify(self, jobs: Sequence[Job], prompt_rows: int, outcomes: list[Outcome]) -> list[_Entry]:
        """Proposals of all jobs, cut to what pays for all of them together."""
        alone = len(jobs) == 1 and not prompt_rows
        drafted: list[tuple[Job, DraftTree]] = []
        for job in jobs:
            try:
                drafted.append((job, job.request.propose(choose=alone)))
            except BaseException as error:
                outcomes.append(Outcome(job, [], error))
        trees = [tree for _, tree in drafted]
        if alone:
            trees = [
                tree.prune(max_nodes=self._max_rows - 1) if len(tree) >= self._max_rows else tree for tree in trees
            ]
        elif any(map(len, trees)):
            most = self._max_rows + prompt_rows
            if prompt_rows:
                most = min(most, self._pace.fitting(most, mixed=True))
            context = sum(len(job.request.history) for job in jobs) // len(jobs)
            trees = choose_batch(trees, cost=self._pace.cost_at(context), max_rows=most, other_rows=prompt_rows)
        entries: list[_Entry] = []
        for (job, _), tree in zip(drafted, trees, strict=True):
            self._enter(job, lambda job=job, tree=tree: _verified(job, tree), entries, outcomes)  # type: ignore[misc]
        return entries

    @staticmethod
    def _enter(job: Job, make: Callable[[], _Entry], entries: list[_Entry], outcomes: list[Outcome]) -> None:
        try:
            entries.append(make())
        except BaseException as error:
            outcomes.append(Outcome(job, [], error))

    def _forward(self, entries: list[_Entry], outcomes: list[Outcome], *, begun: float | None = None) -> None:
        """`begun`: when, of a lone answer's step, whose time says what its rows cost."""
        try:
            answers = self._target.forward([entry.segment for entry in entries])
            if begun is not None:
                seconds = self._clock() - begun
                entries[0].job.request.drafting.took(rows=len(entries[0].segment.tokens), seconds=seconds)
        except BaseException as error:
            if len(entries) == 1:
                outcomes.append(Outcome(entries[0].job, [], error))
                return
            for entry in entries:  # each takes its rows before the next forward, which overwrites them
                self._forward([entry], outcomes)
            return
        for entry, rows in zip(entries, answers, strict=True):
            try:
                outcomes.append(Outcome(entry.job, entry.take(rows)))
            except BaseException as error:
                outcomes.append(Outcome(entry.job, [], error))


def _verified(job: Job, tree: DraftTree) -> _Entry:
    return _Entry(job, job.request.segment(tree), job.request.take)


def _prompt(job: Job, rows: int) -> _Entry:
    def take(computed: SegmentRows) -> list[TokenInfo]:
        job.request.take_prompt(computed)
        return []

    return _Entry(job, job.request.prompt_segment(rows), take)
