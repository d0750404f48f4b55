"""Forwards timed by rows and context: what is timed, in which order, what the figures are, and what a stop leaves."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from bench.fakes import Clock
from tiny_weights import RandomWeights

from exactspec.bench import kernels, kernels_report, prefill
from exactspec.bench.kernels import Plan
from exactspec.bench.peaks import Peaks
from exactspec.bench.peers.error import PeerError
from exactspec.bench.plot import plot
from exactspec.bench.provenance import collect
from exactspec.bench.store import Line, ResultFile
from exactspec.bench.work import attention_work, product_work
from exactspec.cli.main import main
from exactspec.cli.services import Services
from exactspec.target.base import Segment
from exactspec.target.exact import ExactTarget

PEAKS = Peaks(read_gb_per_s=20.0, products_per_ns=100.0, tile_rows=4, fma_per_ns=50.0)


@pytest.fixture(scope="module")
def target() -> ExactTarget:
    return ExactTarget(RandomWeights(), threads=2, context=700)


class SlowTarget:
    """A target whose forwards move a clock: a second, a tenth more per row, a thousandth per token before them."""

    def __init__(self, target: ExactTarget, clock: Clock, log: list[tuple[str, int, int]]) -> None:
        self.target, self.clock, self.log = target, clock, log
        self.fail_after: int | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.target, name)

    def forward(self, segments: Sequence[Segment]) -> Any:
        (segment,) = segments
        if self.fail_after is not None and len(self.log) >= self.fail_after:
            raise KeyboardInterrupt
        self.log.append(("ours", segment.cache.length, len(segment.tokens)))
        self.clock.now += 1 + 0.1 * len(segment.tokens) + 0.001 * segment.cache.length
        return self.target.forward(segments)


class SlowPeer:
    """Four seconds an evaluation, two more per row; 0.02 s per prompt token, more in large batches."""

    def __init__(self, log: list[tuple[str, int, int]]) -> None:
        self.log = log
        self.filled: dict[int, tuple[list[int], int]] = {}
        self.batches: list[int] = []

    def fill(self, ids: Sequence[int], *, rows: int) -> None:
        self.filled[len(ids)] = (list(ids), rows)

    def time_rows(self, context: int, counts: Sequence[int], tokens: Sequence[int]) -> list[float]:
        assert max(counts) <= min(len(tokens), self.filled[context][1])
        self.log += [("peer", context, count) for count in counts]
        return [4.0 + 2 * count for count in counts]

    def prefill(self, ids: Sequence[int], *, batch: int) -> float:
        self.batches.append(batch)
        return 0.02 * len(ids) * (1 if batch == 512 else 3)


class Bench:
    def __init__(self, target: ExactTarget, path: Path, *, with_peer: bool = True) -> None:
        self.clock, self.log, self.notes = Clock(), [], []
        self.target: Any = SlowTarget(target, self.clock, self.log)
        self.peer = SlowPeer(self.log)
        self.out = ResultFile(path)
        self.tools = kernels.Tools(
            out=self.out,
            provenance=lambda: collect(threads=2),
            progress=self.notes.append,
            peaks=lambda: PEAKS,
            peer=("fake", lambda: self.peer) if with_peer else None,
            clock=self.clock,
        )
        self.log: list[tuple[str, int, int]]
        self.notes: list[str]

    def measure(self, rows: Sequence[int] = (1, 4), contexts: Sequence[int] = (5, 600), repeats: int = 3) -> list[Line]:
        plan = Plan(model="m", rows=tuple(rows), contexts=tuple(contexts), repeats=repeats)
        return kernels.measure(self.target, plan, self.tools)


@pytest.fixture
def bench(target: ExactTarget, tmp_path: Path) -> Bench:
    return Bench(target, tmp_path / "r.jsonl")


def test_cells_are_medians_and_paired_ratios(bench: Bench) -> None:
    lines = bench.measure()
    found = {(cell.context, cell.rows): cell for cell in kernels_report.cells(lines)}
    assert list(found) == [(5, 1), (5, 4), (600, 1), (600, 4)]
    one, four = found[600, 1], found[600, 4]
    assert (one.milliseconds, four.milliseconds) == (pytest.approx(1700), pytest.approx(2000))
    assert (one.ratio.median, four.ratio.median) == (1.0, pytest.approx(2.0 / 1.7))
    assert four.ratio.pairs == 3
    assert four.peer_milliseconds == pytest.approx(12_000)
    assert four.peer_ratio is not None
    assert four.speed_up is not None
    assert (four.peer_ratio.median, four.speed_up.median) == (pytest.approx(2.0), pytest.approx(6.0))
    weights = bench.target.weight_bytes
    assert one.gb_per_s == pytest.approx(weights / 1.7e9)
    assert one.read_share == pytest.approx(weights / 1.7e9 / 20)
    config = bench.target.config
    assert four.products_share == pytest.approx(product_work(config, 4) / 2e9 / 100)
    assert four.attention_share == pytest.approx(attention_work(config, 4, 600) / 2e9 / 50)
    assert kernels_report.context_ratio(lines, 1, 600, 5).median == pytest.approx(1.7 / 1.105)


def test_one_row_is_timed_beside_every_cell_in_alternating_order(bench: Bench) -> None:
    bench.measure(rows=(4, 40), contexts=(5,), repeats=2)
    visits = [(who, rows) for who, context, rows in bench.log if context == 5]
    # Of a visit to one cell the first forward of ours is untimed; the first visits to a context are warm-up.
    even = [("ours", 1), ("ours", 1), ("ours", 4), ("peer", 1), ("peer", 4)]
    even += [("ours", 1), ("ours", 1), ("ours", 40), ("peer", 1), ("peer", 40)]
    odd = [("peer", 4), ("peer", 1), ("ours", 4), ("ours", 4), ("ours", 1)]
    odd += [("peer", 40), ("peer", 1), ("ours", 40), ("ours", 40), ("ours", 1)]
    assert visits == even + even + odd


def test_contexts_are_filled_once_with_the_same_ids_on_both_sides(bench: Bench) -> None:
    bench.measure(rows=(1,), contexts=(5, 600), repeats=4)
    filled = [(context, rows) for who, context, rows in bench.log if who == "ours" and rows > 1]
    assert filled == [(0, 5), (5, 256), (261, 256), (517, 83)]
    short, long = bench.peer.filled[5], bench.peer.filled[600]
    assert short[0] == long[0][:5]
    assert long[1] == 1


def test_contexts_hold_what_they_say(target: ExactTarget) -> None:
    """What is timed is a forward behind just these tokens, and it leaves them as they were."""
    ids = np.random.default_rng(0).integers(0, target.vocab_size, 300)
    forwards = kernels.Forwards(target, ids, [7, 300], Clock())
    forwards.time_rows(300, (1, 40), ids[:40])
    for context, cache in forwards._caches.items():
        assert cache.length == context
        (rows,) = target.forward([Segment.chain(cache, ids[:3])])
        seen = rows.hidden.copy()
        fresh = target.new_cache()
        target.forward([Segment.chain(fresh, ids[:context])])
        fresh.keep(range(context))
        (rows,) = target.forward([Segment.chain(fresh, ids[:3])])
        assert np.array_equal(seen, rows.hidden)


def test_a_stopped_run_goes_on_where_it_stopped(target: ExactTarget, tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    whole = Bench(target, tmp_path / "whole.jsonl", with_peer=False)
    whole.measure()
    first = Bench(target, path, with_peer=False)
    first.target.fail_after = len(whole.log) - 13  # in the second context of the second round
    with pytest.raises(KeyboardInterrupt):
        first.measure()
    held = [(line["repeat"], line["context"]) for line in first.out.lines]
    assert held == [(0, 5), (0, 600), (1, 5)]
    second = Bench(target, path, with_peer=False)
    lines = second.measure()
    assert [(line["repeat"], line["context"]) for line in lines] == [(r, c) for r in range(3) for c in (5, 600)]
    assert len(second.notes) == 1 + 3
    third = Bench(target, path, with_peer=False)
    assert third.measure() == lines
    assert third.log == []
    assert "measured before" in third.notes[-1]
    fourth = Bench(target, path)  # with a peer it is another measurement
    assert len(fourth.measure()) == 6
    assert fourth.log


def test_progress_tells_the_time_left(bench: Bench) -> None:
    bench.measure(rows=(1,), contexts=(5, 600), repeats=2)
    rounds = [note for note in bench.notes if "round" in note]
    # A round is two forwards: 2 x 1.105 s behind 5 tokens, 2 x 1.7 s behind 600.
    assert [note.rsplit("; ", 1)[1] for note in rounds] == ["7 s left", "6 s left", "3 s left", "done"]
    assert "context 600 round 1/2, ms by rows: 1: 1700.0" in rounds[1]


def test_lines_tell_where_they_come_from_and_limits_are_the_best_readings(bench: Bench) -> None:
    readings = iter([PEAKS, replace(PEAKS, read_gb_per_s=25.0), replace(PEAKS, products_per_ns=130.0, tile_rows=6)])
    bench.tools = replace(bench.tools, peaks=lambda: next(readings))
    lines = bench.measure(contexts=(5,))
    assert kernels_report.best_peaks(lines) == replace(PEAKS, read_gb_per_s=25.0, products_per_ns=130.0, tile_rows=6)
    assert all(line["provenance"]["cpu_flags"] and "load_average" in line["provenance"] for line in lines)
    assert json.loads(bench.out.path.read_text().splitlines()[0])["identity"] == bench.target.identity


def test_only_the_newest_configuration_is_told(bench: Bench) -> None:
    lines = bench.measure()
    old = [{**line, "config": "older"} for line in lines]
    assert kernels_report.newest([*old, {"kind": "run"}, *lines]) == lines
    again = {**lines[0], "weight_bytes": 1}
    assert kernels_report.newest([*lines, again])[0]["weight_bytes"] == 1


def test_the_table(bench: Bench) -> None:
    text = kernels_report.table(bench.measure())
    head, _, columns, _, *rows = text.splitlines()
    assert head.startswith("Memory reads 20.0 GB/s; multiply-adds in 1e9/s: 100 by the integer tile (4 rows), 50 float")
    assert "fake ms" in columns
    assert [cell.strip() for cell in rows[3].split("|")[1:7]] == ["m", "600", "4", "2000.00", "1.18", "1.18-1.18"]
    assert [cell.strip() for cell in rows[3].split("|")[-5:-1]] == ["12000.00", "2.00", "6.00", "6.00-6.00"]


def test_the_table_without_a_peer(target: ExactTarget, tmp_path: Path) -> None:
    lines = Bench(target, tmp_path / "r.jsonl", with_peer=False).measure()
    assert "ours" not in kernels_report.table(lines)
    assert kernels_report.cells(lines)[0].speed_up is None


def test_work_is_counted_by_hand(target: ExactTarget) -> None:
    c = target.config  # 64 hidden, 4 heads of 16, 2 of keys, 96 inner, 2 layers, 260 ids
    layer = 64 * 64 + 2 * 64 * 32 + 64 * 64 + 3 * 64 * 96
    assert product_work(c, 3) == 3 * (2 * layer + 260 * 64)
    assert attention_work(c, 2, 10) == 2 * 2 * 4 * 16 * (11 + 12)


def test_windows_bound_what_a_row_sees() -> None:
    class Windowed:
        num_layers, num_heads, head_dim, layer_windows = 2, 1, 1, (0, 4)

    assert attention_work(Windowed, 2, 3) == 2 * ((4 + 5) + (4 + 4))  # type: ignore[arg-type]


def test_what_does_not_fit_is_refused(bench: Bench) -> None:
    with pytest.raises(ValueError, match="704 positions do not fit the model's context of 700"):
        bench.measure(rows=[64], contexts=[640], repeats=1)
    with pytest.raises(ValueError, match="at least 1"):
        Plan(model="m", rows=(0,), contexts=(5,), repeats=1)


def _prefill(bench: Bench, **options: int) -> list[Line]:
    tools = prefill.Tools(
        out=bench.out,
        provenance=bench.tools.provenance,
        progress=bench.notes.append,
        peer=bench.tools.peer,  # type: ignore[arg-type]
        clock=bench.clock,
    )
    asked = {"tokens": 600, "chunk": 256, "repeats": 2} | options
    return prefill.measure(bench.target, "m", tools=tools, **asked)


def test_prefill_in_chunks_against_the_peers_best_batch(bench: Bench) -> None:
    lines = _prefill(bench)
    assert bench.log[2:] == [("ours", 0, 256), ("ours", 256, 256), ("ours", 512, 88)] * 2  # two chunks warm up
    assert bench.peer.batches == [512, 2048, 512, 512]
    ours = 3 + 60 + 0.256 + 0.512
    assert [line["s"] for line in lines] == pytest.approx([ours] * 2)
    assert prefill.speed_up(lines).median == pytest.approx(12 / ours)
    row = [cell.strip() for cell in prefill.table(lines).splitlines()[2].split("|")]
    assert row[1:9] == ["m", "600", "256", f"{600 / ours:.0f}", "fake", "512", "50", f"{12 / ours:.2f}"]
    before = len(bench.log)
    assert _prefill(bench) == lines
    assert len(bench.log) == before
    assert prefill.newest([{**lines[0], "config": "older"}, *lines]) == lines


def test_prefill_asks_for_the_last_row_alone(target: ExactTarget) -> None:
    asked: list[list[int]] = []

    class Watched:
        def __getattr__(self, name: str) -> Any:
            return getattr(target, name)

        def forward(self, segments: Sequence[Segment]) -> Any:
            asked.append(segments[0].want.tolist())
            return target.forward(segments)

    prefill.read_prompt(Watched(), np.arange(10), 4, Clock())  # type: ignore[arg-type]
    assert asked == [[0] * 4, [0] * 4, [0, 1]]


@pytest.mark.parametrize("options", [{"tokens": 701}, {"tokens": 0}, {"chunk": 0}, {"repeats": 0}])
def test_prefill_refuses(bench: Bench, options: dict[str, int]) -> None:
    with pytest.raises(ValueError):
        _prefill(bench, **options)


def test_the_picture(bench: Bench, tmp_path: Path) -> None:
    cells = kernels_report.cells(bench.measure())
    with pytest.raises(ValueError, match=r"must end with \.png"):
        plot(cells, tmp_path / "x.doc", peer=None)
    with pytest.raises(ValueError, match="no cells"):
        plot([], tmp_path / "x.svg", peer=None)
    pytest.importorskip("matplotlib", reason="pictures need matplotlib (the bench extra)")
    plot(cells, tmp_path / "new" / "x.svg", peer="fake")
    text = (tmp_path / "new" / "x.svg").read_text()
    assert text.count("<svg") == 1
    assert text.count("LineCollection") >= 4  # an interval at each of two engines in each of two panels
    plot(cells, tmp_path / "x.png", peer=None)
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")


def _command(*words: str, target: ExactTarget | None = None) -> tuple[int, str, str]:
    class Opened:
        def __init__(self) -> None:
            self.target = target

    out, err = io.StringIO(), io.StringIO()
    services = Services(stdin=io.BytesIO(), stdout=out, stderr=err, open_engine=lambda name, **options: Opened())  # type: ignore[arg-type,return-value]
    return main(["bench", *words], services=services), out.getvalue(), err.getvalue()


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command with readings that take no time."""
    machine: Callable[[Any], Callable[[], Peaks]] = lambda target: lambda: PEAKS  # noqa: E731
    monkeypatch.setattr("exactspec.cli.bench_kernels.machine_peaks", machine)


