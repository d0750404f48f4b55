"""``exactspec bench acceptance``: what drafters get accepted with the same number of nodes at every step."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scripted import IdTokenizer, Oracle, Raising, hash_target, script_target
from tiny_drafts import SOURCE, TOKENIZER, VOCAB, drafter_of

from exactspec.bench.acceptance import (
    KINDS,
    ReadBefore,
    acceptance_case,
    acceptance_lines,
    acceptance_table,
    held_out_prompts,
    tally,
    text_of,
)
from exactspec.bench.case import Case
from exactspec.bench.questions import Question
from exactspec.bench.store import Line
from exactspec.budget import FixedBudget
from exactspec.drafters.recycle import RecycleDrafter
from exactspec.drafters.union import UnionDrafter
from exactspec.drafting import Drafting
from exactspec.params import SamplingParams, Speculation
from exactspec.target.exact import ExactTarget
from exactspec.training.config import DataConfig
from exactspec.training.features import self_prompts

PROMPT = (5, 6, 7, 8)
SCRIPT = [10 + i for i in range(24)]
SHORT = SamplingParams(max_tokens=24, ignore_eos=True)


def case(params: SamplingParams = SHORT) -> Case:
    return Case(id="a", ids=PROMPT, params=params, meta={"workload": "story"})


def test_everything_proposed_is_verified_up_to_the_nodes_allowed() -> None:
    right = script_target(len(PROMPT), SCRIPT)
    drafter = Oracle([*PROMPT, *SCRIPT], length=5)
    got = tally(right, IdTokenizer(), case(), drafter, nodes=5)
    assert (got.tokens, got.steps, got.nodes) == (24, 4, 20)
    assert got.accepted == (4, 4, 4, 4, 4)
    got = tally(right, IdTokenizer(), case(), drafter, nodes=2)
    assert (got.tokens, got.steps, got.nodes) == (24, 8, 16)
    wrong = Oracle([299] * 28, length=5)
    got = tally(right, IdTokenizer(), case(), wrong, nodes=5)
    assert (got.tokens, got.steps, got.accepted) == (24, 24, ())  # failing does not make drafts rarer
    assert got.nodes == sum(min(5, 23 - i) for i in range(24))


def test_a_drafter_that_fails_is_no_figure() -> None:
    failing = Raising("propose", [*PROMPT, *SCRIPT], call=3)
    with pytest.raises(RuntimeError, match="failed in a"):
        tally(script_target(len(PROMPT), SCRIPT), IdTokenizer(), case(), failing, nodes=5)


def test_lines_are_kept_and_not_made_again() -> None:
    target = hash_target()
    made: list[Line] = []
    arms = {"recycle": RecycleDrafter(), "none": None}

    def run(known: list[Line], *, nodes: int = 8) -> list[Line]:
        return acceptance_lines(
            target,
            IdTokenizer(),
            [case()],
            arms,
            nodes=nodes,
            head={"model": "m"},
            known=known,
            append=made.append,
            tell=lambda text: None,
        )

    first = run([])
    assert [line["arm"] for line in first] == ["recycle", "none"]
    assert made == first
    assert first[1]["num_steps"] == first[1]["completion_tokens"] == 24
    before = target.forwards
    assert run(first) == first
    assert (target.forwards, len(made)) == (before, 2)
    assert run(first, nodes=4) != first
    table = acceptance_table(first).splitlines()
    assert len(table) == 2 + 2 * 2  # a kind and all
    assert table[3].split("|")[5].strip() == "1.000"


def test_answers_that_differ_are_an_error() -> None:
    sampled = SamplingParams(max_tokens=24, ignore_eos=True)
    known = {"model": "m", "kind": "acceptance", "case": "a", "work": case(sampled).work, "arm": "none", "nodes": 8}
    known |= {"workload": "story", "tokens_sha256": "other", "completion_tokens": 24, "num_steps": 24}
    known |= {"num_draft_tokens": 0, "accepted_by_depth": []}
    with pytest.raises(ValueError, match="must never be"):
        acceptance_lines(
            hash_target(),
            IdTokenizer(),
            [case(sampled)],
            {"recycle": RecycleDrafter(), "none": None},
            nodes=8,
            head={"model": "m"},
            known=[known],
            append=lambda line: None,
            tell=lambda text: None,
        )


def test_prompts_are_none_that_training_asks() -> None:
    prompts = held_out_prompts(KINDS, 3)
    assert [p.category for p in prompts] == [kind for kind in KINDS for _ in range(3)]
    assert len({p.turns[0] for p in prompts}) == len(prompts)
    for seed in (0, 1):
        asked = self_prompts(DataConfig(self_prompts=3000, seed=seed), held_out=False)
        assert not {p.turns[0] for p in prompts} & {one.turns[0] for one in asked}
    with pytest.raises(ValueError, match=r"'poem'.*story, explain"):
        held_out_prompts(["poem"], 1)


def test_text_in_front() -> None:
    tokenizer = IdTokenizer()
    text = text_of(tokenizer, 900)
    assert 700 < len(tokenizer.encode(text)) <= 900
    question = Question("f", "1", "story", ("Why?",))
    bare, behind = (acceptance_case(tokenizer, question, max_tokens=9, in_front=front) for front in ("", text))
    assert len(behind.ids) - len(bare.ids) > 700


def test_a_layer_at_every_step_beside_the_others() -> None:
    target = ExactTarget(SOURCE, threads=1, context=512)
    layer = drafter_of(target)
    layer.always = True
    union = UnionDrafter((), RecycleDrafter(), costly=(layer,))
    plain, alone, without, beside = (
        tally(target, TOKENIZER, case(), drafter, nodes=20) for drafter in (None, layer, RecycleDrafter(), union)
    )
    assert plain.token_ids == alone.token_ids == without.token_ids == beside.token_ids
    assert alone.nodes > 10 * alone.steps
    assert beside.nodes > without.nodes  # few: weights are random, and the table has learned that


def test_what_prompts_have_in_common_is_read_once() -> None:
    target = ExactTarget(SOURCE, threads=1, context=1024)
    rng = np.random.default_rng(0)
    front, ends = rng.integers(0, VOCAB, 400), [rng.integers(0, VOCAB, n) for n in (60, 290)]
    cases = [replace(case(), ids=(*front.tolist(), *end.tolist())) for end in ends]
    drafter = drafter_of(target, window=64, recent=100, top=1)
    before = ReadBefore()
    # Of hidden states the drafter gets the last 256; all that is not in front of these is read again.
    for one, known in zip((*cases, cases[0]), (0, 400, 203), strict=True):
        assert before.start(target, one.ids, drafter).length == known
        got = tally(target, TOKENIZER, one, drafter, nodes=20, before=before)
        assert got == tally(target, TOKENIZER, one, drafter, nodes=20)
    assert before.start(target, cases[0].ids, None).length == 459
    assert before.start(target, (1, 2, 3), None).length == 0


def test_an_own_budget_lasts_through_sessions_and_copies() -> None:
    made: list[FixedBudget] = []

    def budget() -> FixedBudget:
        made.append(FixedBudget(3))
        return made[-1]

    drafting = Drafting(RecycleDrafter(), Speculation(), vocab_size=300, budget=budget)
    drafting.fork()
    assert len(made) == 2
    drafting.begin([1, 2, 3], [], hash_target().new_cache())
    drafting.resume(1, [], hash_target().new_cache())
    assert len(made) == 3
