"""Whatever drafts, with whatever options, at any temperature, alone, in a session or beside others: the tokens, their
log-probabilities and the end of the answer are those of plain decoding. Requests are drawn at random."""

from __future__ import annotations

import random
from typing import Any

import pytest
from scripted import IdTokenizer, hash_target

from exactspec.draft_names import DRAFTS, layer_draft
from exactspec.drafters.model import ModelDrafter
from exactspec.engine import Engine
from exactspec.params import SamplingParams, Speculation
from exactspec.results import Completion
from exactspec.scheduling import Scheduler

VOCAB = 40
MODES = (
    *(draft for draft in DRAFTS if draft != "none" and layer_draft(draft) is None),  # layers: drafters/test_layers.py
    *(first + model for model in ("model:other", "self") for first in ("", "copyspec+", "auto+")),
)


def drawn_params(rng: random.Random) -> SamplingParams:
    options: dict[str, Any] = {
        "max_tokens": rng.choice([1, 2, 3, 17, 60]),
        "temperature": rng.choice([0.0, 0.0, 0.3, 1.0, 2.0]),
        "seed": rng.randrange(99),
        "top_p": rng.choice([1.0, 0.8]),
        "top_k": rng.choice([0, 5]),
        "min_p": rng.choice([0.0, 0.05]),
        "logprobs": rng.choice([None, 3]),
    }
    if rng.random() < 0.5:
        options |= {
            "repetition_penalty": rng.choice([0.8, 1.2]),
            "presence_penalty": rng.choice([-1.0, 1.0]),
            "frequency_penalty": rng.choice([-0.5, 0.7]),
            "logit_bias": {rng.randrange(VOCAB): rng.choice([-100.0, 4.0])},
        }
    if rng.random() < 0.5:
        options |= {"stop_token_ids": (rng.randrange(VOCAB),), "min_tokens": rng.randrange(options["max_tokens"] + 1)}
    return SamplingParams(**options)


def drawn_mode(draft: str, rng: random.Random) -> Speculation:
    return Speculation(
        draft=draft,
        max_nodes=rng.choice([1, 5, 48, 200]),
        min_match=rng.choice([1, 2, 6]),
        gamma=rng.choice([1, 3]),
        block=rng.choice([1, 10]),
        draft_length=rng.choice([0, 3]),
        store=rng.choice(["", "shared"]),
    )


def told(done: Completion) -> Any:
    return (
        done.token_ids,
        done.text,
        done.finish_reason,
        [(token.id, token.logprob, token.top) for token in done.tokens],
    )


@pytest.mark.parametrize("seed", range(8))
def test_the_answer_is_that_of_plain_decoding(seed: int) -> None:
    rng = random.Random(seed)
    tokenizer = IdTokenizer(VOCAB)
    other = ModelDrafter(
        hash_target(vocab_size=VOCAB, order=1, scale=6.0), tokenizer, target_tokenizer=tokenizer
    )  # of the same vocabulary, and of another opinion
    target = hash_target(vocab_size=VOCAB, order=1 + seed % 3, scale=6.0)
    engine = Engine(target, tokenizer, draft_models={"other": other})
    prompt = [rng.randrange(VOCAB) for _ in range((1, 2, 5, 60)[seed % 4])] * (1 + 3 * (seed % 2))
    params = drawn_params(rng)
    plain = engine.generate(prompt, params, speculation=Speculation(draft="none"))
    modes = [drawn_mode(draft, rng) for draft in MODES]
    for mode in modes:
        assert told(engine.generate(prompt, params, speculation=mode)) == told(plain), mode
    session, mode = engine.session(), rng.choice(modes)
    for cut in (rng.randrange(1, len(prompt) + 1), len(prompt)):
        session.generate(prompt[:cut], SamplingParams(max_tokens=5), speculation=mode)
        assert told(session.generate(prompt, params, speculation=mode)) == told(plain), mode
    with Scheduler(engine) as scheduler:
        tickets = [scheduler.submit(prompt, params, speculation=mode, on_chunk=lambda chunk: None) for mode in modes]
        for mode, ticket in zip(modes, tickets, strict=True):
            assert told(ticket.result(timeout=60)) == told(plain), mode
