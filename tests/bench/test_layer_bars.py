"""The bars of a shipped layer, on a tiny target with a layer of random weights."""

from __future__ import annotations

from pathlib import Path

import pytest
from bench.test_contest import recorder_of
from tiny_drafts import SOURCE, TOKENIZER
from tiny_layer import random_layer, tiny_card

from exactspec.bench.bars import BARS
from exactspec.bench.layer_bars import LIMITS, layer_bars
from exactspec.bench.runner import contest
from exactspec.bench.runtime_bars import LARGE, SMALL
from exactspec.bench.speed_bars import Effort
from exactspec.drafters.layer.checkpoint import write_layer
from exactspec.drafters.layers import OpenLayer
from exactspec.engine import Engine
from exactspec.target.exact import ExactTarget

EFFORT = Effort(seeds=1, rounds=1, max_tokens=6)


@pytest.fixture(scope="module")
def target() -> ExactTarget:
    return ExactTarget(SOURCE, threads=1, context=4096)


@pytest.fixture(scope="module")
def engine(target: ExactTarget, tmp_path_factory: pytest.TempPathFactory) -> Engine:
    folder = tmp_path_factory.mktemp("layer")
    write_layer(folder, random_layer(tiny_card(SOURCE, precision="int8", window=64)))
    return Engine(target, TOKENIZER, draft_models={"longspec": OpenLayer(folder, target)})


def test_every_bar(engine: Engine, tmp_path: Path) -> None:
    recorder = recorder_of(tmp_path / "bars.jsonl")
    on = contest(engine, model=SMALL, recorder=recorder)
    bars = {
        bar.name.split(":")[0]: bar for bar in layer_bars(engine, on, list(LIMITS), effort=EFFORT, recorder=recorder)
    }
    assert [name.split(",")[0] for name in bars] == [
        *("layer-pass",) * 2,
        "layer-tau",
        *("layer-beside",) * 4,
        "layer-long",
        "layer-auto",
        "layer-sampled",
    ]
    assert bars["layer-pass, at 4000 tokens to 1024"].equal  # the same bytes, whatever the context
    assert 0.9 < bars["layer-tau, alone, 60 nodes"].value < 1.5  # weights are random
    assert not bars["layer-tau, alone, 60 nodes"].passed
    assert bars["layer-auto, at most 12 rows, against plain"].equal
    assert bars["layer-sampled, at most 12 rows, against plain"].equal
    assert "4 answers" in bars["layer-tau, alone, 60 nodes"].detail
    counted = [line for line in recorder.out.lines if line["kind"] == "acceptance"]
    assert {line["in_front"] for line in counted} == {0, 3072}
    assert max(line["prompt_tokens"] for line in counted) > 2900
    # What is in the file is not counted again.
    before = len(recorder.out.lines)
    again = list(layer_bars(engine, on, ["layer-beside", "layer-auto"], effort=EFFORT, recorder=recorder))
    assert [bar.value for bar in again] == [
        bar.value for name, bar in bars.items() if "beside" in name or "auto" in name
    ]
    assert len(recorder.out.lines) == before


def test_without_a_shipped_layer(target: ExactTarget, tmp_path: Path) -> None:
    recorder = recorder_of(tmp_path / "bars.jsonl")
    bare = Engine(target, TOKENIZER)
    on = contest(bare, model=SMALL, recorder=recorder)
    assert list(layer_bars(bare, on, list(LIMITS), effort=EFFORT, recorder=recorder)) == []


def test_other_models_have_none(engine: Engine, tmp_path: Path) -> None:
    recorder = recorder_of(tmp_path / "bars.jsonl")
    on = contest(engine, model=LARGE, recorder=recorder)
    assert list(layer_bars(engine, on, list(LIMITS), effort=EFFORT, recorder=recorder)) == []
    assert set(LIMITS) < set(BARS)
