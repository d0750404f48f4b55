"""Field cases 9, 28 and 30 on the trained layer: in step after rejections, constant in size, right once learnt."""

from __future__ import annotations

import time
from statistics import median
from typing import Any

import numpy as np
import pytest
from tiny_drafts import SOURCE, TOKENIZER, VOCAB, FromScratch, begun, drafter_of, plain_text, read
from tiny_layer import tiny_card

from exactspec.drafters.base import DraftBudget, State
from exactspec.drafters.layer.runner import LayerRunner
from exactspec.drafters.layer.sight import Sight
from exactspec.drafters.longspec import LongSpecDrafter
from exactspec.engine import Engine
from exactspec.params import SamplingParams, Speculation
from exactspec.target.exact import ExactTarget
from exactspec.tree import DraftTree

GREEDY = SamplingParams(max_tokens=64, ignore_eos=True)


@pytest.fixture(scope="module")
def target() -> ExactTarget:
    return ExactTarget(SOURCE, threads=2, context=4096)


class WrongNowAndThen(FromScratch):
    """Proposes the text itself, every fifth token of it wrong, after its own proposal was held against one from
    scratch."""

    length = 1
    drafted = 0

    def propose(self, state: State, budget: DraftBudget) -> DraftTree:
        super().propose(state, budget)
        n = state.layer.length
        ids = self.text[n : n + self.length].copy()
        for i in range(len(ids)):
            self.drafted += 1
            if self.drafted % 5 == 0:
                ids[i] = (ids[i] + 1) % VOCAB
        return DraftTree.chain(ids, source="test").prune(max_depth=budget.max_depth)


@pytest.mark.parametrize("length", [1, 2, 4, 7])
@pytest.mark.parametrize("prompt", [1, 7, 50])
def test_09_in_step_after_rejections(target: ExactTarget, prompt: int, length: int) -> None:
    given = np.random.default_rng(prompt).integers(0, VOCAB, prompt).tolist()
    text = plain_text(target, given, GREEDY)
    drafter = drafter_of(target, window=24, kind=WrongNowAndThen)
    assert isinstance(drafter, WrongNowAndThen)
    drafter.text, drafter.features, drafter.length = text, read(target, text)[1], length
    checks = WrongNowAndThen.checks
    every = Speculation(draft="copyspec", block=16)  # for its budget: all that is drafted
    found = Engine(target, TOKENIZER, draft=drafter, speculation=every).generate(given, GREEDY)
    assert found.token_ids == tuple(text[prompt:].tolist())
    rejected = found.metrics.num_draft_tokens - found.metrics.num_accepted_tokens
    assert rejected > 3
    assert WrongNowAndThen.checks - checks >= found.metrics.num_steps - 1


def test_28_constant_memory_and_time(target: ExactTarget) -> None:
    drafter = drafter_of(target, window=24, recent=200)
    bytes_of, seconds = {}, {}
    states = {}
    for length in (250, 1000, 4000):
        tokens = np.random.default_rng(length).integers(0, VOCAB, length)
        cache, features = read(target, tokens)
        states[length] = begun(drafter, tokens, cache, features)
        drafter.propose(states[length], DraftBudget(16, 5))
        bytes_of[length] = states[length].layer.nbytes + drafter.runner.nbytes
        seconds[length] = []
    for _ in range(40):
        for length, state in states.items():
            start = time.perf_counter()
            drafter.propose(state, DraftBudget(16, 5))
            seconds[length].append(time.perf_counter() - start)
    assert len(set(bytes_of.values())) == 1
    # By hand: 3 kv heads, keys and values, 128 slots of the window and 128 more and 128 of a tree, 32 dimensions of
    # padded heads, two bytes.
    assert states[250].layer.pages.nbytes == 3 * 2 * (128 + 128 + 128) * 32 * 2
    assert median(seconds[4000]) < 1.3 * median(seconds[1000]) + 1e-4


@pytest.mark.parametrize("draft_feature", ["verified", "own"])
def test_30_what_was_learnt_by_heart_is_accepted(target: ExactTarget, draft_feature: str) -> None:
    torch = pytest.importorskip("torch", reason="training needs the extra `train`")
    pytest.importorskip("accelerate", reason="training needs the extra `train`")
    layer = _overfit(torch, target, draft_feature)
    drafter = LongSpecDrafter(LayerRunner(target, layer[0], sight=Sight(None)), widths=(1,) * 5, always=True)
    every = Speculation(draft="copyspec", block=16)
    found = Engine(target, TOKENIZER, draft=drafter, speculation=every).generate(
        layer[1], SamplingParams(max_tokens=31, ignore_eos=True), record_steps=True
    )
    assert [step.accepted for step in found.steps] == [5, 5, 5, 5, 5, 0]  # the last token is the target's own
    assert found.metrics.num_draft_tokens == found.metrics.num_accepted_tokens


def _overfit(torch: Any, target: ExactTarget, draft_feature: str) -> tuple[Any, list[int]]:
    """A layer trained on one answer of the target's alone, and that answer's prompt."""
    from tiny_training import tiny_draft_layer

    from exactspec.training.batches import Batches, Place
    from exactspec.training.capture import Text, capture_texts
    from exactspec.training.config import TrainConfig
    from exactspec.training.model import draft_loss
    from exactspec.training.samples import prepare

    prompt = np.random.default_rng(30).integers(0, VOCAB, 12).tolist()
    tokens = plain_text(target, prompt, SamplingParams(max_tokens=32, ignore_eos=True)).tolist()
    (document,) = capture_texts(target, [Text("one", "text", tokens, np.arange(len(tokens)) >= len(prompt))])
    one = prepare(document, np.arange(VOCAB), labels="text")
    layer = tiny_draft_layer(tiny_card(SOURCE, head=VOCAB, window=64, draft_feature=draft_feature), np.arange(VOCAB))
    lags = (0, 0, 0, 0, 1) if draft_feature == "own" else (1, 1, 1, 1, 1)
    config = TrainConfig(tokens=400 * 32, batch=32, lags=lags, evaluate_every=1000)
    optimizer = torch.optim.AdamW(layer.parameters(), lr=2e-3)
    batches, place = Batches([one], [], config, longest=4096), Place()
    for _ in range(300):
        samples = [drawn.sample(layer) for drawn in batches.draw(place)]
        loss, _ = draft_loss(layer(samples), samples, soft=0.0)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return layer.to_layer(np.arange(VOCAB)), prompt
