"""The loop: it learns, it stops and goes on without a trace, and what it ends with is a draft layer."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="training needs the extra `train`")
pytest.importorskip("accelerate", reason="training needs the extra `train`")

from scripted import CLOSE, EOS, ByteTokenizer  # noqa: E402
from tiny_training import SOURCE, documents, tiny_draft_layer, tiny_target  # noqa: E402
from tiny_weights import RandomWeights  # noqa: E402

from exactspec.drafters.layer.checkpoint import read_layer  # noqa: E402
from exactspec.drafters.layer.tensor_file import from_bfloat16  # noqa: E402
from exactspec.training.batches import Batches, Place  # noqa: E402
from exactspec.training.capture import capture_texts  # noqa: E402
from exactspec.training.config import Config, LayerConfig, TrainConfig  # noqa: E402
from exactspec.training.evaluate import evaluate  # noqa: E402
from exactspec.training.features import HELD_OUT, TRAIN  # noqa: E402
from exactspec.training.loop import Hooks, learning_rate, train  # noqa: E402
from exactspec.training.model import draft_loss  # noqa: E402
from exactspec.training.run import train_layer  # noqa: E402
from exactspec.training.samples import Prepared, choose_head, prepare, runs, slice_of, without_repeats  # noqa: E402
from exactspec.training.shards import FeatureWriter  # noqa: E402
from exactspec.training.texts import chat_text  # noqa: E402

CONFIG = TrainConfig(tokens=12 * 60, batch=60, length=40, warmup=2, evaluate_every=4, checkpoint_every=3)
Losses = list[tuple[int, float]]


def _prepared(count: int, labels: str = "target", **options: int) -> list[Prepared]:
    return [prepare(d, np.arange(200), labels=labels) for d in documents(count, **options)]


@pytest.fixture(scope="module")
def own() -> list[Prepared]:
    return _prepared(6, length=24, answer_from=6)


def _run(folder: Path, own: list[Prepared], *, config: TrainConfig = CONFIG, stop_after: int | None = None) -> Losses:
    losses: Losses = []

    def log(step: int, values: dict[str, float]) -> None:
        if "loss" in values:
            losses.append((step, values["loss"]))

    layer = tiny_draft_layer(draft_feature="own")
    hooks = Hooks(tell=lambda text: None, log=log)
    train(layer, own, own[:2], own[:2], config, folder, longest=4096, hooks=hooks, stop_after=stop_after)
    return losses


@pytest.mark.parametrize("draft_feature", ["verified", "own"])
def test_one_chat_is_learnt_by_heart(draft_feature: str) -> None:
    """Field case 30: after overfitting, every draft is right from the first block on."""
    messages = [{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "four ok"}]
    text = chat_text(ByteTokenizer(eos=(EOS, CLOSE)), messages, name="chat")
    (document,) = capture_texts(tiny_target(), [text])
    one = prepare(document, np.arange(260), labels="text")
    layer = tiny_draft_layer(draft_feature=draft_feature, head=260)
    before = evaluate(layer, [one])
    config = TrainConfig(
        tokens=200 * 8,
        batch=8,
        lags=(0, 0, 0, 0, 1) if draft_feature == "own" else (1, 1, 1, 1, 1),
        evaluate_every=1000,
    )
    optimizer = torch.optim.AdamW(layer.parameters(), lr=2e-3)
    batches, place = Batches([one], [], config, longest=4096), Place()
    for _ in range(200):
        samples = [drawn.sample(layer) for drawn in batches.draw(place)]
        loss, _ = draft_loss(layer(samples), samples, soft=0.7)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    after = evaluate(layer, [one])
    assert after.by_depth == (1.0,) * 5
    assert after.tau == 4.0  # eight tokens: 5 accepted and the target's own, then the last two
    assert before.tau < 2


def test_a_stopped_run_goes_on_without_a_trace(tmp_path: Path, own: list[Prepared]) -> None:
    whole = _run(tmp_path / "whole", own)
    assert [step for step, _ in whole] == list(range(12))
    first = _run(tmp_path / "parts", own, stop_after=5)  # stopped after step 5, last checkpoint at 3
    assert first == whole[:5]
    states = tmp_path / "parts" / "state-00000004.part"  # a checkpoint that was being written when the process died
    states.mkdir()
    (states / "facts.json").write_text("{")
    second = _run(tmp_path / "parts", own, stop_after=4)
    assert second == whole[3:7]
    assert second + _run(tmp_path / "parts", own)[1:] == whole[3:]
    assert whole[0][1] > whole[-1][1]


def test_a_checkpoint_of_other_sizes_is_refused(tmp_path: Path, own: list[Prepared]) -> None:
    _run(tmp_path, own, stop_after=3)
    layer = tiny_draft_layer(draft_feature="own", head=180)
    layer.gate = torch.nn.Parameter(torch.zeros(32, 64))
    with pytest.raises(ValueError, match="layer of other sizes"):
        train(layer, own, [], own, CONFIG, tmp_path, longest=4096)


def test_early_stop(tmp_path: Path, own: list[Prepared]) -> None:
    config = replace(CONFIG, learning_rate=1e-9, evaluate_every=1, patience=2)
    assert len(_run(tmp_path, own, config=config)) == 3  # the first evaluation is the best, then two bring nothing


def test_the_learning_rate() -> None:
    config = TrainConfig(tokens=1000, batch=10, warmup=3, decay=0.5, learning_rate=1.0)
    rates = [learning_rate(config, step) for step in range(100)]
    assert rates[:5] == [0.25, 0.5, 0.75, 1.0, 1.0]
    assert rates[49] == 1.0
    assert rates[75] == pytest.approx(0.5)
    assert rates[99] == pytest.approx(0.02)


def test_shares_lags_and_shifts(own: list[Prepared]) -> None:
    config = replace(CONFIG, lags=(0.5, 0, 0.5, 0, 0), self_share=0.75, batch=200, feature_dropout=0.2)
    batches, place = Batches(own, _prepared(1, length=30, seed=9), config, longest=500), Place()
    drawn = [one for _ in range(40) for one in batches.draw(place)]
    assert {one.lag for one in drawn} == {1, 3}
    assert abs(place.rows[0] / sum(place.rows) - 0.75) < 0.02
    assert all(one.offset + len(one.prepared.document.tokens) <= 500 for one in drawn)
    assert 0.3 < sum(one.offset > 0 for one in drawn) / len(drawn) < 0.7
    assert 0.1 < sum(one.hidden_before > 0 for one in drawn) / len(drawn) < 0.3
    epoch = [own.index(one.prepared) for one in drawn if one.prepared in own][: len(own)]
    assert sorted(epoch) == list(range(len(own)))
    unshifted = Batches(own, [], replace(config, anchor_offset=False), longest=500)
    assert not any(one.offset for one in unshifted.draw(Place()))


def test_slices_keep_what_is_before(own: list[Prepared]) -> None:
    one = own[0]
    part = slice_of(one, np.random.default_rng(3), 7)
    assert part.rows == 7
    at = int(np.flatnonzero(one.trained == part.trained[0])[0])
    assert part.trained.tolist() == one.trained[at : at + 7].tolist()
    assert len(part.document.tokens) == part.trained[-1] + 1
    assert (part.best == one.best[at : at + 7]).all()
    assert slice_of(one, np.random.default_rng(3), one.rows) is one


def test_runs_and_head() -> None:
    assert runs(np.array([3, 4, 5, 9, 10])).tolist() == [0, 1, 2, 0, 1]
    made = documents(3, length=20, answer_from=4)
    ids = choose_head(made, 260, 30)
    assert (np.diff(ids) > 0).all()
    said = np.concatenate([d.topk_ids[d.trained > 0, 0] for d in made])
    values, counts = np.unique(said, return_counts=True)
    assert np.isin(values[counts >= 3], ids).all()
    prepared = prepare(made[0], ids)
    shares = from_bfloat16(np.zeros(1, dtype=np.uint16))[0]
    assert (prepared.weights[prepared.ids < 0] == shares).all()
    inside = prepared.ids >= 0
    assert (ids[prepared.ids[inside]] == made[0].topk_ids[prepared.trained][inside]).all()


def test_repeats_and_held_out_prompts_are_left_out() -> None:
    made = documents(4, length=20, answer_from=6)
    twin = replace(made[1], name="twin", tokens=np.concatenate([made[1].tokens[:15], made[0].tokens[15:20]]))
    kept = without_repeats([made[0], made[0], made[1], twin, made[2]], [made[2], made[3]])
    assert [d.name for d in kept] == ["text:0", "text:1", "twin"]
    kept = without_repeats([made[0], twin], [made[1]])  # the twin has the prompt of a held-out text
    assert [d.name for d in kept] == ["text:0"]


def test_a_whole_run_writes_a_layer(tmp_path: Path) -> None:
    target = tiny_target()
    for part, count in ((TRAIN, 6), (HELD_OUT, 3)):
        writer = FeatureWriter(tmp_path / "features" / part, identity=target.identity)
        for document in documents(count, length=24, answer_from=6, seed=len(part)):
            writer.add(replace(document, greedy=True))
        writer.flush()
    config = Config(layer=LayerConfig(head=200, window=12), train=replace(CONFIG, threads=1))
    go: Callable[..., object] = lambda out, config, **more: train_layer(  # noqa: E731
        RandomWeights(),
        "tiny",
        config,
        tmp_path / out,
        features=[tmp_path / "features"],
        max_position=4096,
        tell=lambda text: None,
        **more,
    )
    go("out", config)
    layer = read_layer(tmp_path / "out" / "layer")
    layer.card.check_target(SOURCE.config, SOURCE.sha256)
    held_out = layer.card.training["held_out"]
    assert len(held_out["acceptance_by_depth"]) == 5
    assert layer.card.training["config"]["train"]["tokens"] == 720
    embed = SOURCE.matrix("embed")
    assert layer.card.embed_gain == pytest.approx(1 / np.sqrt(np.mean(embed**2)), rel=0.1)
    with pytest.raises(ValueError, match=r"another train.learning_rate"):
        go("out", replace(config, train=replace(config.train, learning_rate=1.0)))
    later = replace(config.train, start_from=str(tmp_path / "out" / "layer"), tokens=60, learning_rate=1e-9)
    go("later", replace(config, train=later))
    went_on = read_layer(tmp_path / "later" / "layer")
    assert (went_on.head_ids == layer.head_ids).all()
    np.testing.assert_allclose(went_on.matrices["gate"], layer.matrices["gate"], atol=1e-5)
    shutil.rmtree(tmp_path / "features" / HELD_OUT)
    with pytest.raises(ValueError, match="no features in"):
        go("new", config)