@pytest.mark.usefixtures("no_compiler")
def test_commands(target: ExactTarget, tmp_path: Path) -> None:
    file = str(tmp_path / "r.jsonl")
    words = ["kernels", "-m", "fake", "--rows", "1,8", "--repeats", "2", "--out", file]
    code, out, err = _command(*words, target=target)
    assert (code, "context 512 round 2/2" in err) == (0, True)
    assert "2048" not in out  # no room for it in a context of 700
    assert [row.split("|")[2:4] for row in out.splitlines()[4:]] == [[" 512     ", f" {n}    "] for n in (1, 8)]
    assert _command("table", file)[1] == out
    code, out, _ = _command("kernels", "-m", "fake", "--prefill", "300", "--repeats", "1", "--out", file, target=target)
    assert code == 0
    assert out.splitlines()[2].startswith("| fake  | 300    | 256   |")
    assert _command("table", file)[1].count("\n\n") == 2


@pytest.mark.usefixtures("no_compiler")
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--peer", "nothing"], "none of none, llama.cpp"),
        (["--repeats", "0"], "at least 1"),
        (["--prefill", "-1"], "at least 1 token"),
        (["--prefill", "9", "--plot", "x.png"], "leave out --prefill"),
        (["--rows", "1,x"], "whole numbers"),
        (["--rows", "640"], "name shorter --contexts"),
        (["--contexts", "699", "--rows", "2"], "701 positions do not fit"),
        (["--prefill", "701"], "do not fit"),
    ],
)
def test_mistakes_are_one_line(target: ExactTarget, tmp_path: Path, words: list[str], message: str) -> None:
    code, _, err = _command("kernels", "-m", "fake", *words, "--out", str(tmp_path / "r.jsonl"), target=target)
    assert code == 2
    assert message in err.splitlines()[-1]
    assert "Traceback" not in err


@pytest.mark.usefixtures("no_compiler")
def test_a_peer_that_fails_is_one_line(target: ExactTarget, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*arguments: Any, **options: Any) -> Any:
        raise PeerError("llama_cpp is not installed: install the peers")

    monkeypatch.setattr("exactspec.cli.bench_kernels.LlamaCppPeer", missing)
    monkeypatch.setattr(
        "exactspec.cli.bench_kernels.ModelStore",
        lambda: SimpleNamespace(resolve=lambda model: SimpleNamespace(path=model)),
    )
    for more in (["--contexts", "5", "--rows", "1"], ["--prefill", "5"]):
        words = ["kernels", "-m", "fake", "--peer", "llama.cpp", *more, "--out", str(tmp_path / "r.jsonl")]
        code, _, err = _command(*words, target=target)
        assert code == 2
        assert err.splitlines()[-1] == "exactspec: error: llama_cpp is not installed: install the peers"


def test_weight_bytes_leave_out_an_untied_embedding() -> None:
    tied = ExactTarget(RandomWeights(tied_head=True), threads=1)
    untied = ExactTarget(RandomWeights(tied_head=False), threads=1)
    assert tied.weight_bytes == untied.weight_bytes
    assert untied.packed.nbytes > tied.packed.nbytes
