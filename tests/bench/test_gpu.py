"""The speed table of a GPU: which forwards are timed, and what the figures are. The target here is a script."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from bench.fakes import Clock

from exactspec.bench.gpu import gpu_table, measure_gpu
from exactspec.cli.main import main
from exactspec.cli.services import Services
from exactspec.target.base import Segment


class FakeCache:
    def __init__(self) -> None:
        self.length = 0

    def keep(self, rows: Any) -> None:
        self.length += len(rows)


class FakeTarget:
    """A second a forward, a tenth more per row, a thousandth per token before them. Slow, once, at first sight of a
    row count (compiling)."""

    vocab_size, max_length, weight_bytes, identity = 50, 2000, 3_000_000_000, "fake/1"

    def __init__(self, clock: Clock) -> None:
        self.clock, self.seen, self.calls, self.bandwidths = clock, set[int](), list[tuple[int, int]](), [9.0, 9.9]

    def new_cache(self) -> FakeCache:
        return FakeCache()

    def read_bandwidth(self) -> float:
        return self.bandwidths.pop(0)

    def forward(self, segments: Sequence[Segment]) -> None:
        (segment,) = segments
        rows = len(segment.tokens)
        self.calls.append((rows, segment.cache.length))
        self.clock.now += 1 + 0.1 * rows + 0.001 * segment.cache.length + (100 if rows not in self.seen else 0)
        self.seen.add(rows)


def test_cells() -> None:
    clock = Clock()
    target = FakeTarget(clock)
    cells = measure_gpu(target, rows=[4], contexts=[300, 1000], repeats=3, clock=clock)  # type: ignore[arg-type]
    assert target.calls[:6] == [(256, 0), (44, 256), (256, 0), (256, 256), (256, 512), (232, 768)]
    assert target.calls[6:10] == [(1, 300), (1, 1000), (4, 300), (4, 1000)]
    assert len(target.calls) == 6 + 4 * (3 + 1)
    assert [(cell.rows, cell.context) for cell in cells] == [(4, 300), (4, 1000)]
    assert [round(cell.milliseconds) for cell in cells] == [1700, 2400]
    np.testing.assert_allclose([cell.ratio for cell in cells], [1.7 / 1.4, 2.4 / 2.1])
    np.testing.assert_allclose([cell.read_share for cell in cells], [3 / 1.7 / 9.9, 3 / 2.4 / 9.9])
    assert [word.strip() for word in gpu_table(cells).splitlines()[-1].strip("|").split("|")] == [
        "4",
        "1700.00 (1.21), 1.8 (18%)",
        "2400.00 (1.14), 1.3 (13%)",
    ]
    with pytest.raises(ValueError, match="2002 positions do not fit the model's context of 2000"):
        measure_gpu(target, rows=[2], contexts=[2000], repeats=1)  # type: ignore[arg-type]


def command(tmp_path: Path, *arguments: str) -> tuple[int, str, str, dict[str, Any]]:
    out, err, asked = io.StringIO(), io.StringIO(), dict[str, Any]()

    def open_engine(name: str, **options: Any) -> Any:
        asked.update(options)
        return SimpleNamespace(target=FakeTarget(Clock()))

    services = Services(stdin=io.BytesIO(), stdout=out, stderr=err, open_engine=open_engine)
    words = [
        "bench",
        "kernels",
        "--rows",
        "2",
        "--contexts",
        "16",
        "--repeats",
        "1",
        "--out",
        str(tmp_path / "x.jsonl"),
    ]
    return main([*words, *arguments], services=services), out.getvalue(), err.getvalue(), asked


def test_the_command(tmp_path: Path) -> None:
    code, out, _, asked = command(tmp_path, "--device", "cuda:1")
    assert code == 0
    assert asked["device"] == "cuda:1"
    assert asked["context"] == 18
    assert "context 16: ms (ratio)" in out
    (line,) = (json.loads(text) for text in (tmp_path / "x.jsonl").read_text().splitlines())
    assert line["kind"] == "gpu-forward"
    assert line["identity"] == "fake/1"
    assert [cell["rows"] for cell in line["cells"]] == [2]


def test_what_a_gpu_is_not_measured_for(tmp_path: Path) -> None:
    code, out, err, _ = command(tmp_path, "--device", "cuda", "--prefill", "9")
    assert code == 2
    assert not out
    assert "on a GPU forwards alone are timed: leave out --prefill" in err
