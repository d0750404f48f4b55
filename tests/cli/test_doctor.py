from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
from tiny_layer import random_layer, tiny_card
from tiny_weights import RandomWeights

from exactspec.cli.doctor import examine, lines
from exactspec.drafters.layer.checkpoint import write_layer
from exactspec.drafters.layer.footprint import state_bytes, weight_bytes
from exactspec.target.cpu import CpuInfo
from exactspec.target.packed_store import WEIGHTS, ModelKey, PackedStore


def cpu() -> CpuInfo:
    return CpuInfo("Made-up 9000", "madeup", ("a", "b"), ("avxvnni", "portable"), "avxvnni", 6, 3)


def describe(environ) -> CpuInfo:
    return cpu()


@pytest.fixture
def home(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "models" / "m").mkdir(parents=True)
    (tmp_path / "models" / "m" / "weights").write_bytes(bytes(2_500_000))
    (tmp_path / "models" / "small").write_bytes(bytes(7))
    return {"EXACTSPEC_HOME": str(tmp_path)}


def test_the_report(home):
    asked = []

    def bandwidth(threads: int) -> float:
        asked.append(threads)
        return 12.34

    report = examine(home, describe=describe, bandwidth=bandwidth)
    assert asked == [3]
    assert report.problems == ()
    assert (report.models.bytes, report.kernels.bytes, report.kernels_compiled) == (2_500_007, 0, False)
    assert report.packages["numpy"]
    assert report.identity is not None
    assert "/madeup-avxvnni/cache-bfloat16/" in report.identity
    text = "\n".join(lines(report))
    assert "Made-up 9000 (madeup)" in text
    assert "avxvnni (also possible, with EXACTSPEC_ISA: portable)" in text
    assert "3 of 6 usable cores" in text
    assert "12.3 GB/s" in text
    assert f"{home['EXACTSPEC_HOME']}/models (2.5 MB)" in text


def test_draft_layers_take_the_same_at_every_context(home, tmp_path: Path) -> None:
    card = tiny_card(RandomWeights(), window=512)
    write_layer(tmp_path / "shipped" / "tiny", random_layer(card))
    (tmp_path / "shipped" / "broken").mkdir()
    (tmp_path / "shipped" / "broken" / "card.json").write_text("{}")
    report = examine(home, describe=describe, bandwidth=lambda threads: 1.0, shipped=tmp_path / "shipped")
    (layer,) = report.layers
    assert layer.request_bytes == {1024: state_bytes(card), 4096: state_bytes(card), 8192: state_bytes(card)}
    assert layer.weight_bytes == weight_bytes(card)
    size = f"{state_bytes(card) / 1e6:.2f} MB at"
    assert f"a request {size} 1k, {size} 4k, {size} 8k tokens of context" in "\n".join(lines(report))


def test_packed_models_and_whether_they_are_intact(home):
    store = PackedStore(Path(home["EXACTSPEC_HOME"]))
    for name in ("one", "two"):
        parts = [("x", np.arange(900))]
        config = RandomWeights().config
        store.build(ModelKey(name), origin=name, config=config, parts=parts, vocabulary=None)
    weights = store.folder(ModelKey("two")) / WEIGHTS
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    report = examine(home, describe=describe, bandwidth=lambda threads: 1.0)
    assert {one.model: (one.current, one.intact) for one in report.packed} == {
        "one": (True, True),
        "two": (True, False),
    }
    assert report.cache_dtypes == ("bfloat16", "float32", "int8")
    text = "\n".join(lines(report))
    assert "one (0.0 MB, intact)" in text
    assert "two (0.0 MB, damaged or unfinished: the next load makes it again)" in text


def test_problems_are_collected_and_do_not_stop_the_rest(home):
    def no_cpu(environ) -> CpuInfo:
        raise ValueError("EXACTSPEC_ISA must be one of these")

    report = examine(home | {"NUMBA_DISABLE_JIT": "1"}, describe=no_cpu)
    assert len(report.problems) == 2
    assert "NUMBA_DISABLE_JIT" in report.problems[0]
    assert report.models.bytes > 0

    def no_memory(threads: int) -> float:
        raise MemoryError

    assert "too little memory" in examine(home, describe=describe, bandwidth=no_memory).problems[0]


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="the superuser may write everywhere")
def test_a_home_that_cannot_be_written(tmp_path: Path):
    tmp_path.chmod(0o500)
    report = examine({"EXACTSPEC_HOME": str(tmp_path / "x")}, describe=describe, bandwidth=lambda threads: 1.0)
    assert "cannot be written" in report.problems[0]


def test_a_home_that_is_a_file(tmp_path: Path):
    path = tmp_path / "file"
    path.touch()
    report = examine({"EXACTSPEC_HOME": str(path)}, describe=describe, bandwidth=lambda threads: 1.0)
    assert "cannot be written" in report.problems[0]


def test_a_home_that_may_not_be_looked_into_and_none_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Problems, not errors."""

    def forbidden(path: Path) -> bool:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "exists", forbidden)  # as pathlib's is where a folder above may not be entered
    report = examine({"EXACTSPEC_HOME": str(tmp_path)}, describe=describe, bandwidth=lambda threads: 1.0)
    assert report.problems == ()
    nobody = {"EXACTSPEC_HOME": "~no-such-user/x"}
    report = examine(nobody, describe=describe, bandwidth=lambda threads: 1.0)
    assert "set EXACTSPEC_HOME" in report.problems[0]


def test_this_machine(cli, home):
    result = cli("doctor", env=home)
    assert (result.code, result.err) == (0, "")
    assert "instruction set: " in result.out
    value = json.loads(cli("doctor", "--json", env=home | {"EXACTSPEC_ISA": "portable"}).out)
    assert value["cpu"]["instruction_set"] == "portable"
    assert value["read_gb_per_s"] > 0
    assert value["problems"] == []


def test_a_problem_is_code_1(cli, home):
    result = cli("doctor", env=home | {"EXACTSPEC_ISA": "nonsense"})
    assert result.code == 1
    assert result.err.startswith("problem: EXACTSPEC_ISA must be one of")
    assert "models (2.5 MB)" in result.out
