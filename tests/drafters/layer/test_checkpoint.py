"""The file of a draft layer: what is written is read back, and nothing else is."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tiny_layer import random_layer, tiny_card
from tiny_weights import RandomWeights

from exactspec.drafters.layer.card import Card
from exactspec.drafters.layer.checkpoint import CARD, WEIGHTS, matrix_shapes, read_layer, write_layer
from exactspec.drafters.layer.footprint import told


@pytest.mark.parametrize(("precision", "step"), [("bfloat16", 2**-8), ("int8", 0.5 / 127)])
def test_what_is_written_is_read_back(tmp_path: Path, precision: str, step: float) -> None:
    layer = random_layer(tiny_card(RandomWeights(), precision=precision, training={"tokens": 7}))
    card = write_layer(tmp_path / "new", layer)
    back = read_layer(tmp_path / "new")
    assert back.card == card == replace(layer.card, weights_sha256=card.weights_sha256)
    assert back.card.training == {"tokens": 7}
    assert (back.head_ids == layer.head_ids).all()
    for name in matrix_shapes(card):
        original = layer.matrices[name]
        bound = step * (np.abs(original) if precision == "bfloat16" else np.abs(original).max(axis=1, keepdims=True))
        assert (np.abs(back.matrices[name] - original) <= bound).all(), name
        assert np.abs(back.matrices[name] - original).max() > 0, name
    assert all((back.norms[name] == values).all() for name, values in layer.norms.items())


def test_the_safetensors_package_reads_it_too(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="safetensors gives bfloat16 to torch alone")
    from safetensors.torch import load_file

    layer = random_layer(tiny_card(RandomWeights()))
    write_layer(tmp_path, layer)
    tensors = load_file(tmp_path / WEIGHTS)
    assert tensors["gate"].dtype == torch.bfloat16
    expected = torch.from_numpy(layer.matrices["gate"]).bfloat16()
    assert torch.equal(tensors["gate"], expected)  # the same rounding: to nearest, ties to even


def test_another_target_is_refused_with_the_reason() -> None:
    source = RandomWeights()
    card = tiny_card(source)
    card.check_target(source.config, source.sha256)
    for other, reason in (
        (RandomWeights(seed=1), "other weights of tiny"),
        (RandomWeights(hidden_size=96), "its hidden_size is 64, this target's is 96"),
        (RandomWeights("qwen2"), "its family is llama, this target's is qwen2"),
        (RandomWeights(num_kv_heads=1), "its num_kv_heads is 2, this target's is 1"),
    ):
        with pytest.raises(ValueError, match=reason):
            card.check_target(other.config, other.sha256)


def test_damaged_and_mixed_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="holds no draft layer"):
        read_layer(tmp_path / "nothing")
    card = tiny_card(RandomWeights())
    write_layer(tmp_path / "a", random_layer(card, 1))
    write_layer(tmp_path / "b", random_layer(card, 2))
    mixed = tmp_path / "b" / WEIGHTS
    mixed.write_bytes((tmp_path / "a" / WEIGHTS).read_bytes())
    with pytest.raises(ValueError, match="another card"):
        read_layer(tmp_path / "b")
    data = bytearray((tmp_path / "a" / WEIGHTS).read_bytes())
    data[-3] ^= 1
    (tmp_path / "a" / WEIGHTS).write_bytes(bytes(data))
    with pytest.raises(ValueError, match="damaged"):
        read_layer(tmp_path / "a")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda c: c.update(format="exactspec-longspec/9"), "not of the format"),
        (lambda c: c.pop("window"), "does not fit its format"),
        (lambda c: c.update(extra=1), "does not fit its format"),
        (lambda c: c.update(window=0), "window must be a whole number"),
        (lambda c: c.update(embed_gain=float("nan")), "embed_gain must be positive"),
        (lambda c: c.update(draft_feature="old"), "draft_feature must be one of"),
        (lambda c: c.update(top_chunks=65), "top_chunks must be 0 to 64"),
        (lambda c: c["sizes"].update(kv_heads=4), "multiple of the kv heads"),
        (lambda c: c["sizes"].update(inner=64), "gate is uint16"),
        (lambda c: c.update(precision="int8"), "tensors are missing or not known"),
    ],
)
def test_cards_are_checked(tmp_path: Path, change, reason: str) -> None:
    write_layer(tmp_path, random_layer(tiny_card(RandomWeights())))
    card = json.loads((tmp_path / CARD).read_text())
    change(card)
    (tmp_path / CARD).write_text(json.dumps(card))
    with pytest.raises(ValueError, match=reason):
        read_layer(tmp_path)


def test_ids_outside_the_vocabulary_or_twice_are_refused(tmp_path: Path) -> None:
    layer = random_layer(tiny_card(RandomWeights(), head=3))
    for ids in ([1, 1, 2], [3, 2, 1], [0, 1, 260], [-1, 0, 1]):
        with pytest.raises(ValueError, match="must ascend within the vocabulary"):
            write_layer(tmp_path, replace(layer, head_ids=np.array(ids)))
    assert not (tmp_path / CARD).exists()


def test_what_a_card_of_top_chunks_takes(tmp_path: Path) -> None:
    plain, more = (tiny_card(RandomWeights(), top_chunks=top) for top in (0, 2))
    assert told(plain).endswith("8k tokens of context")
    # eight chunks, two kv heads, 32 floats
    assert told(more) == f"{told(plain)}; 2.0 kB more for each 1,024 tokens of the longest"
    old = {key: value for key, value in json.loads(plain.to_json()).items() if key != "top_chunks"}
    assert Card.from_json(json.dumps(old)) == plain


def test_a_card_survives_json() -> None:
    card = tiny_card(RandomWeights(), training={"data": ["ä"], "acceptance": {"1": 0.5}})
    assert Card.from_json(card.to_json()) == card
