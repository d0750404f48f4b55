"""The layers that are part of the package: whole, small, told of, and worth having."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from scripted import hash_target

from exactspec.bench.acceptance import acceptance_case, tally
from exactspec.bench.questions import Question
from exactspec.budget import TABLE, CostModel
from exactspec.drafters import make_drafter
from exactspec.drafters.layer.card import Card
from exactspec.drafters.layer.checkpoint import read_layer
from exactspec.drafters.layer.shipped import cards, shipped_layer
from exactspec.drafters.layers import OpenLayer
from exactspec.drafters.longspec import LongSpecDrafter
from exactspec.engine import Engine
from exactspec.params import SamplingParams, Speculation

LAYERS = list(cards().items())
PROMPT = "Describe a day at a busy harbour to somebody who has never seen the sea."


def test_there_is_one() -> None:
    assert "smollm2-135m" in {card.target.name for _, card in LAYERS}


@pytest.mark.parametrize(("folder", "card"), LAYERS, ids=[card.target.name for _, card in LAYERS])
def test_whole_small_and_told_of(folder: Path, card: Card) -> None:
    assert read_layer(folder).card == card  # checks the hash of the tensors
    assert sum(path.stat().st_size for path in folder.iterdir()) < 20e6
    assert shipped_layer(card.target.sha256) == folder
    facts = card.training
    assert facts["rows"]["own"] > facts["rows"]["held_out"] > 1000
    assert len(facts["held_out"]["acceptance_by_depth"]) == card.depth
    assert facts["config"]["train"]["tokens"] > 0


@pytest.mark.model
def test_it_drafts_for_its_target(named_model: Callable[[str], Path]) -> None:
    engine = Engine.from_pretrained(str(named_model("smollm2-135m")), threads=2, context=1024)
    assert "longspec" in engine.drafts
    drafter = engine.drafter(Speculation(draft="longspec"))
    drafter.always = True  # type: ignore[union-attr]
    case = acceptance_case(engine.tokenizer, Question("t", "1", "t", (PROMPT,)), max_tokens=48)
    plain, drafted = (tally(engine.target, engine.tokenizer, case, one, nodes=30) for one in (None, drafter))
    assert drafted.token_ids == plain.token_ids
    assert drafted.tokens / drafted.steps > 1.6
    sampled = SamplingParams(max_tokens=48, temperature=0.8, seed=1)
    answers = {
        draft: engine.generate(PROMPT, sampled, speculation=Speculation(draft=draft)).token_ids
        for draft in ("none", "auto", "longspec", "copy+recycle+longspec")
    }
    assert len(set(answers.values())) == 1


def test_auto_asks_it_where_rows_are_cheap(caplog: pytest.LogCaptureFixture) -> None:
    """By the acceptance on its card; where further rows cost much, as with AVX2, it is not even opened."""
    folder = next(folder for folder, card in LAYERS if card.target.name == "smollm2-135m")

    class Unopened(OpenLayer):
        def drafter(self) -> LongSpecDrafter:
            raise ValueError("opened")

    layer = Unopened(folder, hash_target())
    assert layer.expected_gain(TABLE) > 1.2  # AVX512-VNNI
    dear = CostModel(rows=(1, 2, 4, 8), cost=(1.0, 1.2, 1.86, 3.47))
    assert 1.0 < layer.expected_gain(dear) < 1.15
    assert layer.expected_gain(lambda rows: float(rows)) == 1.0
    for cost, opened in ((TABLE, 1), (dear, 0)):
        caplog.clear()
        make_drafter(Speculation(draft="auto"), models={"longspec": layer}, cost=cost)
        assert caplog.text.count("left out: opened") == opened
