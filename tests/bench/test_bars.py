"""The bars are computed from what was measured, and the drafter's own cost from a replay."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from bench.fakes import Clock, FakeEngine
from scripted import Oracle

from exactspec.bench.bar import Bar
from exactspec.bench.bars import Bench, demo_bar, propose_bar
from exactspec.bench.propose import drafter_cost
from exactspec.bench.provenance import collect
from exactspec.bench.recorder import Recorder
from exactspec.bench.report import markdown
from exactspec.bench.speed_bars import Effort
from exactspec.bench.store import ResultFile
from exactspec.cli.main import main
from exactspec.cli.services import Services
from exactspec.drafters.base import Context, DraftBudget
from exactspec.drafters.copy import CopyDrafter
from exactspec.tree import DraftTree


class Slow(Oracle):
    """Takes 30 us to propose, by a clock of its own."""

    def __init__(self, text: list[int], clock: Clock) -> None:
        super().__init__(text)
        self.clock = clock

    def draft(self, history: list[int], budget: DraftBudget) -> DraftTree:
        self.clock.now += 30e-6
        return super().draft(history, budget)


def test_drafter_cost_is_the_drafters_alone() -> None:
    text = np.random.default_rng(0).integers(0, 97, 500).tolist()
    clock = Clock()
    cost = drafter_cost(Slow(text, clock), text, history=200, clock=clock)
    assert cost.propose_us == pytest.approx(30, rel=1e-3)
    assert cost.commit_us == 0
    assert cost.tau == pytest.approx(300 / cost.steps)
    assert 8 < cost.tau <= 9  # the oracle drafts 8, the target adds one
    with pytest.raises(ValueError, match="must follow"):
        drafter_cost(Slow(text, clock), text, history=500)


def test_copy_drafter_finds_what_comes_back() -> None:
    text = np.random.default_rng(1).integers(0, 5000, 600).tolist()
    cost = drafter_cost(CopyDrafter(), [*text, *text[200:400]], history=600)
    assert cost.tau > 4
    again = CopyDrafter().begin(Context(np.array(text), np.empty(0, dtype=np.int64), None))  # type: ignore[arg-type]
    assert again is not None


def _bench(engine: FakeEngine, path: Path) -> Bench:
    return Bench(
        open_engine=lambda model, draft_models=(): engine,
        model_path=lambda model: Path(model),
        recorder=Recorder(ResultFile(path), lambda: collect(threads=1), lambda text: None),
        threads=1,
        effort=Effort(rounds=3),
    )


@pytest.mark.parametrize(
    ("copy_ids", "copy_s", "passed"),
    [
        (range(30), 0.01, True),
        (range(30), 0.02, False),  # 2x is below the limit
        ([*range(29), 99], 0.01, False),  # fast, and wrong
        (range(20), 0.01, False),
    ],
)
def test_demo_bar(tmp_path: Path, copy_ids: Any, copy_s: float, passed: bool) -> None:
    prompt = tmp_path / "p.txt"
    prompt.write_text("repeat this\n")
    engine = FakeEngine(
        ids={"none": list(range(30)), "copy": list(copy_ids)}, s_per_token={"none": 0.04, "copy": copy_s}
    )
    bench = _bench(engine, tmp_path / "r.jsonl")
    bar = bench.record(demo_bar(bench, engine, prompt))
    assert bar.passed is passed
    assert bench.recorder.out.lines[-1]["passed"] is passed
    if passed:
        assert bar.value == pytest.approx(4.0)


def test_bar_limits() -> None:
    bar = Bar(name="b", value=50.0, limit=50.0, unit="us", sense="below", detail="")
    assert not bar.passed
    assert replace(bar, value=49.9).passed
    assert (bar.told_value, bar.told_limit) == ("50.0 us", "< 50.0 us")
    most = Bar(name="b", value=2.0, limit=2.0, unit="s", sense="at most", detail="")
    assert most.passed
    assert not replace(most, value=2.01).passed
    assert replace(most, value=2.01, otherwise=True).passed
    assert not replace(most, equal=False, otherwise=True).passed
    assert most.told_limit == "<= 2.00 s"
    ratio = Bar(name="b", value=0.95, limit=0.95, unit="x", equal=True, detail="")
    assert ratio.passed
    assert not replace(ratio, equal=False).passed
    assert not replace(ratio, value=0.949).passed


def test_proposal_time_bar_takes_the_slowest_length() -> None:
    class Letters:
        def encode(self, text: str) -> list[int]:
            return list(text.encode())

    bar = propose_bar(Letters(), CopyDrafter())  # type: ignore[arg-type]
    assert bar.unit == "us"
    assert 0 < bar.value < 5000
    assert bar.detail.count("propose") == 3


def _command(*words: str, engine: FakeEngine) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    services = Services(stdin=io.BytesIO(), stdout=out, stderr=err, open_engine=lambda name, **options: engine)  # type: ignore[arg-type,return-value]
    return main(["bench", *words], services=services), out.getvalue(), err.getvalue()


def test_run_and_table_commands(tmp_path: Path) -> None:
    ids = list(range(40))
    engine = FakeEngine(ids={"none": ids, "auto": ids}, s_per_token={"none": 0.02, "auto": 0.01})
    file = str(tmp_path / "r.jsonl")
    words = ["run", "-m", "fake", "--workloads", "false_friend", "--sizes", "2048", "--seeds", "1", "--repeats", "2"]
    code, out, err = _command(*words, "--arms", "none,auto", "--out", file, engine=engine)
    assert (code, "round 2/2" in err) == (0, True)
    row = out.splitlines()[2].split("|")
    assert [cell.strip() for cell in row[1:8]] == ["fake", "false_friend", "2048", "auto", "2", "0", "yes"]
    assert row[12].strip() == "2.00"
    assert _command("table", file, engine=engine)[1] == out


def test_questions_are_run_and_resumed(tmp_path: Path) -> None:
    ids = list(range(40, 80))
    questions, file = tmp_path / "mt.jsonl", str(tmp_path / "r.jsonl")
    rows = [{"question_id": i, "category": "ab"[i % 2], "turns": ["say it", "again"]} for i in range(4)]
    questions.write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = ["run", "-m", "fake", "--questions", str(questions), "--turns", "first,second", "--per-category", "1"]
    words += ["--arms", "plain,auto", "--rounds", "2", "--max-tokens", "12", "--out", file]
    engine = FakeEngine(ids={"none": ids, "auto": ids}, s_per_token={"none": 0.02, "auto": 0.01})
    code, out, err = _command(*words, engine=engine)
    assert code == 0, err
    assert "(8/8, 0 s left)" in err
    rows_of = [[cell.strip() for cell in line.split("|")[1:-1]] for line in out.splitlines() if "| fake" in line]
    assert [row[1] for row in rows_of] == [
        "mt first", "mt second", "mt first: a", "mt second: a", "mt first: b", "mt second: b",
    ]  # fmt: skip
    assert all(row[4] == ("4" if ":" not in row[1] else "2") for row in rows_of)
    again = FakeEngine(ids={"none": ids, "auto": ids}, s_per_token={"none": 0.02, "auto": 0.01})
    assert _command(*words, engine=again)[:2] == (0, out)
    assert (again.calls, again.read) == ([], [])
    assert _command("table", file, engine=engine)[1] == out
    more = _command(*words, "--replay", engine=again)[1]
    assert again.calls == []
    assert more.count("| own ") == 4
    assert "mt second" in more


def test_two_runs_do_not_write_one_file(tmp_path: Path) -> None:
    ids = list(range(40))
    engine = FakeEngine(ids={"none": ids, "auto": ids}, s_per_token={"none": 0.02, "auto": 0.01})
    file = tmp_path / "r.jsonl"
    words = ["run", "-m", "fake", "--workload", "false_friend", "--size", "2048", "--seeds", "1", "--arms", "none,auto"]
    other = ResultFile(file)
    other.claim()
    code, _, err = _command(*words, "--out", str(file), engine=engine)
    assert (code, "r.jsonl is being written by another run" in err.splitlines()[-1]) == (2, True)
    assert engine.calls == []
    other.release()
    for _ in range(2):
        assert _command(*words, "--out", str(file), engine=engine)[0] == 0


def test_prompts_that_leave_no_room_are_said_before_others_are_measured(tmp_path: Path) -> None:
    engine: Any = FakeEngine(ids={"none": [1], "auto": [1]}, s_per_token={"none": 1.0, "auto": 1.0})
    engine.target = SimpleNamespace(max_length=2048)
    words = ["run", "-m", "fake", "--workload", "false_friend", "--arms", "none,auto"]
    code, _, err = _command(*words, "--sizes", "512,2048", "--out", str(tmp_path / "r"), engine=engine)
    assert (code, engine.calls) == (2, [])
    assert "2048 tokens leave no room in the context of fake, 2048 tokens" in err.splitlines()[-1]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("notes on one line", "is not a JSON object"),
        ('{"kind": "run"}\n', "a line that this version's 'exactspec bench' does not write"),
        ('{"kind": "replay", "model": 3}\n', "does not write"),
        ('{"kind": "forward", "model": []}\n', "does not write"),
        ('{"kind": 7}\n', "holds no runs"),
        ("", "holds no runs"),
    ],
)
def test_a_table_of_something_else_is_one_line(tmp_path: Path, content: str, message: str) -> None:
    file = tmp_path / "other.jsonl"
    file.write_text(content)
    code, out, err = _command("table", str(file), engine=FakeEngine(ids={"none": [1]}, s_per_token={"none": 1.0}))
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert message in err
    assert file.read_text() == content


def test_a_table_may_compare_with_another_arm(tmp_path: Path) -> None:
    file = tmp_path / "runs.jsonl"
    ids = list(range(40))
    engine: Any = FakeEngine(
        ids=dict.fromkeys(("none", "copy", "auto"), ids), s_per_token={"none": 0.04, "copy": 0.02, "auto": 0.01}
    )
    words = ["run", "-m", "fake", "--workload", "no_copy", "--size", "512", "--seeds", "1", "--rounds", "2"]
    assert _command(*words, "--arms", "plain,copy,auto", "--out", str(file), engine=engine)[0] == 0

    def speed_ups(*options: str) -> dict[str, str]:
        code, out, _ = _command("table", str(file), *options, engine=engine)
        assert code == 0
        return {cells[4].strip(): cells[12].strip() for cells in (row.split("|") for row in out.splitlines()[2:])}

    assert speed_ups() == {"copy": "2.00", "auto": "4.00"}
    assert speed_ups("--baseline", "copy") == {"none": "0.50", "auto": "2.00"}
    code, out, err = _command("table", str(file), "--baseline", "plain", engine=engine)
    assert (code, out) == (2, "")
    assert "no run has an arm 'plain': give one of auto, copy, none" in err


def test_cells_keep_to_their_line_and_column() -> None:
    told = markdown(("a", "b"), [("x|y", "one\ntwo \ud800")])
    assert told.splitlines()[2] == "| x\\|y | one two ? |"
    told.encode()


def test_a_prompt_is_read_once_if_asked(tmp_path: Path) -> None:
    ids = list(range(40))
    engine = FakeEngine(ids={"none": ids, "auto": ids}, s_per_token={"none": 0.02, "auto": 0.01})
    words = [
        "run",
        "-m",
        "fake",
        "--workload",
        "false_friend",
        "--size",
        "2048",
        "--seeds",
        "1",
        "--arms",
        "plain,auto",
    ]
    out = ["--out", str(tmp_path / "r.jsonl")]
    assert _command(*words, *out, engine=engine)[0] == 0
    assert engine.read == []  # every request read it anew
    assert _command(*words, *out, "--prompt-once", engine=engine)[0] == 0
    assert sum(read > 1000 for _, read in engine.read) == 1


def test_bars_without_questions_are_left_out_or_refused(tmp_path: Path) -> None:
    engine = FakeEngine(ids={"none": [1]}, s_per_token={"none": 1.0})
    out = ["--out", str(tmp_path / "r.jsonl")]
    code, _, err = _command("bars", "--only", "mt-second,edit-1k", *out, engine=engine)
    assert (code, "mt-second need questions" in err) == (2, True)
    code, _, err = _command("bars", "--questions", str(tmp_path / "none"), *out, engine=engine)
    assert (code, "is no file" in err) == (2, True)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["run", "--arms", "none,fast"], "draft must be one of"),
        (["run", "--arms", "none,llama.cpp:ngram"], "is no arm"),
        (["run", "--questions", "no-such-file"], "is no file"),
        (["run", "--turns", "third"], "none of first"),
        (["run", "--per-category", "0"], "--per-category must be at least 1"),
        (["run", "--equal-rows"], "is for --replay"),
        (["run", "--workloads", "nothing"], "none of no_copy"),
        (["run", "--arms", "none,none"], "names one twice"),
        (["run", "--arms", "none"], "at least two draft modes"),
        (["run", "--sizes", "big"], "not a number"),
        (["run", "--repeats", "0"], "at least 1"),
        (["run", "--temperature", "-1"], "at least 0"),
        (["run", "--threads", "0"], "at least 1"),
        (["table", "no-such-file"], "is no file"),
        (["bars", "--only", "speed"], "none of demo"),
        (["bars", "--only", "demo", "--demo-prompt", "no-such-file"], "is no file"),
        (["bars", "--only", "perplexity", "--text", "no-such-file"], "is no file"),
        (["bars", "--only", "rows-4", "--repeats", "0"], "at least 1"),
        (["bars", "--only", "controls", "--models", "qwen2.5-coder-1.5b"], "no bar is measured"),
    ],
)
def test_mistakes_are_one_line(tmp_path: Path, words: list[str], message: str) -> None:
    engine = FakeEngine(ids={"none": [1]}, s_per_token={"none": 1.0})
    out = [] if words[0] == "table" else ["--out", str(tmp_path / "r.jsonl")]
    code, _, err = _command(*words, *out, engine=engine)
    assert code == 2
    assert message in err.splitlines()[-1]
    assert "Traceback" not in err


def test_what_is_missing_is_said_before_anything_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("exactspec.cli.bench_bars.find_spec", lambda module: None if module == "llama_cpp" else module)
    engine = FakeEngine(ids={"none": [1]}, s_per_token={"none": 1.0})
    code, _, err = _command("bars", "--only", "propose,prefill,peer", "--out", str(tmp_path / "r"), engine=engine)
    assert code == 2
    assert "prefill, peer cannot be measured without llama_cpp: pip install 'exactspec[peers]'" in err
