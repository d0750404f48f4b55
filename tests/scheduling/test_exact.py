"""On the exact target: bit-equal replies from shared steps, reused prefixes and recomputed caches."""

from __future__ import annotations

import random

import pytest
from scheduling.harness import Client, run
from scripted import ByteTokenizer
from tiny_weights import RandomWeights

from exactspec.engine import Engine
from exactspec.params import SamplingParams, Speculation
from exactspec.scheduling import Scheduler
from exactspec.target.base import Target

TEXT = [(7 * i + i // 11) % 256 for i in range(400)]
PAGE = 128


@pytest.fixture(scope="module")
def tiny() -> Target:
    from exactspec.target.exact import ExactTarget

    return ExactTarget(RandomWeights("llama"), threads=1, context=1024)


def plan(rng: random.Random) -> tuple[list[int], SamplingParams, Speculation]:
    """Prompts about the borders of attention chunks and pages, most with a beginning in common."""
    prompt = TEXT[: rng.choice([1, 60, 126, 127, 128, 129, 255, 256, 300])] + [rng.randrange(256) for _ in range(2)]
    params = SamplingParams(
        max_tokens=rng.choice([5, 25, 40]),
        ignore_eos=True,
        temperature=rng.choice([0.0, 1.0]),
        seed=rng.randrange(3),
        logprobs=2 if rng.random() < 0.3 else None,
    )
    return prompt, params, Speculation(draft=rng.choice(["none", "copy", "copyspec", "auto"]))


@pytest.mark.parametrize("seed", [0, 1])
def test_every_reply_is_that_of_a_lone_run(tiny: Target, seed: int) -> None:
    rng = random.Random(seed)
    plans = [plan(rng) for _ in range(8)]
    lone = [Engine(tiny, ByteTokenizer(eos=()), draft="none").generate(p, q) for p, q, _ in plans]
    limit = 10 * tiny.cache_bytes(PAGE) + tiny.cache_bytes(1024 + 64)  # type: ignore[attr-defined]
    engine = Engine(tiny, ByteTokenizer(eos=()), draft="copy", prefill_chunk=48)
    scheduler = Scheduler(engine, thread=False, max_running=5, max_rows=32, cache_bytes=limit)
    for turn in range(2):  # the second finds prefixes
        clients = []
        for prompt, params, speculation in plans:
            clients.append(Client().submit(scheduler, prompt, params, speculation=speculation))
            for _ in range(rng.randrange(3)):
                scheduler.step_once()
                assert scheduler.stats().cache_bytes <= limit
        run(scheduler)
        for client, expected in zip(clients, lone, strict=True):
            assert client.completion is not None
            assert client.completion.token_ids == expected.token_ids
            assert [(t.logprob, t.top) for t in client.tokens] == [(t.logprob, t.top) for t in expected.tokens]
        if turn:
            assert scheduler.stats().prefix_hits > 8
    assert scheduler.stats().failed == 0


def test_a_request_that_gave_way_goes_on_with_the_same_bits(tiny: Target) -> None:
    """Room for ten pages, and two requests that need six each."""
    limit = tiny.cache_bytes(1024 + 256)  # type: ignore[attr-defined]
    params = SamplingParams(max_tokens=380, ignore_eos=True, temperature=1.0, seed=1)
    prompts = [TEXT[:300], TEXT[50:350]]
    lone = [Engine(tiny, ByteTokenizer(eos=()), draft="none").generate(p, params).token_ids for p in prompts]
    scheduler = Scheduler(Engine(tiny, ByteTokenizer(eos=()), draft="copy"), thread=False, cache_bytes=limit)
    scheduler._tally.answer_tokens = 1
    clients = [Client().submit(scheduler, p, params) for p in prompts]
    while scheduler.step_once():
        assert scheduler.stats().cache_bytes <= limit
    assert scheduler.stats().preempted >= 1
    assert [c.ids for c in clients] == lone
