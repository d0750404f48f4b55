"""Contests of servers, as processes: what is measured, compared, kept and said."""

from __future__ import annotations

import io
import os
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from bench.test_contest import recorder_of
from scripted import ByteTokenizer, hash_target

from exactspec.bench.bars import BARS, PEER_MODELS
from exactspec.bench.case import Case
from exactspec.bench.peers.error import PeerError
from exactspec.bench.recorder import Recorder
from exactspec.bench.runner import contest
from exactspec.bench.runtime_bars import MIDDLE
from exactspec.bench.serving import bars, contests, processes
from exactspec.bench.serving.bars import ServeTools, Sizes, serve_bars
from exactspec.bench.serving.cases import plain_cases
from exactspec.bench.serving.client import UNSEEN, Client
from exactspec.bench.serving.contests import Serving, measure_load, measure_overhead
from exactspec.bench.serving.dialects import LlamaServer
from exactspec.bench.serving.processes import ServerProcess, llama_server, our_server
from exactspec.bench.serving.report import groups, overhead_percent, tables, turn_percent, wrong
from exactspec.bench.serving.steps import FullStep
from exactspec.bench.serving.turns import COLD, SECOND, measure_turns
from exactspec.bench.store import ResultFile
from exactspec.cli.main import main
from exactspec.cli.services import Services
from exactspec.engine import Engine

HERE = Path(__file__).parent
PROGRAM = (sys.executable, str(HERE / "tiny_server.py"))


@pytest.fixture(autouse=True)
def children_find_the_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(HERE.parents[1]), os.environ.get("PYTHONPATH", "")]))


@pytest.fixture
def llama(tmp_path: Path) -> str:
    """The fake as a program."""
    path = tmp_path / "llama-server"
    path.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{HERE / "fake_llama_server.py"}" "$@"\n')
    path.chmod(0o755)
    return str(path)


def engine() -> Engine:
    return Engine(hash_target(vocab_size=260, max_length=20_000), ByteTokenizer(eos=()))


