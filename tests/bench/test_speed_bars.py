"""The bars of drafting: what they measure, share, and say."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from bench.fakes import FakeEngine, completion
from bench.test_contest import SayingPeer, recorder_of
from scripted import ByteTokenizer

from exactspec.bench import model_bar, replay_bars, speed_bars
from exactspec.bench.arms import parse_arms
from exactspec.bench.bars import BARS, PEER_MODELS
from exactspec.bench.case import Case
from exactspec.bench.plan import Asked, question_cases
from exactspec.bench.questions import TURNS, read_questions
from exactspec.bench.replay import replay_cases
from exactspec.bench.replay_report import newest_replays, replay_table
from exactspec.bench.report import flagged_rows, full_table
from exactspec.bench.runner import contest
from exactspec.bench.runtime_bars import LARGE, MIDDLE, SMALL
from exactspec.bench.simulate import Answer, compare
from exactspec.bench.speed_bars import Effort
from exactspec.budget import CostModel
from exactspec.params import SamplingParams, Speculation
from exactspec.results import Chunk, TokenInfo


class ByPrompt(FakeEngine):
    """Answers with letters; a prompt that holds "fast" is drafted ten times as fast, any other twice."""

    def stream(self, prompt: Any, params: SamplingParams, *, speculation: Speculation | None = None) -> Iterator[Chunk]:
        assert speculation is not None
        self.calls.append((speculation.draft, params.max_tokens))
        ids = [97 + i % 20 for i in range(min(30, params.max_tokens or 30))]
        gain = {"none": 1, "copyspec": 1.5}.get(
            speculation.draft, 10 if b"say fast" in bytes(t % 256 for t in prompt) else 2
        )
        yield Chunk("", tuple(TokenInfo(i, "") for i in ids))
        yield Chunk("", (), completion(ids, decode_s=len(ids) / gain))


def engine() -> ByPrompt:
    return ByPrompt(ids={"none": []}, s_per_token={"none": 1.0}, tokenizer=ByteTokenizer())


@pytest.fixture
def questions(tmp_path: Path) -> Path:
    path = tmp_path / "mt.jsonl"
    rows = [
        {"question_id": i, "category": category, "turns": [f"say {word} {i}", "once more"]}
        for i, (category, word) in enumerate([("math", "fast"), ("art", "slow"), ("math", "fast"), ("art", "slow")])
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_every_bar_has_a_limit_for_a_model_that_is_measured() -> None:
    limits = {**speed_bars.LIMITS, **model_bar.LIMITS, **replay_bars.LIMITS}
    assert set(limits) <= set(BARS)
    assert all(set(by_model) <= set(PEER_MODELS) and by_model for by_model in limits.values())
    assert limits["mt-second"] == {MIDDLE: 3.2, SMALL: 2.5}
    assert (limits["edit-1k"][MIDDLE], limits["rename"][MIDDLE], limits["mt-first"][MIDDLE]) == (5.0, 3.5, 1.35)
    assert limits["model-draft"] == {LARGE: 1.49}


def test_question_bars_over_all_tokens_and_by_category(tmp_path: Path, questions: Path) -> None:
    recorder, one = recorder_of(tmp_path / "r.jsonl"), engine()
    on = contest(one, model=MIDDLE, recorder=recorder)
    effort = Effort(questions=questions, max_tokens=20)
    both, best = speed_bars.speed_bars(on, ["mt-second"], effort=effort, recorder=recorder, cost=None)
    assert both.value == pytest.approx(80 / (40 / 10 + 40 / 2))  # ratio of totals, not the median of 2 and 10
    assert (both.limit, both.passed, both.equal) == (3.2, True, True)
    assert "copyspec 1.50x" in both.detail
    assert (best.value, best.limit) == (pytest.approx(10), 6.0)
    assert best.detail == "math 10.00x, art 2.00x"
    firsts = [call for call in one.calls if call == ("none", 20)]
    assert len(firsts) == 4 + 4  # plain first answers, then plain second ones
    (line, *_) = [line for line in recorder.out.lines if line["kind"] == "run"]
    assert (line["category"], line["turn"], line["workload"]) == ("math", "second", "mt second")
    table = full_table([line for line in recorder.out.lines if line["kind"] == "run"])
    assert "mt second: art" in table
    assert "Flagged" not in table
    # The first turns come from the same file; their plain answers are there, and are measured all the same.
    (first,) = speed_bars.speed_bars(on, ["mt-first"], effort=effort, recorder=recorder, cost=None)
    assert first.limit == 1.35
    done = len(one.calls)
    again = list(speed_bars.speed_bars(on, ["mt-second", "mt-first"], effort=effort, recorder=recorder, cost=None))
    assert again == [both, best, first]
    assert len(one.calls) == done


def test_sampled_second_turns_have_the_greedy_history(tmp_path: Path, questions: Path) -> None:
    recorder, one = recorder_of(tmp_path / "r.jsonl"), engine()
    on = contest(one, model=MIDDLE, recorder=recorder)
    effort = Effort(questions=questions, per_category=1, max_tokens=20)
    list(speed_bars.speed_bars(on, ["mt-second"], effort=effort, recorder=recorder, cost=None))
    before = {line["asked"] for line in recorder.out.lines if line["kind"] == "answer"}
    (bar,) = speed_bars.speed_bars(on, ["sampled-second"], effort=effort, recorder=recorder, cost=None)
    assert bar.limit == 2.2
    new = [line for line in recorder.out.lines if line["kind"] == "answer" and line["asked"] not in before]
    assert [line["case"] for line in new] == ["mt-1-second T=0.8", "mt-0-second T=0.8"][::-1]  # no first answer anew


def test_a_smaller_model_has_no_best_category(tmp_path: Path, questions: Path) -> None:
    recorder = recorder_of(tmp_path / "r.jsonl")
    on = contest(engine(), model=SMALL, recorder=recorder)
    effort = Effort(questions=questions, per_category=1)
    (bar,) = speed_bars.speed_bars(on, ["mt-second"], effort=effort, recorder=recorder, cost=None)
    assert (bar.limit, "2 pairs of 2 prompts" in bar.detail) == (2.5, True)
    with pytest.raises(ValueError, match="--questions"):
        list(speed_bars.speed_bars(on, ["mt-second"], effort=Effort(), recorder=recorder, cost=None))


def test_second_turns_wait_for_their_history(tmp_path: Path, questions: Path) -> None:
    """Cases come one by one: a second turn asks for the first answer only when it is its turn."""
    one = engine()
    on = contest(one, model="m", recorder=recorder_of(tmp_path / "r.jsonl"))
    cases = question_cases(on, read_questions(questions), TURNS, Asked(max_tokens=5))
    assert next(cases).meta["turn"] == "first"
    assert one.calls == []
    second = next(cases)
    assert (second.meta["turn"], one.calls) == ("second", [("none", 5)])
    assert bytes(t for t in second.ids if t < 256).count(b"abcde") == 1


def test_workload_bars_replay_the_ideal_reply_too(tmp_path: Path) -> None:
    recorder, one = recorder_of(tmp_path / "r.jsonl"), engine()
    on = contest(one, model=MIDDLE, recorder=recorder)
    effort = Effort(seeds=1, rounds=1, max_tokens=20)
    (bar,) = speed_bars.speed_bars(on, ["edit-1k"], effort=effort, recorder=recorder, cost=CostModel())
    assert (bar.value, bar.limit, bar.passed) == (pytest.approx(2.0), 5.0, False)
    assert "ideal replies replayed: copyspec tau" in bar.detail
    assert one.read[0][1] > 900  # the prompt is read once
    assert {read for _, read in one.read[1:]} == {1}


def test_peer_bars_take_the_best_mode(tmp_path: Path) -> None:
    recorder, peer = recorder_of(tmp_path / "r.jsonl"), SayingPeer()
    on = contest(engine(), model=MIDDLE, recorder=recorder, peer=peer)
    effort = Effort(seeds=1, rounds=1, max_tokens=20)
    plain, best = speed_bars.speed_bars(on, ["peer-edit"], effort=effort, recorder=recorder, cost=None)
    assert (plain.value, plain.limit) == (pytest.approx(2.0), 6.0)
    assert (best.value, best.limit) == (pytest.approx(2 / 65), 3.0)
    assert "mod-64" in best.name
    assert not best.passed


def test_a_model_and_copying_against_each_alone(tmp_path: Path, questions: Path) -> None:
    recorder = recorder_of(tmp_path / "r.jsonl")
    on = contest(engine(), model=LARGE, recorder=recorder)
    over_model, over_copy = model_bar.model_bars(on, effort=Effort(questions=questions), recorder=recorder)
    assert (over_model.value, over_model.limit, over_model.passed) == (pytest.approx(1.0), 1.49, False)
    assert (over_copy.value, over_copy.limit, over_copy.passed) == (pytest.approx(1.0), 1.0, True)


def test_a_flagged_pair_fails_its_bar_and_is_named(tmp_path: Path, questions: Path) -> None:
    class Wrong(ByPrompt):
        def stream(self, prompt: Any, params: SamplingParams, *, speculation: Any = None) -> Iterator[Chunk]:
            for chunk in super().stream(prompt, params, speculation=speculation):
                short = (
                    speculation.draft == "auto"
                    and chunk.completion is not None
                    and b"say fast 2" in bytes(t % 256 for t in prompt)
                )
                if speculation.draft == "auto" and b"say fast 2" in bytes(t % 256 for t in prompt):
                    chunk = Chunk("", chunk.tokens[:-1], completion(range(97, 104), decode_s=1.0) if short else None)
                yield chunk

    recorder = recorder_of(tmp_path / "r.jsonl")
    on = contest(
        Wrong(ids={"none": []}, s_per_token={"none": 1.0}, tokenizer=ByteTokenizer()), model=MIDDLE, recorder=recorder
    )
    effort = Effort(questions=questions, max_tokens=8)
    both, _ = speed_bars.speed_bars(on, ["mt-second"], effort=effort, recorder=recorder, cost=None)
    assert (both.equal, both.passed) == (False, False)
    runs = [line for line in recorder.out.lines if line["kind"] == "run"]
    assert flagged_rows(runs) == [f"{MIDDLE} mt-2-second, auto, round 1: count (7 tokens)"]
    assert "- " + flagged_rows(runs)[0] in full_table(runs)


def gold_case(name: str, prompt: tuple[int, ...], gold: tuple[int, ...]) -> Case:
    return Case(id=name, ids=prompt, params=SamplingParams(max_tokens=5), meta={"workload": name, "size": 9}, gold=gold)


def test_replay_takes_the_whole_ideal_reply(tmp_path: Path) -> None:
    recorder, one = recorder_of(tmp_path / "r.jsonl"), engine()
    on = contest(one, model="m", recorder=recorder)
    prompt = tuple(range(100, 140))
    cases = [gold_case("w", prompt, prompt[5:30]), gold_case("v", prompt, tuple(range(25)))]
    arms = parse_arms("plain,copyspec,copy@min_match=3")
    lines = replay_cases(on, cases, arms, equal_rows=False, recorder=recorder, cost=CostModel())
    by = {(line["workload"], line["arm"]): line for line in lines}
    assert by["w", "none"]["tau"] == 1.0
    assert by["w", "copyspec"]["tokens"] == 25
    assert by["w", "copyspec"]["tau"] > 3
    assert by["v", "copyspec"]["tau"] == 1.0
    expected = compare([Answer("w", "w", prompt, prompt[5:30])], {"c": Speculation(draft="copyspec")}, equal_rows=False)
    assert by["w", "copyspec"]["steps"] == expected["c"].steps
    assert one.calls == []
    assert (
        by["w", "copyspec"]["predicted_with_drafter"] == by["w", "copyspec"]["predicted_speedup"]
    )  # no plain time known
    timed = replay_cases(on, cases, arms, equal_rows=False, recorder=recorder, cost=CostModel(one_s=1e-6))
    (slow,) = [line for line in timed if (line["workload"], line["arm"]) == ("w", "copyspec")]
    steps = slow["cost"] + slow["drafter_s"] / 1e-6
    assert slow["predicted_with_drafter"] == pytest.approx(25 / steps)
    assert slow["predicted_with_drafter"] < slow["predicted_speedup"]
    table = replay_table(newest_replays([*recorder.out.lines, *recorder.out.lines]))
    assert table.count("| w ") == 3
    for word in ("llama.cpp", "model:x"):
        with pytest.raises(ValueError, match="cannot be replayed"):
            replay_cases(on, cases, parse_arms(f"plain,{word}"), equal_rows=False, recorder=recorder)


def test_replay_of_questions_takes_kept_answers(tmp_path: Path, questions: Path) -> None:
    recorder, one = recorder_of(tmp_path / "r.jsonl"), engine()
    on = contest(one, model="m", recorder=recorder)
    cases = question_cases(on, read_questions(questions), TURNS, Asked(max_tokens=25))
    lines = replay_cases(on, cases, parse_arms("none,copyspec"), equal_rows=False, recorder=recorder)
    assert {(line["workload"], line["replies"], line["answers"]) for line in lines} == {
        ("mt first", "own", 4),
        ("mt second", "own", 4),
    }
    taus = {(line["workload"], line["arm"]): line["tau"] for line in lines}
    assert taus["mt second", "copyspec"] > 2 > taus["mt first", "copyspec"]  # the first answer comes again


def test_replay_bars(tmp_path: Path) -> None:
    recorder = recorder_of(tmp_path / "r.jsonl")
    on = contest(engine(), model=MIDDLE, recorder=recorder)
    names = ("code_edit", "revise")
    tau, speed = replay_bars.replay_bars(on, seeds=1, recorder=recorder, cost=CostModel(), names=names, size=1024)
    assert (tau.limit, speed.limit) == (1.6, 1.0)
    assert "code_edit" in tau.detail
    assert not set(replay_bars.CONTROLS) & set(replay_bars.WORKLOADS)
    each = [float(part.split()[-1]) for part in speed.detail.split(", ")]
    assert speed.value == pytest.approx(min(each), abs=0.006)
    each = [float(part.split()[-1]) for part in tau.detail.split(", ")]
    assert tau.value == pytest.approx(sum(each) / len(each), abs=0.006)
