"""The runtime's bars: from times of a known target, a fake peer, fake processes and a fake float32 side."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scripted import ByteTokenizer
from tiny_weights import RandomWeights

from exactspec.bench import first_token, kernels, prefill, runtime_bars
from exactspec.bench.bar import Bar
from exactspec.bench.first_token import FirstToken, measure_first_token, memory
from exactspec.bench.peaks import Peaks
from exactspec.bench.peers.llama_cpp import PeerError
from exactspec.bench.perplexity import float32_losses, loss_sum, our_loss, windows
from exactspec.bench.provenance import collect
from exactspec.bench.recorder import Recorder
from exactspec.bench.runtime_bars import LIMITS, MIDDLE, RUNTIME_BARS, SMALL, RuntimeTools
from exactspec.bench.store import ResultFile
from exactspec.target.base import Segment, SegmentRows, Want
from exactspec.target.exact import ExactTarget

LOADED = FirstToken(
    seconds=1.5, open_s=0.5, first_s=0.1, resident=700_000_000, anonymous=1, mapped=2, weights=400_000_000, cache=0
)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class TimedTarget:
    """Forwards take 10 ms, a millisecond a row and one per 1,024 tokens before it; `ms` counts them out."""

    threads, vocab_size, max_length, identity = 2, 300, 9000, "fake/1"
    config, weight_bytes = RandomWeights().config, 200_000_000

    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    def new_cache(self) -> Any:
        return FakeCache(0)

    def forward(self, segments: Sequence[Segment]) -> list[SegmentRows]:
        (segment,) = segments
        n = len(segment.tokens)
        self.clock.now += 1e-3 * (9 + n + segment.cache.length / 1024)
        logits = np.zeros((n, self.vocab_size), dtype=np.float32)
        none = np.zeros(n, dtype=np.int64)
        return [SegmentRows(none, logits, none, logits, none, logits)]


class FakeCache:
    def __init__(self, length: int) -> None:
        self.length = length

    def keep(self, rows: Sequence[int]) -> None:
        self.length += len(rows)

    def fork(self) -> FakeCache:
        return FakeCache(self.length)


class FakePeer:
    opened = 0

    def __enter__(self) -> FakePeer:
        FakePeer.opened += 1
        return self

    def __exit__(self, *error: Any) -> None:
        FakePeer.opened -= 1

    def fill(self, ids: Sequence[int], *, rows: int) -> None:
        pass

    def time_rows(self, context: int, counts: Sequence[int], tokens: Sequence[int]) -> list[float]:
        return [0.020] * len(counts)

    def prefill(self, ids: Sequence[int], *, batch: int) -> float:
        return 10.0


class Run:
    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        clock = Clock()
        # The clocks of the measuring functions are parameters of theirs; the bars leave them at their default.
        for module in (kernels, prefill):
            tools = module.Tools
            monkeypatch.setattr(module, "Tools", lambda tools=tools, **options: tools(clock=clock, **options))
        self.engine: Any = SimpleNamespace(target=TimedTarget(clock), tokenizer=ByteTokenizer())
        self.loads: list[str] = []
        self.float32_calls = 0
        text = folder / "text.txt"
        text.write_text("abcd" * 1100)
        self.tools = RuntimeTools(
            recorder=Recorder(ResultFile(folder / "r.jsonl"), lambda: collect(threads=2), lambda note: None),
            peer=lambda model: FakePeer(),
            peaks=lambda target: lambda: Peaks(read_gb_per_s=25.0, products_per_ns=1e-3, tile_rows=4, fma_per_ns=50.0),
            first_token=self._load,
            text=text,
            float32=self._float32,
            chunk=256,
            repeats=3,
        )

    def _load(self, model: str) -> FirstToken:
        self.loads.append(model)
        # The first process is slow; the others take 1.5, 1.6 and 1.9 s.
        return replace(LOADED, seconds=(9.0, 1.9, 1.5, 1.6)[len(self.loads) - 1])

    def _float32(self, model: str, parts: Sequence[Sequence[int]]) -> list[float]:
        self.float32_calls += 1
        return [math.log(300) - 0.002 for _ in parts]

    def bars(self, *names: str, model: str = MIDDLE) -> list[Bar]:
        return list(runtime_bars.runtime_bars(self.tools, self.engine, model, names))


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    return Run(tmp_path, monkeypatch)


def test_one_row_and_the_bandwidth(run: Run) -> None:
    one, read = run.bars("one-row", "bandwidth")
    assert one.value == pytest.approx(10.5 / 20)  # 9 + 1 row + 512 / 1024
    assert (one.limit, one.sense, one.passed) == (0.7, "at most", True)
    assert read.value == pytest.approx(100 * 200e6 / 10.5e-3 / 1e9 / 25)
    assert (read.limit, read.sense, read.passed) == (90, "at least", False)
    assert FakePeer.opened == 0


def test_rows_to_one(run: Run) -> None:
    high = Peaks(read_gb_per_s=25.0, products_per_ns=1e9, tile_rows=4, fma_per_ns=50.0)
    run.tools = replace(run.tools, peaks=lambda target: lambda: high)  # far from it, only the ratio counts
    bars = run.bars("rows-4", "rows-8", "rows-16", "rows-32")
    assert [bar.value for bar in bars] == pytest.approx([(9.5 + n) / 10.5 for n in (4, 8, 16, 32)])
    assert [bar.limit for bar in bars] == [1.1, 1.3, 1.8, 3.1]
    assert [bar.passed for bar in bars] == [False, False, False, False]
    assert all(bar.sense == "at most" for bar in bars)


def test_rows_near_the_integer_peak_are_as_good(run: Run) -> None:
    (bar,) = run.bars("rows-4")
    assert bar.value > bar.limit
    assert bar.otherwise
    assert bar.passed


def test_contexts(run: Run) -> None:
    one, sixteen = run.bars("context-1", "context-16")
    assert one.value == pytest.approx((10 + 8) / 10.5)
    assert (one.limit, one.passed) == (1.5, False)
    assert sixteen.value == pytest.approx((25 + 8) / 18)
    assert (sixteen.limit, sixteen.otherwise, sixteen.passed) == (4.5, False, True)


def test_prefill(run: Run) -> None:
    (bar,) = run.bars("prefill")
    ours = sum(9 + 256 + i / 4 for i in range(8)) / 1e3
    assert bar.value == pytest.approx(10 / ours)
    assert (bar.limit, bar.sense, bar.passed) == (3.2, "at least", True)
    assert FakePeer.opened == 0


def test_loading(run: Run) -> None:
    load, resident = run.bars("load", "memory")
    assert run.loads == [MIDDLE] * 4
    assert (load.value, load.limit, load.passed) == (1.6, 2.0, True)
    assert (resident.value, resident.limit, resident.passed) == (700, pytest.approx(700), True)
    run.loads.clear()
    assert [bar.name for bar in run.bars("memory")] == [resident.name]


def test_perplexity(run: Run) -> None:
    (bar,) = run.bars("perplexity")
    assert bar.value == pytest.approx(100 * math.expm1(0.002), rel=1e-3)
    assert (bar.limit, bar.sense, bar.passed) == (0.3, "at most", True)
    assert "4096 tokens of text.txt in windows of 2048: +0.20%, +0.20%" in bar.detail
    run.bars("perplexity")
    assert run.float32_calls == 1  # the losses of the same text, code and machine are kept
    run.tools.text.write_text("dcba" * 1100)
    run.bars("perplexity")
    assert run.float32_calls == 2


def test_every_bar_is_measured_where_it_has_a_limit(run: Run) -> None:
    assert len(run.bars(*RUNTIME_BARS)) == len(RUNTIME_BARS)
    run.loads.clear()
    few = run.bars(*RUNTIME_BARS, model=SMALL)
    assert len(few) == sum(SMALL in limits for limits in LIMITS.values()) == 7
    assert run.bars("load", model=SMALL) == []


def test_a_fresh_process_is_timed_to_its_line(tmp_path: Path) -> None:
    told = {"open_s": 1, "first_s": 2, "weights": 3, "cache": 4, "resident": 5, "anonymous": 6, "mapped": 7}
    program = tmp_path / "p.py"
    program.write_text(f"import sys; print({json.dumps(told)!r}); assert sys.argv[1:] == ['m', '2']")
    found = measure_first_token("m", 2, command=[sys.executable, str(program)])
    assert found.seconds > 0
    assert replace(found, seconds=0) == FirstToken(seconds=0, **told)
    program.write_text("raise ValueError('no such model')")
    with pytest.raises(PeerError, match="first token: ValueError: no such model"):
        measure_first_token("m", 2, command=[sys.executable, str(program)])


def test_memory_is_read_in_bytes(tmp_path: Path) -> None:
    status = tmp_path / "status"
    status.write_text("Name:\tx\nVmRSS:\t    12 kB\nRssAnon:\t  8 kB\nRssFile:\t     4 kB\n")
    assert memory(status) == {"resident": 12 * 1024, "anonymous": 8 * 1024, "mapped": 4 * 1024}
    assert memory(tmp_path / "none") == {"resident": 0, "anonymous": 0, "mapped": 0}


def test_a_fresh_process_answers(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    """The program itself, in this process, on a tiny model."""
    target = ExactTarget(RandomWeights(), threads=1)

    class Engine:
        @classmethod
        def from_pretrained(cls, name: str, **options: Any) -> Any:
            assert (name, options["threads"]) == ("m", 1)
            from exactspec.engine import Engine as Real

            return Real(target, ByteTokenizer(), draft="none")

    monkeypatch.setattr("exactspec.Engine", Engine)
    first_token.main("m", 1)
    told = FirstToken(seconds=0.0, **json.loads(capsys.readouterr().out))
    assert told.weights == target.weight_bytes
    assert told.cache >= target.page_shape.page_bytes


def test_windows_drop_the_rest() -> None:
    assert windows(range(7), size=3) == [[0, 1, 2], [3, 4, 5]]
    with pytest.raises(ValueError, match="no window of 8"):
        windows(range(7), size=8)


def test_losses_by_hand() -> None:
    logits = np.log(np.array([[0.5, 0.25, 0.25], [0.1, 0.1, 0.8]], dtype=np.float32)) + 7
    assert loss_sum(logits, [1, 2]) == pytest.approx(-math.log(0.25) - math.log(0.8), rel=1e-5)


def test_our_loss_sees_the_whole_window() -> None:
    target = ExactTarget(RandomWeights(), threads=2)
    ids = np.random.default_rng(0).integers(0, target.vocab_size, 300).tolist()
    (rows,) = target.forward([Segment.chain(target.new_cache(), ids, Want.LOGITS)])
    whole = loss_sum(rows.logits[:-1], ids[1:]) / 299  # before the next forward, which reuses the rows
    assert our_loss(target, ids) == pytest.approx(whole, rel=1e-12)


def test_the_float32_side_fails_in_one_line(tmp_path: Path) -> None:
    child = tmp_path / "child.py"
    child.write_text(
        "import json, sys; print('noise'); print(json.dumps({'losses': [len(x) for x in json.load(sys.stdin)]}))"
    )
    assert float32_losses(Path("m"), [[1, 2], [3]], threads=1, child=child) == [2.0, 1.0]
    child.write_text('print(\'{"error": "no torch: install it"}\')')
    with pytest.raises(PeerError, match="install it"):
        float32_losses(Path("m"), [[1]], threads=1, child=child)
    child.write_text("import sys; sys.exit(4)")
    with pytest.raises(PeerError, match="ended with 4"):
        float32_losses(Path("m"), [[1]], threads=1, child=child)
