"""The harness counts ids, compares like with like, and reads ratios right (field case 29)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bench.fakes import Clock, FakeEngine, chunks
from scipy import stats as scipy_stats
from scripted import IdTokenizer, hash_target

from exactspec.bench.case import Case
from exactspec.bench.provenance import collect, now
from exactspec.bench.recorder import Recorder
from exactspec.bench.report import latest, summarise, table
from exactspec.bench.rounds import Measurement, flags, play
from exactspec.bench.runner import run_arms
from exactspec.bench.stats import paired_ratios
from exactspec.bench.store import ResultFile
from exactspec.bench.timing import time_stream
from exactspec.engine import Engine
from exactspec.params import SamplingParams


@pytest.mark.parametrize(("per_chunk", "rate"), [(1, 20.0), (4, 80.0), (16, 320.0)])
def test_rate_counts_tokens_and_not_chunks(per_chunk: int, rate: float) -> None:
    clock = Clock()
    ids = list(range(40 * per_chunk))
    done, timing = time_stream(chunks(ids, per_chunk=per_chunk, chunk_s=0.05, clock=clock), clock=clock)
    assert timing.decode_tokens_per_s == pytest.approx(rate, rel=0.05)
    assert done.metrics.decode_tokens_per_s == pytest.approx(rate, rel=0.05)
    assert (timing.tokens, timing.chunks) == (len(ids), 41)
    assert timing.first_token_s == pytest.approx(0.05)
    assert timing.total_s == pytest.approx(40 * 0.05)


def test_stream_that_disagrees_with_its_completion_is_refused() -> None:
    whole = list(chunks([1, 2, 3, 4], per_chunk=2, chunk_s=0.1))
    with pytest.raises(ValueError, match="held 2 tokens, its completion 4"):
        time_stream([whole[0], whole[-1]])
    with pytest.raises(ValueError, match="without a completion"):
        time_stream(whole[:-1])


def _measurement(ids: Sequence[int], decode_s: float = 1.0) -> Measurement:
    return Measurement(token_ids=tuple(ids), prefill_s=0.1, decode_s=decode_s)


def test_flags() -> None:
    base = _measurement([1, 2, 3])
    assert flags(base, _measurement([1, 2, 3]), same_tokens=True) == ()
    assert flags(base, _measurement([1, 2, 4]), same_tokens=True) == ("tokens",)
    assert flags(base, _measurement([1, 2, 4]), same_tokens=False) == ()
    assert flags(base, _measurement([1, 2]), same_tokens=False) == ("count",)
    assert flags(base, _measurement([]), same_tokens=False) == ("empty", "count")


def test_rounds_alternate_and_run_one_at_a_time() -> None:
    running: list[str] = []
    log: list[str] = []

    def contestant(name: str) -> Any:
        def run() -> Measurement:
            assert not running
            running.append(name)
            log.append(name)
            running.pop()
            return _measurement([1])

        return run

    played = list(play({name: contestant(name) for name in "abc"}, range(3)))
    assert "".join(log) == "abccbaabc"
    assert [r.order for r in played] == [("a", "b", "c"), ("c", "b", "a"), ("a", "b", "c")]


def test_the_two_means_differ_and_are_told_apart() -> None:
    ratios = paired_ratios([10.0, 1.0], [5.0, 0.1])
    assert ratios.mean_of_ratios == pytest.approx(6.0)
    assert ratios.ratio_of_totals == pytest.approx(11 / 5.1)
    assert ratios.median == pytest.approx(6.0)


def test_interval_agrees_with_an_independent_bootstrap() -> None:
    rng = np.random.default_rng(5)
    arm = rng.lognormal(0.0, 0.2, 60)
    baseline = arm * rng.lognormal(0.5, 0.1, 60)
    ours = paired_ratios(baseline.tolist(), arm.tolist())
    theirs = scipy_stats.bootstrap(
        (baseline / arm,), np.median, n_resamples=4000, method="percentile", rng=np.random.default_rng(1)
    ).confidence_interval
    assert ours.low < ours.median < ours.high
    assert ours.low == pytest.approx(theirs.low, rel=0.01)
    assert ours.high == pytest.approx(theirs.high, rel=0.01)
    assert paired_ratios(baseline.tolist(), arm.tolist()) == ours


def test_rounds_of_one_prompt_are_no_independent_evidence() -> None:
    """Ten rounds that agree, of two prompts that do not: the interval is as wide as the prompts are apart."""
    arm = [1.0] * 20
    baseline = [2.0] * 10 + [4.0] * 10
    prompts = ["a"] * 10 + ["b"] * 10
    found, blind = paired_ratios(baseline, arm, prompts=prompts), paired_ratios(baseline, arm)
    assert (found.prompts, found.pairs, blind.prompts) == (2, 20, 20)
    assert (found.totals.low, found.totals.high) == (2.0, 4.0)
    assert (found.mean.low, found.mean.high) == (2.0, 4.0)
    assert 2.3 < blind.totals.low < blind.totals.high < 3.7
    # Rounds differ too: with one prompt, all of the interval is theirs.
    noisy = np.random.default_rng(2).lognormal(1.0, 0.2, 15)
    one = paired_ratios(noisy.tolist(), [1.0] * 15, prompts=["a"] * 15)
    theirs = scipy_stats.bootstrap(
        (noisy,), np.mean, n_resamples=4000, method="percentile", rng=np.random.default_rng(1)
    ).confidence_interval
    assert one.totals.low == pytest.approx(theirs.low, rel=0.02)
    assert one.totals.high == pytest.approx(theirs.high, rel=0.02)
    assert one.mean_of_ratios == pytest.approx(float(np.median(noisy)))
    with pytest.raises(ValueError, match="pairs"):
        paired_ratios([1.0], [1.0], prompts=["a", "b"])


def test_prompts_with_fewer_rounds_weigh_as_much(tmp_path: Path) -> None:
    found = paired_ratios([2.0, 2.0, 2.0, 4.0], [1.0] * 4, prompts=["a", "a", "a", "b"])
    assert found.mean_of_ratios == pytest.approx(3.0)
    assert found.ratio_of_totals == pytest.approx(10 / 4)
    assert 2.0 <= found.mean.low < found.mean.high <= 4.0


@pytest.mark.parametrize(("a", "b"), [([], []), ([1.0], [1.0, 2.0]), ([1.0], [0.0]), ([float("nan")], [1.0])])
def test_bad_pairs_are_refused(a: list[float], b: list[float]) -> None:
    with pytest.raises(ValueError):
        paired_ratios(a, b)


def _recorder(path: Path) -> Recorder:
    return Recorder(ResultFile(path), lambda: collect(threads=1, argv=["exactspec", "bench"]), lambda text: None)


def _case(name: str = "a", *, max_tokens: int = 20, **meta: Any) -> Case:
    meta = {"workload": "w", "size": 3, **meta}
    return Case(id=name, ids=(1, 2, 3), params=SamplingParams(max_tokens=max_tokens), meta=meta)


def _engine(**changes: Any) -> FakeEngine:
    options: dict[str, Any] = {
        "ids": {"none": list(range(50)), "copy": list(range(50)), "auto": list(range(50))},
        "s_per_token": {"none": 0.04, "copy": 0.01, "auto": 0.02},
    }
    return FakeEngine(**(options | changes))


def test_warm_up_is_not_in_any_line(tmp_path: Path) -> None:
    engine = _engine()
    recorder = _recorder(tmp_path / "r.jsonl")
    run_arms(engine, [_case()], ("none", "copy"), model="m", repeats=3, recorder=recorder)
    assert engine.calls[:2] == [("none", 16), ("copy", 16)]
    assert engine.calls[2:] == [(arm, 20) for arm in ("none", "copy", "copy", "none", "none", "copy")]
    assert len(recorder.out.lines) == 6
    (summary,) = summarise(recorder.out.lines)
    assert summary.ratios is not None
    assert summary.ratios.median == pytest.approx(4.0)
    assert (summary.ratios.pairs, summary.flagged, summary.equal) == (3, 0, True)
    assert (summary.base_tokens_per_s, summary.tokens_per_s) == (pytest.approx(25.0), pytest.approx(100.0))
    assert summary.prefill_s == 0.5  # a clock of its own


def test_pair_with_other_counts_is_flagged_and_enters_no_mean(tmp_path: Path) -> None:
    engine = _engine(ids={"none": list(range(20)), "copy": list(range(12))})  # one arm stops earlier
    recorder = _recorder(tmp_path / "r.jsonl")
    run_arms(engine, [_case("short", max_tokens=20)], ("none", "copy"), model="m", repeats=1, recorder=recorder)
    run_arms(engine, [_case("cut", max_tokens=10)], ("none", "copy"), model="m", repeats=1, recorder=recorder)
    by_arm = {(line["case"], line["arm"]): line for line in recorder.out.lines}
    assert by_arm["short", "copy"]["flags"] == ["count"]
    assert by_arm["short", "copy"]["ratio"] is None
    assert by_arm["cut", "copy"]["flags"] == []
    (summary,) = summarise(recorder.out.lines)
    assert summary.ratios is not None
    assert (summary.ratios.pairs, summary.flagged, summary.equal) == (1, 1, False)
    text = table([summary])
    assert "ratio of totals" in text
    assert "mean of per-prompt ratios" in text


def test_other_tokens_of_the_same_count_are_flagged(tmp_path: Path) -> None:
    engine = _engine(ids={"none": [1, 2, 3], "copy": [1, 2, 4]})
    recorder = _recorder(tmp_path / "r.jsonl")
    run_arms(engine, [_case()], ("none", "copy"), model="m", repeats=2, recorder=recorder)
    (summary,) = summarise(recorder.out.lines)
    assert (summary.ratios, summary.flagged, summary.equal) == (None, 2, False)
    assert "no" in table([summary])


def test_a_killed_run_goes_on_where_it_stopped(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    first = _engine(fail_after=2 + 2 * 2 + 1)  # warm-up, two rounds, and half of the third
    with pytest.raises(KeyboardInterrupt):
        run_arms(first, [_case()], ("none", "copy"), model="m", repeats=4, recorder=_recorder(path))
    with path.open("a") as file:
        file.write('{"kind": "run", "torn')  # what a kill in the middle of a write leaves
    second = _engine()
    recorder = _recorder(path)
    run_arms(second, [_case()], ("none", "copy"), model="m", repeats=4, recorder=recorder)
    assert len(second.calls) == 2 + 2 * 2
    assert [(line["repeat"], line["arm"]) for line in recorder.out.lines] == [
        (0, "none"), (0, "copy"), (1, "copy"), (1, "none"), (2, "none"), (2, "copy"), (3, "copy"), (3, "none"),
    ]  # fmt: skip
    third = _engine()
    run_arms(third, [_case()], ("none", "copy"), model="m", repeats=4, recorder=_recorder(path))
    assert third.calls == []


@pytest.mark.parametrize("between", [False, True])
def test_half_a_round_in_the_file_is_played_again_and_not_doubled(tmp_path: Path, between: bool) -> None:
    path = tmp_path / "r.jsonl"
    run_arms(_engine(), [_case()], ("none", "copy"), model="m", repeats=2, recorder=_recorder(path))
    lines = path.read_text().splitlines(keepends=True)
    other = ['{"kind": "other"}\n'] if between else []
    path.write_text("".join([*lines[:3], *other, '{"arm": "no']))  # as a kill in the middle of a long write leaves it
    recorder = _recorder(path)
    run_arms(_engine(), [_case()], ("none", "copy"), model="m", repeats=2, recorder=recorder)
    expected = [(0, "none"), (0, "copy"), (1, "copy"), (1, "none")]
    assert [(line["repeat"], line["arm"]) for line in recorder.out.lines if line["kind"] == "run"] == expected
    assert ResultFile(path).lines == recorder.out.lines
    assert [line["kind"] for line in recorder.out.lines].count("other") == between
    assert [path.name for path in tmp_path.iterdir()] == ["r.jsonl"]


def test_a_full_disk_leaves_no_part_of_a_group(tmp_path: Path) -> None:
    resource = pytest.importorskip("resource")
    path = tmp_path / "r.jsonl"
    out = ResultFile(path)
    out.append([{"a": 1}])
    before = path.read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with pytest.raises(OSError, match=r"r\.jsonl"):
            out.append([{"b": "x" * 700}, {"c": "y" * 700}])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert path.read_bytes() == before
    out.append([{"d": 2}])
    assert ResultFile(path).lines == out.lines == ({"a": 1}, {"d": 2})


def test_other_work_of_the_same_name_is_measured_again(tmp_path: Path) -> None:
    recorder = _recorder(tmp_path / "r.jsonl")
    run_arms(_engine(), [_case()], ("none", "copy"), model="m", repeats=1, recorder=recorder)
    longer = _engine()
    run_arms(longer, [_case(max_tokens=30)], ("none", "copy"), model="m", repeats=1, recorder=recorder)
    assert longer.calls[2:] == [("none", 30), ("copy", 30)]


def test_only_the_newest_configuration_is_summarised(tmp_path: Path) -> None:
    recorder = _recorder(tmp_path / "r.jsonl")
    run_arms(_engine(), [_case()], ("none", "copy"), model="m", repeats=1, recorder=recorder)
    old = [{**line, "config": "older", "decode_s": 9.0} for line in recorder.out.lines]
    (summary,) = summarise(latest([*old, *recorder.out.lines]))
    assert summary.ratios is not None
    assert (summary.ratios.pairs, summary.base_tokens_per_s) == (1, pytest.approx(25.0))


def test_lines_tell_where_they_come_from(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    run_arms(_engine(), [_case()], ("none", "copy"), model="m", repeats=1, recorder=_recorder(path))
    line = json.loads(path.read_text().splitlines()[0])
    origin = line["provenance"]
    assert set(origin) >= {
        "command", "git_commit", "versions", "cpu_model", "cpu_flags", "load_average", "threads", "date", "code",
    }  # fmt: skip
    assert origin["versions"]["numba"]
    assert origin["threads"] == 1
    assert collect(threads=1, argv=["/somewhere/exactspec", "bench", "/a/b.txt"]).command == "exactspec bench b.txt"
    assert collect(threads=1).config != collect(threads=2).config


def test_provenance_of_a_run_stays_that_of_its_start() -> None:
    start = collect(threads=1)
    later = now(start)
    assert later.config == start.config
    assert replace(later, date=start.date, load_average=start.load_average) == start
    assert replace(start, code="other").config != start.config


def test_damaged_result_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    path.write_text('{"a": 1}\nnot json\n{"a": 2}\n')
    with pytest.raises(ValueError, match=r"r\.jsonl, line 2"):
        ResultFile(path)


@pytest.mark.parametrize("arms", [("none",), (), ("none", "none")])
def test_arms_must_be_two_and_differ(tmp_path: Path, arms: tuple[str, ...]) -> None:
    with pytest.raises(ValueError):
        run_arms(_engine(), [_case()], arms, model="m", repeats=1, recorder=_recorder(tmp_path / "r.jsonl"))


def test_the_real_engine_is_measured(tmp_path: Path) -> None:
    engine = Engine(hash_target(order=1), IdTokenizer(97))
    recorder = _recorder(tmp_path / "r.jsonl")
    case = Case(id="a", ids=(3, 1, 4, 1, 5), params=SamplingParams(max_tokens=120), meta={"workload": "w", "size": 5})
    run_arms(engine, [case], ("none", "copyspec", "copy", "auto"), model="m", repeats=2, recorder=recorder)
    lines = recorder.out.lines
    assert len(lines) == 8
    assert {line["tokens_sha256"] for line in lines} == {lines[0]["tokens_sha256"]}
    assert {line["completion_tokens"] for line in lines} == {120}
    steps = {line["arm"]: line["num_steps"] for line in lines}
    assert steps["none"] == 120
    assert steps["copy"] < 60
    assert all(not line["flags"] and line["ratio"] > 0 for line in lines)
