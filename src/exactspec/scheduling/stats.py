"""What a scheduler has done and holds, as one snapshot."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerStats:
    """Counts since the start, but for the first group, which is of now.

    `running`, `waiting`: requests. `cache_bytes`: keys and values of running requests and kept prefixes, shared ones
    once; `cache_limit`: the most they may take. `prefix_bytes`, `prefix_entries`: of kept prefixes alone.

    `steps`: forwards. `rows`: of all of them; `prefill_rows`: those of prompts. `prompt_tokens`, `completion_tokens`:
    of ended requests. `prefix_queries`, `prefix_hits`: requests begun, and those that found a prefix; `cached_tokens`:
    prompt tokens that were not computed again. `finished`, `cancelled`, `failed`: ended requests by how they ended;
    `refused`: those that found the queue full. `preempted`: times that a running request gave its memory up to older
    ones and was computed again later.
    """

    running: int
    waiting: int
    cache_bytes: int
    cache_limit: int
    prefix_bytes: int
    prefix_entries: int
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
