"""One limit for running requests and kept prefixes: it holds in every step, and no reply shows it."""

from __future__ import annotations

import random

import pytest
from scheduling.harness import VOCAB, Client, Sized, alone, engine, run

from exactspec.params import SamplingParams
from exactspec.scheduling import Scheduler
from exactspec.scheduling.footprint import shared_bytes

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6] * 4
CONTEXT = 120


def idle(*, draft: str = "copy", context: int = CONTEXT, **options: object) -> Scheduler:
    e = engine(Sized(max_length=context), draft=draft)
    return Scheduler(e, thread=False, max_rows=8, **{"max_running": 4, **options})  # type: ignore[arg-type]


def held(scheduler: Scheduler) -> int:
    """Counted anew from the caches themselves, those of requests that wait included."""
    tree = scheduler._room.prefixes
    kept = [node.cache for node in tree._used.values() if node.cache is not None]
    assert tree.nbytes == shared_bytes(kept)
    jobs = [*scheduler._running, *scheduler._waiting]
    return shared_bytes([*kept, *(job.request.cache for job in jobs)])


def test_a_second_turn_finds_the_first() -> None:
    scheduler = idle(context=4096)
    params = SamplingParams(max_tokens=20)
    first = Client().submit(scheduler, PROMPT, params)
    run(scheduler)
    turn = [*PROMPT, *first.ids, 7, 8, 9]
    second = Client().submit(scheduler, turn, params)
    run(scheduler)
    assert second.completion is not None
    assert second.completion.metrics.cached_tokens == len(PROMPT) + 19  # the last token emitted was never computed
    assert second.completion.metrics.prompt_tokens == len(turn)
    assert second.ids == alone(turn, params).token_ids
    again = Client().submit(scheduler, PROMPT, params)  # the whole prompt is there: only its last token is computed
    run(scheduler)
    assert again.completion is not None
    assert again.completion.metrics.cached_tokens == len(PROMPT) - 1
    assert again.ids == first.ids
    stats = scheduler.stats()
    assert (stats.prefix_queries, stats.prefix_hits) == (3, 2)
    assert stats.cached_tokens == 2 * len(PROMPT) + 18
    assert stats.prefix_entries == 1  # the second turn goes on from the first
    assert stats.prefix_bytes == stats.cache_bytes == held(scheduler)


def test_a_cancelled_prompt_is_not_computed_twice() -> None:
    target = Sized(max_length=4096)
    scheduler = Scheduler(engine(target), thread=False)
    prompt = [i % VOCAB for i in range(300)]
    client = Client().submit(scheduler, prompt, SamplingParams(max_tokens=5))
    for _ in range(9):
        scheduler.step_once()
    assert client.ticket is not None
    client.ticket.cancel()
    again = Client().submit(scheduler, prompt, SamplingParams(max_tokens=5))
    run(scheduler)
    assert again.completion is not None
    assert again.completion.metrics.cached_tokens == 9 * 16
    assert again.ids == alone(prompt, SamplingParams(max_tokens=5)).token_ids


def test_choices_of_one_prompt_compute_it_once() -> None:
    target = Sized(max_length=4096)
    scheduler = Scheduler(engine(target, draft="none"), thread=False)
    prompt = [(7 * i) % VOCAB for i in range(200)]
    params = [SamplingParams(max_tokens=5, temperature=1.0, seed=i) for i in range(4)]
    clients = [Client().submit(scheduler, prompt, p) for p in params]
    run(scheduler)
    assert [c.ids for c in clients] == [alone(prompt, p).token_ids for p in params]
    rows = scheduler.stats().prefill_rows
    assert len(prompt) - 1 <= rows < len(prompt) + 3 * 32  # a short rest is computed side by side, without waiting
    assert scheduler.stats().prefix_hits == 3
    # One that only begins alike goes on by itself from there.
    other = Client().submit(scheduler, [*prompt[:150], 1, 2, 3], params[0])
    run(scheduler)
    assert scheduler.stats().prefill_rows == rows + 2
    assert other.ids == alone([*prompt[:150], 1, 2, 3], params[0]).token_ids


@pytest.mark.parametrize("seed", range(3))
def test_the_limit_holds_in_every_step(seed: int) -> None:
    """Little more than one context for four requests: prefixes go, requests give way, and every reply is right."""
    rng = random.Random(seed)
    limit = 8 * (CONTEXT + 16 + 30)
    scheduler = idle(cache_bytes=limit, max_queue=99)
    scheduler._tally.answer_tokens = 1  # expects short answers, so lets in more than there is room for
    clients = []
    for _ in range(16):
        prompt = PROMPT[: rng.choice([3, 30])] + [rng.randrange(VOCAB) for _ in range(rng.randrange(1, 20))]
        params = SamplingParams(max_tokens=rng.choice([3, 60]), temperature=0.8, seed=rng.randrange(9))
        clients.append((Client().submit(scheduler, prompt, params), prompt, params))
    while scheduler.step_once():
        assert held(scheduler) <= limit
        assert scheduler.stats().cache_bytes == held(scheduler)
    for client, prompt, params in clients:
        assert client.ids == alone(prompt, params).token_ids
    stats = scheduler.stats()
    assert stats.finished == 16
    assert stats.preempted > 0


def test_a_request_waits_until_there_is_room_for_its_end() -> None:
    scheduler = idle(cache_bytes=8 * 300)
    clients = [Client().submit(scheduler, [i, *PROMPT], SamplingParams(max_tokens=60)) for i in range(4)]
    scheduler._tally.answer_tokens = 60
    most = 0
    while scheduler.step_once():
        most = max(most, scheduler.stats().running)
    # Each is expected to end with 33 + 60 tokens, and 16 rows on top.
    assert most == 2
    assert scheduler.stats().preempted == 0
    assert all(c.ids == alone([i, *PROMPT], SamplingParams(max_tokens=60)).token_ids for i, c in enumerate(clients))


def test_nobody_overtakes_a_request_that_waits_for_room() -> None:
    """Else a large one would wait for as long as small ones keep coming."""
    scheduler = idle(cache_bytes=8 * 200)
    scheduler._tally.answer_tokens = 60
    first = Client().submit(scheduler, PROMPT, SamplingParams(max_tokens=60))
    large = Client().submit(scheduler, [1, *PROMPT], SamplingParams(max_tokens=60))
    small = Client().submit(scheduler, [2, 3], SamplingParams(max_tokens=4))
    while first.completion is None:
        scheduler.step_once()
        assert not large.tokens
        assert not small.tokens
    run(scheduler)
    assert large.ids == alone([1, *PROMPT], SamplingParams(max_tokens=60)).token_ids
    assert small.ids == alone([2, 3], SamplingParams(max_tokens=4)).token_ids


def test_a_limit_below_one_context_is_refused_with_the_figure() -> None:
    with pytest.raises(ValueError, match=rf"at least {8 * (CONTEXT + 16)} for {CONTEXT} tokens, got 100"):
        idle(cache_bytes=100)
    idle(cache_bytes=8 * (CONTEXT + 16))
