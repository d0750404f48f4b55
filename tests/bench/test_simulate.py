"""Replaying stored answers: the counts are those of a real run, and logs say what is wrong with them."""

from __future__ import annotations

import json
import random
import time
from pathlib import Path

import numpy as np
import pytest
from scripted import IdTokenizer, Oracle, script_target

from exactspec.bench.simulate import (
    Answer,
    Replayed,
    Threshold,
    append_log,
    at_equal_rows,
    by_workload,
    compare,
    read_log,
    replay,
    replay_all,
)
from exactspec.budget import CostModel, FixedBudget
from exactspec.drafters import CopyDrafter, CopySpecDrafter
from exactspec.drafters.base import DraftBudget, State, Verified
from exactspec.engine import Engine
from exactspec.params import SamplingParams, Speculation
from exactspec.tree import DraftTree

COST = CostModel()


def edited(seed: int, workload: str = "edit", n: int = 300) -> Answer:
    rng = random.Random(seed)
    text = [7 if rng.random() < 0.03 else rng.randrange(8, 200) for _ in range(n)]
    output = [250 if t == 7 else t for t in text]
    return Answer(f"{workload}-{seed}", workload, tuple(text), tuple(output))


def test_plain_decoding_is_one_step_and_one_row_a_token() -> None:
    one = replay(edited(0), None, FixedBudget(0), cost=COST)
    assert (one.tokens, one.steps, one.rows, one.copied, one.cost) == (300, 300, 300, 0, 300.0)
    assert (one.tau, one.copy_share, one.speedup) == (1.0, 0.0, 1.0)


@pytest.mark.parametrize("draft", ["copyspec", "copy"])
def test_the_counts_are_those_of_the_engine(draft: str) -> None:
    answer = edited(1)
    target = script_target(len(answer.prompt), answer.output)
    engine = Engine(target, IdTokenizer(), draft=draft)
    real = engine.generate(list(answer.prompt), SamplingParams(max_tokens=len(answer.output)))
    assert real.token_ids == answer.output
    found = compare([answer], {draft: Speculation(draft=draft)}, equal_rows=False)[draft]
    metrics = real.metrics
    assert (found.tokens, found.steps) == (metrics.completion_tokens, metrics.num_steps)
    assert (found.rows - found.steps, found.copied) == (metrics.num_draft_tokens, metrics.num_accepted_tokens)


def test_without_the_rows_of_a_target_counts_are_near_those_of_the_engine() -> None:
    answer = edited(1)
    target = script_target(len(answer.prompt), answer.output)
    real = Engine(target, IdTokenizer(), draft="auto").generate(list(answer.prompt), SamplingParams(max_tokens=300))
    found = compare([answer], {"auto": Speculation(draft="auto")}, equal_rows=False)["auto"]
    assert real.token_ids == answer.output
    assert found.steps == pytest.approx(real.metrics.num_steps, abs=2)


def test_the_best_ids_of_a_log_reach_drafters_that_ask(tmp_path: Path) -> None:
    class Watching(Oracle):
        """Takes every second token; keeps what the rows say."""

        wants_topk = True
        rows: list[list[list[int]]]

        def commit(self, state: list[int], verified: Verified) -> None:
            self.rows.append(verified.rows.topk_ids.tolist())
            state += verified.tokens.tolist()

    output = (4, 5, 6, 7, 8)
    best = tuple(((token, 2.0), (token + 10, 1.5)) for token in output)
    known, unknown = Answer("a", "w", (9, 8), output, best=best), Answer("a", "w", (9, 8), output)
    path = tmp_path / "log.jsonl"
    for answer in (known, unknown):
        append_log(path, [answer])
    assert read_log(path) == [known, unknown]
    for answer, expected in (
        (known, [[[4, 14], [5, 15], [-1, -1]], [[6, 16], [7, 17], [-1, -1]], [[8, 18]]]),
        (unknown, [[[4], [5], [-1]], [[6], [7], [-1]], [[8]]]),
    ):
        drafter = Watching([9, 8, 4, 50, 6, 50, 8], length=2)
        drafter.rows = []
        assert replay(answer, drafter, FixedBudget(2), cost=COST).steps == 3
        assert drafter.rows == expected


@pytest.mark.parametrize(
    "broken",
    [
        {"topk_ids": [[1, 2]]},
        {"topk_ids": [[1], [2], [3]], "topk_logits": [[0.0], [0.0], [0.0]]},
        {"topk_ids": [[1], [2]], "topk_logits": [[0.0], []]},
        {"topk_ids": [[-1], [2]], "topk_logits": [[0.0], [0.0]]},
        {"topk_ids": [["a"], [2]], "topk_logits": [[0.0], [0.0]]},
        {"topk_ids": [[1], [2]], "topk_logits": [[0.0], [None]]},
        {"topk_ids": [[1], [2]], "topk_logits": [[0.0], [10**400]]},
        {"topk_ids": [[1], [10**30]], "topk_logits": [[0.0], [0.0]]},
    ],
)
def test_best_ids_that_are_none_are_named(tmp_path: Path, broken: dict[str, object]) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text(json.dumps({"prompt_ids": [1], "output_ids": [1, 2], **broken}) + "\n")
    with pytest.raises(ValueError, match="line 1: topk_ids and topk_logits must"):
        read_log(path)


