"""Replays beside a target that reads the answers: what a draft layer is given is what a real run gives it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bench.test_contest import recorder_of
from tiny_drafts import SOURCE, TOKENIZER, VOCAB, drafter_of, plain_text, read
from tiny_layer import random_layer, tiny_card

from exactspec.bench.acceptance import tally
from exactspec.bench.arms import parse_arms
from exactspec.bench.case import Case
from exactspec.bench.propose import rows_of_nothing
from exactspec.bench.replay import replay_cases
from exactspec.bench.runner import contest
from exactspec.bench.simulate import Answer, compare, replay
from exactspec.bench.teacher import StepClock, Teacher, teach
from exactspec.budget import CostModel, FixedBudget
from exactspec.drafters.layer.checkpoint import write_layer
from exactspec.drafters.longspec import LongSpecDrafter
from exactspec.engine import Engine
from exactspec.params import SamplingParams, Speculation
from exactspec.target.exact import ExactTarget

COST = CostModel(one_s=0.01)
PARAMS = SamplingParams(max_tokens=120, ignore_eos=True)


@pytest.fixture(scope="module")
def target() -> ExactTarget:
    return ExactTarget(SOURCE, threads=2, context=1024)


@pytest.fixture(scope="module")
def answer(target: ExactTarget) -> Answer:
    """A prompt with the target's own greedy answer."""
    prompt = np.random.default_rng(0).integers(0, VOCAB, 300).tolist()
    text = plain_text(target, prompt, PARAMS).tolist()
    return Answer("one", "all", tuple(prompt), tuple(text[300:]))


def taught(target: Any, *, kept_bytes: int = 1 << 30) -> Teacher:
    return Teacher(target, plain_s=0.0, clock=StepClock(), kept_bytes=kept_bytes)


@pytest.mark.parametrize("top", [0, 1])
def test_the_counts_are_those_of_a_real_run(target: ExactTarget, answer: Answer, top: int) -> None:
    drafter = drafter_of(target, window=64, recent=100, top=top)
    case = Case(id="one", ids=answer.prompt, params=PARAMS, meta={})
    real = tally(target, TOKENIZER, case, drafter, nodes=30)
    assert real.token_ids == answer.output
    found = replay(answer, drafter, FixedBudget(30), cost=COST, teacher=taught(target))
    assert (found.tokens, found.steps, found.rows) == (real.tokens, real.steps, real.nodes + real.steps)
    assert found.copied == sum(real.accepted) > 0
    # What it proposes depends on what the target computed: without that the counts are others.
    blind = replay(answer, drafter, FixedBudget(30), cost=COST, teacher=taught(_Blind(target)))
    assert blind.promised != found.promised


class _Blind:
    """A target whose hidden states are zeros."""

    def __init__(self, target: ExactTarget) -> None:
        self._target = target
        self.vocab_size, self.max_length, self.new_cache = target.vocab_size, target.max_length, target.new_cache

    def forward(self, segments: list) -> list:  # type: ignore[type-arg]
        return [replace(rows, hidden=np.zeros_like(rows.hidden)) for rows in self._target.forward(segments)]


def test_a_reading_is_that_of_the_prompts_prefill(target: ExactTarget, answer: Answer) -> None:
    tokens = (*answer.prompt, *answer.output)
    reading = taught(target).read(tokens, "it")
    cache, features = read(target, np.array(tokens))
    np.testing.assert_array_equal(reading.features, features)
    there, whole = reading.until(200), cache.last_layer()  # type: ignore[attr-defined]
    assert there.length == 199
    for ours, theirs in zip(there.last_layer(), whole, strict=True):  # type: ignore[attr-defined]
        np.testing.assert_array_equal(ours, theirs[:, :199])
    rows = reading.rows(rows_of_nothing(4), 200, [1, 2])
    np.testing.assert_array_equal(rows.hidden[[0, 2, 3]], features[199:202])
    assert not rows.hidden[1].any()


def test_readings_are_kept_as_long_as_there_is_room(target: ExactTarget) -> None:
    texts = [tuple(np.random.default_rng(seed).integers(0, VOCAB, 140).tolist()) for seed in range(3)]
    size = taught(target).read(texts[0], "a").nbytes
    teacher = taught(target, kept_bytes=2 * size)
    first = [teacher.read(text, "a") for text in texts]
    assert [teacher.read(text, "a") is one for text, one in zip(texts, first, strict=True)] == [True, True, False]
    teacher.forget()
    assert teacher.read(texts[0], "a") is not first[0]


def test_texts_of_another_model_are_named(target: ExactTarget) -> None:
    with pytest.raises(ValueError, match=f"answer x holds the id {VOCAB}, the model has {VOCAB}"):
        taught(target).read((1, VOCAB, 2), "answer x")
    with pytest.raises(ValueError, match="answer y has 1102 tokens, the model's context is 1024"):
        taught(target).read((1,) * 1102, "answer y")


@pytest.mark.parametrize("plain_s", [1e-6, 1e3])
def test_a_layer_learns_what_the_targets_time_is(target: ExactTarget, answer: Answer, plain_s: float) -> None:
    """Where steps of the target take no time drafting is soon given up; where they take long, and two rows a little
    less than one, never: random weights have to gain nothing for it."""
    clock = StepClock()
    runner = drafter_of(target, window=64).runner
    drafter = LongSpecDrafter(runner, clock=clock, widths=(1,))

    def cost(rows: int) -> float:
        return 1.0 if rows == 1 else 0.9

    teacher = Teacher(target, plain_s=plain_s, clock=clock)
    found = replay(answer, drafter, FixedBudget(1), cost=cost, teacher=teacher)
    drafts = found.rows - found.steps
    assert drafts < 0.5 * found.steps if plain_s < 1 else drafts > 0.9 * (found.steps - 1)


def test_modes_with_a_layer_are_compared(target: ExactTarget, answer: Answer, tmp_path: Path) -> None:
    write_layer(tmp_path, random_layer(tiny_card(SOURCE, precision="int8", window=64)))
    name = f"longspec:{tmp_path}"
    modes = {draft: Speculation(draft=draft) for draft in ("copyspec", "copy+recycle", name, f"copy+recycle+{name}")}
    with pytest.raises(ValueError, match="which is not open"):
        compare([answer], modes, equal_rows=False)
    teacher, models = teach(target, [name], cost=COST, tell=lambda line: None)
    found = compare([answer], modes, equal_rows=False, cost=COST, teacher=teacher, models=models)
    assert {sums.tokens for sums in found.values()} == {120}
    assert found[name].rows > found[name].steps
    equal = compare([answer], modes, equal_rows=True, cost=COST, teacher=teacher, models=models)
    assert max(sums.rows for sums in equal.values()) == equal["copyspec"].rows
    recorder = recorder_of(tmp_path / "replays.jsonl")
    on = contest(Engine(target, TOKENIZER), model="m", recorder=recorder)
    case = Case(id="c", ids=answer.prompt, params=PARAMS, meta={"workload": "w", "size": 0}, gold=answer.output)
    lines = replay_cases(on, [case], parse_arms(f"none,{name}"), equal_rows=False, recorder=recorder, cost=COST)
    assert [line["rows"] > line["steps"] for line in lines] == [False, True]
    with pytest.raises(ValueError, match="rows of this model are not measured"):
        teach(target, [name], cost=None, tell=lambda line: None)
