"""Counts that the worker keeps, and what they say of requests to come."""

from __future__ import annotations

from dataclasses import dataclass

from exactspec.results import Completion
from exactspec.scheduling.stats import SchedulerStats

_WEIGHT = 0.1
"""Of the newest request in running means."""


@dataclass(slots=True)
class Tally:
    """The fields of `SchedulerStats` of the same names; `answer_tokens` and `request_s`: running means of the length of
    answers and of the time from a request's beginning to its end."""

    cache_bytes: int = 0
    steps: int = 0
    rows: int = 0
    prefill_rows: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    prefix_queries: int = 0
    prefix_hits: int = 0
    cached_tokens: int = 0
    finished: int = 0
    cancelled: int = 0
    failed: int = 0
    refused: int = 0
    preempted: int = 0
    answer_tokens: int = 256
    request_s: float = 1.0

    def step(self, rows: int, prefill_rows: int) -> None:
        self.steps += 1
        self.rows += rows
        self.prefill_rows += prefill_rows

    def reuse(self, tokens: int, *, first: bool) -> None:
        """Prompt tokens that a request took over from a kept or a running one. `first`: it had none before."""
        self.prefix_hits += first and tokens > 0
        self.cached_tokens += tokens

    def end(self, completion: Completion, seconds: float) -> None:
        metrics = completion.metrics
        self.prompt_tokens += metrics.prompt_tokens
        self.completion_tokens += metrics.completion_tokens
        if completion.finish_reason == "cancelled":
            self.cancelled += 1
            return
        self.finished += 1
        self.answer_tokens = round((1 - _WEIGHT) * self.answer_tokens + _WEIGHT * metrics.completion_tokens)
        self.request_s += _WEIGHT * (seconds - self.request_s)

    def snapshot(
        self, *, running: int, waiting: int, limit: int, prefix_bytes: int, prefix_entries: int
    ) -> SchedulerStats:
        return SchedulerStats(
            running=running,
            waiting=waiting,
            cache_bytes=self.cache_bytes,
            cache_limit=limit,
            prefix_bytes=prefix_bytes,
            prefix_entries=prefix_entries,
            steps=self.steps,
            rows=self.rows,
            prefill_rows=self.prefill_rows,
            prompt_tokens=self.prompt_tokens,
            completion_tokens=self.completion_tokens,
            prefix_queries=self.prefix_queries,
            prefix_hits=self.prefix_hits,
            cached_tokens=self.cached_tokens,
            finished=self.finished,
            cancelled=self.cancelled,
            failed=self.failed,
            refused=self.refused,
            preempted=self.preempted,
        )