def test_a_log_that_is_no_text_is_named(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_bytes(b"\xff\xfe\n")
    with pytest.raises(ValueError, match=r"log.jsonl, line 1, is not UTF-8 text"):
        read_log(path)


def test_the_drafters_own_time_counts_where_a_plain_step_is_known() -> None:
    sums = Replayed(tokens=200, steps=100, rows=300, copied=100, cost=125.0, propose_s=0.4, commit_s=0.1)
    assert sums.speedup == 1.6
    assert sums.speedup_on(0.01) == pytest.approx(200 / 175)


def test_what_a_drafter_loads_at_its_first_use_is_no_answers_time(monkeypatch: pytest.MonkeyPatch) -> None:
    class SlowOnce(CopyDrafter):
        loaded = False

        def propose(self, state: State, budget: DraftBudget) -> DraftTree:
            if not SlowOnce.loaded:
                time.sleep(0.3)
            SlowOnce.loaded = True
            return super().propose(state, budget)

    monkeypatch.setattr("exactspec.bench.simulate.make_drafter", lambda speculation, **others: SlowOnce())
    answers = [Answer("a", "w", tuple(range(30)), tuple(range(30)))]
    found = compare(answers, {"copy": Speculation(draft="copy")}, equal_rows=False)
    assert SlowOnce.loaded
    assert found["copy"].tokens == 30
    assert found["copy"].propose_s < 0.3


def test_prediction_is_copied_from() -> None:
    text = tuple(np.random.default_rng(0).integers(0, 9999, 200).tolist())
    without = Answer("a", "a", (1, 2, 3), text)
    foreseen = Answer("a", "a", (1, 2, 3), text, text)
    assert replay(without, CopyDrafter(), FixedBudget(48), cost=COST).tau == 1.0
    assert replay(foreseen, CopyDrafter(), FixedBudget(48), cost=COST).tau > 10


def test_cost_and_speedup_follow_the_table() -> None:
    answer = Answer("a", "a", (5, 6, 7), (5, 6, 7) * 20)
    one = replay(answer, CopySpecDrafter(), FixedBudget(10), cost=lambda rows: 1.0 + (rows > 1))
    assert one.speedup == pytest.approx(one.tokens / one.cost)
    assert one.steps <= one.cost <= 2 * one.steps


def test_equal_rows_are_never_more_than_the_firsts() -> None:
    answers = [edited(seed) for seed in range(4)]
    found = compare(answers, {d: Speculation(draft=d) for d in ("copyspec", "copy")}, equal_rows=True)
    assert found["copy"].rows <= found["copyspec"].rows
    assert found["copy"].tau > 1.3 * found["copyspec"].tau
    none = at_equal_rows(answers, CopyDrafter(), rows=0, most=48, cost=COST)
    assert none.rows == none.steps == none.tokens  # nothing can be verified in less than plain decoding takes


def test_a_threshold_keeps_the_likely_nodes() -> None:
    tree = DraftTree.chain([1, 2, 3], source="copy", scores=[0.9, 0.6, 0.2])
    assert Threshold(0.5, 48).choose(tree).tokens.tolist() == [1, 2]
    assert len(Threshold(0.95, 48).choose(tree)) == 0


def test_sums_are_by_workload() -> None:
    answers = [edited(0, "a"), edited(1, "b"), edited(2, "a")]
    groups = by_workload(answers)
    assert {name: len(group) for name, group in groups.items()} == {"a": 2, "b": 1}
    both = replay_all(groups["a"], CopyDrafter(), lambda: FixedBudget(10), cost=COST)
    apart = [replay(a, CopyDrafter(), FixedBudget(10), cost=COST) for a in groups["a"]]
    assert (both.tokens, both.steps, both.rows) == tuple(
        sum(getattr(one, name) for one in apart) for name in ("tokens", "steps", "rows")
    )
    assert Replayed().tau == Replayed().speedup == Replayed().copy_share == 0.0


def test_a_log_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    answers = [edited(0, n=20), Answer("p", "w", (1,), (2, 3), (4,))]
    for answer in answers:
        append_log(path, [answer])
    assert read_log(path) == answers
    with path.open("a") as file:
        file.write('\n{"prompt_ids": [1], "output_ids": [2], "note": "other keys are ignored"}\n')
        file.write('{"prompt_ids": [1], "output_ids": []}\n')
    assert read_log(path)[2:] == [Answer("4", "all", (1,), (2,))]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("[1]", "line 1, is not a JSON object"),
        ("{", "line 1, is not a JSON object"),
        ('{"prompt_ids": [1]}', "line 1, has no output_ids"),
        ('{"prompt_ids": [1], "output_ids": [1.5]}', "output_ids must be a list of token ids"),
        ('{"prompt_ids": [-1], "output_ids": [1]}', "prompt_ids must be a list of token ids"),
        ('{"prompt_ids": [1], "output_ids": [true]}', "output_ids must be a list of token ids"),
        (json.dumps({"prompt_ids": [1], "output_ids": [2**31]}), "output_ids must be a list of token ids"),
    ],
)
def test_bad_lines_are_named(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text(line + "\n")
    with pytest.raises(ValueError, match=message):
        read_log(path)