Start = Callable[..., tuple[Serving, Recorder]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    opened: list[ServerProcess] = []

    def run(model: str = "tiny", *, peer: ServerProcess | None = None) -> tuple[Serving, Recorder]:
        recorder, library = recorder_of(tmp_path / "r.jsonl"), engine()
        opened.append(our_server(model, threads=1, program=PROGRAM))
        opened.extend([] if peer is None else [peer])
        at = Serving(
            on=contest(library, model=MIDDLE, recorder=recorder),
            server=opened[0],
            recorder=recorder,
            identity=library.identity,
            peer=peer,
            settle_s=0.0,
        )
        return at, recorder

    yield run
    for process in opened:
        process.close()
        assert not process.running


def cases(n: int = 4) -> list[Case]:
    return plain_cases(ByteTokenizer(), n, max_tokens=24)


def test_a_load_is_compared_with_lone_runs_and_goes_on_where_it_stopped(start: Start, llama: str) -> None:
    peer = llama_server(llama, Path("x/model.gguf"), threads=1, slots=2, context=512)
    at, recorder = start(peer=peer)
    works = measure_load(at, "plain", cases(), clients=2, rounds=2, full_step=True)
    lines = [line for line in recorder.out.lines if line["kind"] == "serve"]
    arms = ["1 client", "2 clients", "llama-server"]
    assert [(line["arm"], line["repeat"]) for line in lines] == [
        *((arm, 0) for arm in arms),
        *((arm, 1) for arm in reversed(arms)),
    ]
    assert {line["work"] for line in lines} == set(works)
    assert all(line["completion_tokens"] == 4 * 24 and not line["flags"] for line in lines)
    ours = [line for line in lines if line["arm"] != "llama-server"]
    assert [line["wrong_replies"] for line in ours] == [0] * 4
    assert all(line["tau"] >= 1 and line["decode_s"] > 0 and line["gap_p99_s"] >= line["gap_p50_s"] for line in ours)
    (theirs, _) = [line for line in lines if line["arm"] == "llama-server"]
    assert theirs["peer"]["version"] == "version: 1 (fake)"
    assert theirs["peer"]["options"][:4] == ["--parallel", "2", "--ctx-size", "1024"]
    assert "wrong_replies" not in theirs
    steps = [line for line in lines if "step_s" in line]
    assert {line["arm"] for line in steps} == {"2 clients"}
    assert all(line["step_rows"] == 64 and line["step_s"] > 0 for line in steps)
    before = len(recorder.out.lines)
    measure_load(at, "plain", cases(), clients=2, rounds=2, full_step=True)
    assert len(recorder.out.lines) == before
    (group,) = groups(recorder.out.lines, contests.LOAD)
    assert wrong(group) == 0
    faster = group.ratios("1 client", "2 clients")
    assert faster is not None
    assert faster.pairs == 2
    text = tables(recorder.out.lines)
    assert "to llama-server" in text
    assert text.count("\n") == 4


def test_a_wrong_answer_is_counted(start: Start) -> None:
    at, recorder = start("wrong")
    measure_load(at, "plain", cases(), clients=2, rounds=1, full_step=False)
    (group,) = groups(recorder.out.lines, contests.LOAD)
    assert wrong(group) > 0
    (one, *_) = measure_overhead(at, cases(1), ["none"], rounds=3) and groups(recorder.out.lines, contests.OVERHEAD)
    assert one.flagged(contests.SERVER) > 0


def test_another_identity_is_an_error(start: Start) -> None:
    at, _ = start("other")
    with pytest.raises(PeerError, match="identity 'list-target/2'"):
        measure_load(at, "plain", cases(), clients=2, rounds=1, full_step=False)


def test_overhead_is_of_the_same_tokens(start: Start) -> None:
    at, recorder = start()
    measure_overhead(at, cases(2), ["none", "copy"], rounds=2)
    both = groups(recorder.out.lines, contests.OVERHEAD)
    assert [group.workload for group in both] == ["plain-0 none", "plain-1 copy"]
    for group in both:
        assert not group.flagged(contests.SERVER)
        found = overhead_percent(group)
        assert found is not None
        assert found[1] <= found[0] <= found[2]
        assert found[0] > 0  # the library's forwards do not sleep a millisecond, the server's do
        assert group.of(contests.SERVER)[0]["tokens_sha256"] == group.of(contests.LIBRARY)[0]["tokens_sha256"]
    assert [line["tau"] for line in both[0].of(contests.LIBRARY)] == [1.0, 1.0]


def test_a_second_turn_finds_the_first_and_a_cold_one_nothing(start: Start) -> None:
    at, recorder = start()
    measure_turns(at, history=3000, rounds=2)
    (group,) = groups(recorder.out.lines, contests.TURN)
    for cold, second in zip(group.of(COLD), group.of(SECOND), strict=True):
        assert cold["cached_tokens"] < 200
        assert second["cached_tokens"] > 2700
        assert 2800 < cold["prompt_tokens"] < 4000
    found = turn_percent(group)
    assert found is not None
    assert 0 < found[0] < 100


def test_full_steps_share_rows_and_leave_contexts_alone() -> None:
    target, now = hash_target(vocab_size=260), [0.0]

    def clock() -> float:
        now[0] += 0.25
        return now[0]

    step = FullStep(target, [[1, 2, 3], [4] * 300], [[5] * 40, [6] * 40], rows=64, clock=clock)
    for _ in range(2):
        target.rows.clear()
        assert step.figures(2) == {"step_rows": 64, "step_s": 0.25, "step_tokens_per_s": 256.0}
        assert target.rows == [64] * 4  # each timed one behind one that is not
        assert [cache.length for cache, _ in step._parts] == [3, 300]
    with pytest.raises(ValueError, match="shared out equally"):
        FullStep(target, [[1]] * 3, [[1] * 64] * 3, rows=64)
    with pytest.raises(ValueError, match="32 ids"):
        FullStep(target, [[1]] * 2, [[1] * 32, [1] * 31], rows=64)


def test_servers_that_do_not_start(llama: str, tmp_path: Path) -> None:
    with pytest.raises(PeerError, match=r"ended by itself: .*--max-running"):
        our_server("tiny", threads=1, options=["--max-running", "0"], program=PROGRAM)
    with pytest.raises(PeerError, match="unable to load model"):
        llama_server(llama, Path("broken"), threads=1, slots=1, context=64)
    with pytest.raises(PeerError, match="cannot be run"):
        llama_server(str(tmp_path / "nothing"), Path("m"), threads=1, slots=1, context=64)
    with pytest.raises(PeerError, match="in time"):
        ServerProcess([sys.executable, "-c", "import time; time.sleep(60)"], port=1, ready_s=0.3)


@pytest.mark.parametrize(("model", "flag"), [("short", ["count"]), ("failing", None)])
def test_a_peer_that_misbehaves_enters_no_ratio(start: Start, llama: str, model: str, flag: list[str] | None) -> None:
    at, recorder = start(peer=llama_server(llama, Path(model), threads=1, slots=2, context=512))
    if flag is None:
        with pytest.raises(PeerError, match="out of slots"):
            measure_load(at, "plain", cases(), clients=2, rounds=1, full_step=False)
        return
    measure_load(at, "plain", cases(), clients=2, rounds=1, full_step=False)
    (group,) = groups(recorder.out.lines, contests.LOAD)
    assert group.of("llama-server")[0]["flags"] == flag
    assert group.ratios("llama-server", "2 clients") is None


def test_tokens_that_a_peer_does_not_show_are_counted(llama: str) -> None:
    with llama_server(llama, Path("characters"), threads=1, slots=1, context=512) as peer:
        (case,) = cases(1)
        reply = Client(port=peer.port, dialect=LlamaServer()).ask(case)
    last = case.ids[-1]
    assert reply.token_ids == (last + 1, last + 2, *range(last + 4, last + 25), UNSEEN)
    assert sum(n for _, n in reply.arrivals) == 24


def test_bars(start: Start, llama: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert set(bars.LIMITS) <= set(BARS)
    assert all(set(limits) <= set(PEER_MODELS) for limits in bars.LIMITS.values())
    monkeypatch.setattr(bars, "copy_cases", lambda tokenizer, n, **_: [replace(c, id=f"copy-{c.id}") for c in cases(n)])
    recorder, library = recorder_of(tmp_path / "bars.jsonl"), engine()
    sizes = Sizes(clients=2, requests=4, rounds=1, plain_tokens=24, history=3000)
    assert sizes.slot_tokens == 1536
    tools = ServeTools(
        server=lambda model: our_server("tiny", threads=1, program=PROGRAM),
        peer=lambda model, s: llama_server(llama, Path("m"), threads=1, slots=s.clients, context=s.slot_tokens),
        sizes=sizes,
    )
    on = contest(library, model=MIDDLE, recorder=recorder)
    found = {bar.name: bar for bar in serve_bars(on, list(bars.LIMITS), tools=tools, recorder=recorder)}
    assert [re.sub(r": .*", "", name) for name in found] == [
        "2 clients, plain text, to one",
        "2 clients, copy-heavy, to full steps",
        "2 clients, plain, to llama.cpp's server",
        "2 clients, copy, to llama.cpp's server",
        "what the server adds to the library, one stream",
        "first token of a second turn, to the cold one",
    ]
    assert [bar.limit for bar in found.values()] == [4.0, 80.0, 2.5, 2.5, 3.0, 15.0]
    assert all(bar.value > 0 and bar.equal is not False for bar in found.values())
    again = list(serve_bars(on, ["serve-plain", "serve-peer"], tools=replace(tools, peer=None), recorder=recorder))
    assert len(again) == 1  # without a peer its bar is left out
    other = contest(library, model="another", recorder=recorder)
    assert list(serve_bars(other, list(bars.LIMITS), tools=tools, recorder=recorder)) == []


def test_a_wrong_answer_fails_the_bars_on_rates(tmp_path: Path) -> None:
    recorder = recorder_of(tmp_path / "bars.jsonl")
    tools = ServeTools(
        server=partial(lambda model: our_server("wrong", threads=1, program=PROGRAM)),
        peer=None,
        sizes=Sizes(clients=2, requests=4, rounds=1, plain_tokens=24),
    )
    on = contest(engine(), model=MIDDLE, recorder=recorder)
    (bar,) = serve_bars(on, ["serve-plain"], tools=tools, recorder=recorder)
    assert bar.equal is False
    assert not bar.passed


def test_unknown_sizes() -> None:
    values: dict[str, Any] = {"sizes": (512,), "copy_tokens": 100, "plain_tokens": 64}
    assert Sizes(**values).slot_tokens == 768
    assert Sizes(sizes=(1,), copy_tokens=1, plain_tokens=300).slot_tokens == 768


def cli(*argv: str) -> tuple[int, str, str]:
    """The command line with the tiny model as the library; the servers it starts are the real program."""
    out, err = io.StringIO(), io.StringIO()
    services = Services(stdin=io.BytesIO(), stdout=out, stderr=err, open_engine=lambda name, **options: engine())
    return main(["bench", *argv], services=services), out.getvalue(), err.getvalue()


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (("serve", "--only", "plain,other"), "--only: 'other' is none of plain, copy, overhead, turn"),
        (("serve", "--clients", "4", "--requests", "3"), "--requests must be at least --clients (4), got 3"),
        (("serve", "--rounds", "0"), "--rounds must be at least 1, got 0"),
        (("serve", "--sizes", "x"), "--sizes must be whole numbers with commas between, got 'x'"),
        (("serve", "--peer", "no-such-program"), "there is no program no-such-program"),
        (("soak", "--minutes", "0"), "a soak needs a client, some time"),
        (("soak", "--disconnects", "2"), "a soak needs a client, some time"),
        (("soak", "--clients", "0"), "--clients must be at least 1, got 0"),
        (("bars", "--only", "serve-peer"), "serve-peer need llama.cpp's server: say where it lies with --peer-server"),
    ],
)
def test_mistakes_are_one_line(tmp_path: Path, argv: tuple[str, ...], said: str) -> None:
    code, out, err = cli(*argv, "--out", str(tmp_path / "r.jsonl"))
    assert (code, out) == (2, "")
    assert said in err.splitlines()[-1]


def test_commands_measure_and_print(tmp_path: Path, llama: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "EXACTSPEC", PROGRAM)
    where = str(tmp_path / "r.jsonl")
    size = ("--clients", "2", "--rounds", "1", "--plain-tokens", "12", "--threads", "1", "--out", where)
    code, out, err = cli("serve", "-m", "tiny", "--only", "plain", *size)
    assert code == 0, err
    assert "| tiny " in out
    assert cli("table", where)[1] == out
    code, out, err = cli("serve", "-m", "wrong", "--only", "plain", *size)
    assert code == 1
    assert "answers were not those of a lone run" in err
    soak = ("soak", "-m", "tiny", "--minutes", "0.03", "--clients", "2", "--max-tokens", "12", "--seeds", "1")
    monkeypatch.setattr("exactspec.bench.serving.cases.copy_cases", lambda *_, **__: [])
    code, out, err = cli(*soak, "--context", "4000", "--cache-mb", "10", "--threads", "1", "--out", where)
    assert code == 0, err + out
    assert out.startswith("soak of tiny held: ")
    (line,) = [line for line in ResultFile(tmp_path / "r.jsonl").lines if line["kind"] == "soak"]
    assert line["held"] is True
    assert line["wrong"] == 0
    assert line["questions"] == 8
