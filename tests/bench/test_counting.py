"""Counting acceptance through an engine: what is set for it, and that it is set back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from bench.test_contest import recorder_of
from tiny_drafts import SOURCE, TOKENIZER
from tiny_layer import random_layer, tiny_card

from exactspec.bench.counting import Counting, counted_lines
from exactspec.bench.questions import Question
from exactspec.drafters.layer.checkpoint import write_layer
from exactspec.drafters.layer.sight import Sight
from exactspec.drafters.layers import OpenLayer
from exactspec.drafters.longspec import RECENT
from exactspec.engine import Engine
from exactspec.params import Speculation
from exactspec.target.exact import ExactTarget

ASKED = [Question("f", "1", "story", ("Why?",))]


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    target = ExactTarget(SOURCE, threads=1, context=512)
    folder = tmp_path_factory.mktemp("layer")
    write_layer(folder, random_layer(tiny_card(SOURCE, precision="int8", window=64)))
    return Engine(target, TOKENIZER, draft_models={"longspec": OpenLayer(folder, target)})


def test_lines_say_how_and_the_drafter_is_as_before(engine: Engine, tmp_path: Path) -> None:
    recorder = recorder_of(tmp_path / "a.jsonl")
    layer: Any = engine.drafter(Speculation(draft="longspec"))
    how = Counting(nodes=20, max_tokens=12, in_front=200, sight=Sight(130, 1))
    (line,) = counted_lines(engine, "tiny", ASKED, {"layer": "longspec"}, how, recorder)
    assert line["arm"] == "layer"
    assert line["layers"] == [layer.runner.card.weights_sha256]
    assert (line["recent"], line["top_chunks"], line["in_front"], line["nodes"]) == (130, 1, 200, 20)
    assert line["num_draft_tokens"] > 5 * line["num_steps"]  # at every step, though random weights never pay
    assert (layer.always, layer.runner.sight) == (False, Sight(RECENT))


def test_what_cannot_be_counted(engine: Engine, tmp_path: Path) -> None:
    how, recorder = Counting(nodes=20, max_tokens=12), recorder_of(tmp_path / "a.jsonl")
    with pytest.raises(ValueError, match="drafts with another model"):
        counted_lines(engine, "tiny", ASKED, {"self": "self"}, how, recorder)
