"""Layers by name: beside other drafters, found by their target's hash, refused with the reason."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tiny_drafts import SOURCE, TOKENIZER, VOCAB
from tiny_layer import random_layer, tiny_card
from tiny_weights import RandomWeights

from exactspec.draft_names import models_of
from exactspec.drafters import make_drafter
from exactspec.drafters.layer.checkpoint import write_layer
from exactspec.drafters.layer.shipped import shipped_layer
from exactspec.drafters.layer.sight import Sight
from exactspec.drafters.layers import OpenLayer
from exactspec.drafters.union import UnionDrafter
from exactspec.engine import Engine
from exactspec.opening import open_layers
from exactspec.params import SamplingParams, Speculation
from exactspec.scheduling import Scheduler
from exactspec.target.exact import ExactTarget

GREEDY = SamplingParams(max_tokens=60, ignore_eos=True)
SAMPLED = SamplingParams(max_tokens=60, ignore_eos=True, temperature=1.0, seed=5)
PLAIN = Speculation(draft="none")


@pytest.fixture(scope="module")
def target() -> ExactTarget:
    return ExactTarget(SOURCE, threads=2, context=2048)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("layer")
    write_layer(path, random_layer(tiny_card(SOURCE, precision="int8", window=64)))
    return path


@pytest.fixture(scope="module")
def opened(target: ExactTarget, folder: Path) -> Callable[..., Engine]:
    def engine(draft: str) -> Engine:
        named = draft.replace("FOLDER", str(folder))
        layers = open_layers([name for name in models_of(named) if name != "longspec"], target, None)
        layers["longspec"] = OpenLayer(folder, target)  # as if it were shipped
        return Engine(target, TOKENIZER, draft=named, draft_models=layers)

    return engine


@pytest.mark.parametrize(
    "draft", ["longspec", "longspec:FOLDER", "copy+recycle+longspec", "copy+recycle+longspec:FOLDER", "auto"]
)
@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_same_tokens(opened: Callable[..., Engine], draft: str, params: SamplingParams) -> None:
    prompt = np.random.default_rng(10).integers(0, VOCAB, 90).tolist()
    engine = opened(draft)
    plain = engine.generate(prompt, params, speculation=PLAIN)
    found = engine.generate(prompt, params, record_steps=True)
    assert found.token_ids == plain.token_ids
    assert found.metrics.drafted_by_source.get("longspec", 0) > 0
    session = engine.session()
    session.generate(prompt[:50], replace(params, max_tokens=9))
    again = session.generate(prompt, params)
    assert again.token_ids == plain.token_ids
    assert again.metrics.cached_tokens >= 49


@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_a_card_can_ask_for_top_chunks(target: ExactTarget, tmp_path: Path, params: SamplingParams) -> None:
    write_layer(tmp_path, random_layer(tiny_card(SOURCE, precision="int8", window=64, top_chunks=2)))
    layers = open_layers([f"longspec:{tmp_path}"], target, None)
    assert layers[f"longspec:{tmp_path}"].drafter().runner.sight == Sight(1024, top=2)
    engine = Engine(target, TOKENIZER, draft=f"copy+recycle+longspec:{tmp_path}", draft_models=layers)
    prompt = np.random.default_rng(10).integers(0, VOCAB, 1500).tolist()  # two chunks of those before the last 1,024
    found = engine.generate(prompt, params)
    assert found.token_ids == engine.generate(prompt, params, speculation=PLAIN).token_ids
    assert found.metrics.drafted_by_source.get("longspec", 0) > 0


def test_many_requests_at_once(opened: Callable[..., Engine]) -> None:
    engine = opened("copy+recycle+longspec")
    rng = np.random.default_rng(11)
    prompts = [rng.integers(0, VOCAB, n).tolist() for n in (5, 40, 90, 200)]
    plain = [engine.generate(prompt, SAMPLED, speculation=PLAIN).token_ids for prompt in prompts]
    with Scheduler(engine) as scheduler:
        tickets = [scheduler.submit(prompt, SAMPLED, on_chunk=lambda chunk: None) for prompt in prompts]
        assert [ticket.result().token_ids for ticket in tickets] == plain


def test_the_unions_free_trees_come_without_the_layer(target: ExactTarget) -> None:
    free = make_drafter(Speculation(draft="copy+recycle"))
    assert isinstance(free, UnionDrafter)
    assert free.name == "copy+recycle"
    assert free.wants_features == 0
    auto = make_drafter(Speculation(draft="auto"))
    assert auto is not None
    assert auto.name == "copy+recycle"


def test_another_targets_layer_is_refused(folder: Path) -> None:
    other = ExactTarget(RandomWeights(seed=3), threads=1, context=256)
    with pytest.raises(ValueError, match="trained for other weights of tiny") as refused:
        open_layers([f"longspec:{folder}"], other, None)
    assert "\n" not in str(refused.value)
    with pytest.raises(ValueError, match="exactspec train longspec"):
        open_layers(["longspec"], other, None)
    assert open_layers([], other, None) == {}


def test_a_folder_without_a_layer_is_refused(target: ExactTarget, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="holds no draft layer"):
        open_layers([f"longspec:{tmp_path}"], target, None)
    with pytest.raises(ValueError, match="needs a layer that is shipped"):
        Engine(target, TOKENIZER, draft="longspec")
    with pytest.raises(ValueError, match="needs the layer in /nowhere"):
        Engine(target, TOKENIZER, draft="copy+recycle+longspec:/nowhere")


def test_the_shipped_layer_is_found_by_the_weights_hash(target: ExactTarget, tmp_path: Path) -> None:
    others = RandomWeights(seed=3)
    write_layer(tmp_path / "a", random_layer(tiny_card(others)))
    with pytest.raises(ValueError, match="there are some for tiny"):
        shipped_layer(target.sha256, folder=tmp_path)
    write_layer(tmp_path / "b", random_layer(tiny_card(SOURCE)))
    assert shipped_layer(target.sha256, folder=tmp_path) == tmp_path / "b"
