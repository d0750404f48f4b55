"""Sessions that hold a prompt, kept answers, peers that say ours, and the time left."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from bench.fakes import Clock, FakeEngine
from scripted import IdTokenizer, hash_target

from exactspec.bench.arms import parse_arm
from exactspec.bench.asking import Asking
from exactspec.bench.case import Case
from exactspec.bench.eta import Remaining, told
from exactspec.bench.plan import prompt_once
from exactspec.bench.provenance import collect
from exactspec.bench.recorder import Recorder
from exactspec.bench.report import latest, summarise
from exactspec.bench.rounds import Measurement
from exactspec.bench.runner import Contest, contest, plain_answer, run_contest
from exactspec.bench.store import ResultFile
from exactspec.engine import Engine
from exactspec.params import SamplingParams, Speculation

NONE, COPY = Speculation(draft="none"), Speculation(draft="copy")


class SayingPeer:
    """Takes a second a step; `asked` holds what it was told to say."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, int, bool]] = []

    def replay(self, ids: Any, output: Any, *, rule: str, most: int, held: bool) -> Measurement:
        self.asked.append((len(output), most, held))
        return Measurement(token_ids=tuple(output), prefill_s=0.1, decode_s=float(len(output)) / (1 + most))


def recorder_of(path: Path) -> Recorder:
    return Recorder(ResultFile(path), lambda: collect(threads=1, argv=["exactspec"]), lambda text: None)


def engine_of(**changes: Any) -> FakeEngine:
    ids = list(range(50))
    options: dict[str, Any] = {
        "ids": {"none": ids, "copy": ids, "auto": ids},
        "s_per_token": {"none": 0.04, "copy": 0.01, "auto": 0.02},
    }
    return FakeEngine(**(options | changes))


def case_of(**changes: Any) -> Case:
    options: dict[str, Any] = {
        "id": "a",
        "ids": (1, 2, 3, 4, 5),
        "params": SamplingParams(max_tokens=20),
        "meta": {"workload": "w", "size": 5},
    }
    return Case(**(options | changes))


def test_a_held_prompt_is_read_once_for_all_arms() -> None:
    engine = engine_of()
    asking = Asking(engine, case_of(held=4))
    for speculation in (NONE, COPY, COPY, NONE):
        asking.measure(speculation)
    assert engine.read == [("none", 4), ("none", 1), ("copy", 1), ("copy", 1), ("none", 1)]
    engine.read.clear()
    asking = Asking(engine, case_of(held=4, drafter_held=True))
    for speculation in (COPY, NONE, COPY):
        asking.measure(speculation)
    # The session reads once; each draft mode goes through what it holds once, on a copy.
    assert engine.read == [("none", 4), ("copy", 0), ("copy", 1), ("none", 0), ("none", 1), ("copy", 1)]
    asking.close()


def test_something_is_left_to_read() -> None:
    with pytest.raises(ValueError, match="last id"):
        case_of(held=5)
    assert prompt_once(case_of()).held == 4
    assert prompt_once(case_of(held=2)).held == 2
    assert prompt_once(case_of(ids=(1,))).held == 0


@pytest.mark.parametrize("drafter_held", [False, True])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_real_engine_says_the_same_from_a_session(drafter_held: bool, temperature: float) -> None:
    engine = Engine(hash_target(order=2), IdTokenizer(97))
    params = SamplingParams(max_tokens=60, temperature=temperature, seed=3)
    ids = tuple(range(1, 40)) + tuple(range(5, 30))
    alone = Asking(engine, case_of(ids=ids, params=params)).measure(NONE)
    asking = Asking(engine, case_of(ids=ids, params=params, held=50, drafter_held=drafter_held))
    for speculation in (NONE, COPY, Speculation(draft="copyspec"), COPY):
        found = asking.measure(speculation)
        assert found.token_ids == alone.token_ids
        assert found.extra["cached_tokens"] == 50
        assert len(found.token_ids) == 60
    assert alone.extra["cached_tokens"] == 0


def test_answers_are_generated_once(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    engine = engine_of()
    on = contest(engine, model="m", recorder=recorder_of(path))
    assert plain_answer(on, case_of()) == tuple(range(20))
    assert plain_answer(on, case_of()) == tuple(range(20))
    assert engine.calls == [("none", 20)]
    again = engine_of()
    assert plain_answer(contest(again, model="m", recorder=recorder_of(path)), case_of()) == tuple(range(20))
    assert again.calls == []
    # Another prompt, cap, model or identity is another answer.
    for model, identity, case in (
        ("m", "fake/1", case_of(ids=(9, 9))),
        ("m", "fake/1", case_of(params=SamplingParams(max_tokens=7))),
        ("n", "fake/1", case_of()),
        ("m", "fake/2", case_of()),
    ):
        other = engine_of(identity=identity)
        plain_answer(contest(other, model=model, recorder=recorder_of(path)), case)
        assert len(other.calls) == 1


def test_a_measured_plain_answer_is_the_kept_one(tmp_path: Path) -> None:
    engine, recorder = engine_of(), recorder_of(tmp_path / "r.jsonl")
    on = contest(engine, model="m", recorder=recorder)
    run_contest(on, [case_of()], [parse_arm("plain"), parse_arm("copy")], repeats=2, recorder=recorder)
    before = len(engine.calls)
    assert plain_answer(on, case_of()) == tuple(range(20))
    assert len(engine.calls) == before
    assert sum(line["kind"] == "answer" for line in recorder.out.lines) == 1


def test_a_peer_says_our_answer(tmp_path: Path) -> None:
    engine, recorder, peer = engine_of(), recorder_of(tmp_path / "r.jsonl"), SayingPeer()
    on = contest(engine, model="m", recorder=recorder, peer=peer)
    arms = [parse_arm(word) for word in ("llama.cpp", "auto", "llama.cpp:lookup-2")]
    run_contest(on, [case_of(held=4)], arms, repeats=2, recorder=recorder)
    assert peer.asked[:2] == [(16, 0, True), (16, 2, True)]  # warm-up
    assert peer.asked[2:] == [(20, 0, True), (20, 2, True), (20, 2, True), (20, 0, True)]
    summaries = {s.arm: s for s in summarise(latest(recorder.out.lines))}
    assert summaries["auto"].ratios is not None
    assert summaries["auto"].ratios.median == pytest.approx(1 / 0.02)
    assert all(s.equal and not s.flagged for s in summaries.values())
    lookup = summarise(latest(recorder.out.lines), baseline="llama.cpp:lookup-2")
    assert {s.arm: round(s.ratios.median, 3) for s in lookup if s.ratios} == {"llama.cpp": 0.333, "auto": 16.667}


def test_an_arm_without_its_peer_says_so(tmp_path: Path) -> None:
    recorder = recorder_of(tmp_path / "r.jsonl")
    on: Contest = contest(engine_of(), model="m", recorder=recorder)
    with pytest.raises(ValueError, match=r"llama\.cpp needs its peer"):
        run_contest(on, [case_of()], [parse_arm("plain"), parse_arm("llama.cpp")], repeats=1, recorder=recorder)


def test_time_left() -> None:
    clock = Clock()
    remaining = Remaining(10, clock=clock)
    remaining.skipped(4)
    clock.now += 30
    assert remaining.measured() == "5/10, 2 min left"  # five to come at 30 s
    clock.now += 10
    assert remaining.measured() == "6/10, 80 s left"  # four at 20 s
    assert (told(12.4), told(200), told(9000)) == ("12 s", "3 min", "2 h 30 min")
