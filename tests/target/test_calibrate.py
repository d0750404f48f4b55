"""Which products become wide: by their measured loss, within a budget, the same every time."""

from __future__ import annotations

import numpy as np
import pytest
from tiny_weights import FourBitWeights, RandomWeights

from exactspec.target.base import Segment, Want
from exactspec.target.calibrate import (
    BUDGET,
    ROWS,
    Part,
    calibrate,
    calibration_tokens,
    choose,
    divergence,
    losses,
    parts_of,
)
from exactspec.target.exact import ExactTarget
from exactspec.target.precision import KINDS, Wide


@pytest.mark.parametrize("layers", [1, 2, 3, 5, 30])
def test_every_product_is_in_one_part(layers: int) -> None:
    config = RandomWeights(num_layers=layers).config
    parts = parts_of(config)
    seen = [(part.kind, i) for part in parts for i in range(part.start, part.stop)]
    assert sorted(seen) == sorted((kind, i) for kind in KINDS for i in range(layers))
    assert [part.kind for part in parts].count("head") == 1
    # the last layer, whose loss nothing dampens, is never averaged with others
    assert all(part.stop - part.start == 1 for part in parts if part.stop == layers)
    per_layer = sum(part.cost for part in parts if part.kind != "head") / layers
    attention = config.num_heads * config.head_dim
    assert per_layer == config.hidden_size * (
        2 * attention + 2 * config.num_kv_heads * config.head_dim + 3 * config.intermediate_size
    )


def test_tokens_are_fixed_and_within_any_vocabulary() -> None:
    assert calibration_tokens(151936, 3) == calibration_tokens(151936, 5)[:3]
    for size in (1, 2, 101, 151936):
        assert all(0 <= token < size for token in calibration_tokens(size, 500))
    assert len(set(calibration_tokens(151936, ROWS))) > ROWS // 2


def test_divergence_is_that_of_a_small_change() -> None:
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(20, 50)) * 3
    change = rng.normal(size=(20, 50)) * 0.02
    log_p = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    log_q = logits + change - np.log(np.exp(logits + change).sum(axis=1, keepdims=True))
    exact = (np.exp(log_p) * (log_p - log_q)).sum(axis=1).mean()
    assert divergence(change, np.exp(log_p)) == pytest.approx(exact, rel=0.03)
    assert divergence(change + 5.0, np.exp(log_p)) == pytest.approx(exact, rel=0.03)  # a shift of a row changes nothing


def test_the_part_that_hurts_is_found_and_gets_the_budget() -> None:
    """A model whose logits move only when layer 3's `down` or the head is narrow."""
    config = RandomWeights(num_layers=4).config
    rng = np.random.default_rng(1)
    plain, down, head = (rng.normal(size=(8, 30)).astype(np.float32) for _ in range(3))
    buffer = np.zeros_like(plain)  # one buffer for all calls, as the target's own

    def logits(wide: Wide) -> np.ndarray:
        buffer[:] = plain
        if not wide.layers[3][KINDS.index("down")]:
            buffer[:] += 0.05 * down
        if not wide.head:
            buffer[:] += 0.01 * head
        return buffer

    parts = parts_of(config)
    lost = losses(parts, logits, config.num_layers)
    assert {(part.kind, part.start) for part, x in zip(parts, lost, strict=True) if x > 0} == {("down", 3), ("head", 0)}
    assert lost[parts.index(next(p for p in parts if p.kind == "head"))] < max(lost)
    found = calibrate(config, logits, budget=1.0, enough=0.0)
    assert found.head
    assert np.argwhere(np.array(found.layers)).tolist() == [[3, KINDS.index("down")]]
    assert calibrate(config, logits, budget=0.0) == Wide.everywhere(4, False)


def test_a_model_that_loses_little_stays_narrow() -> None:
    parts = [Part("qkv", i, i + 1, 10) for i in range(4)]
    lost = [0.004, 0.001, 0.0005, 0.0002]
    assert choose(parts, lost, 1.0, 0.01) == [False] * 4
    assert choose(parts, lost, 1.0, 0.002) == [True, False, False, False]
    assert choose(parts, lost, 1.0, 0.0016) == [True, True, False, False]
    assert choose(parts, lost, 1.0) == [True] * 4


def test_the_budget_holds() -> None:
    rng = np.random.default_rng(2)
    for _ in range(50):
        parts = [Part("qkv", i, i + 1, int(rng.integers(1, 100))) for i in range(12)]
        lost = rng.random(12).tolist()
        chosen = choose(parts, lost, 0.4)
        spent = sum(part.cost for part, flag in zip(parts, chosen, strict=True) if flag)
        room = 0.4 * sum(part.cost for part in parts) - spent
        assert room >= 0
        assert all(flag or part.cost > room for part, flag in zip(parts, chosen, strict=True))


def test_a_mixed_target_is_the_same_every_time_and_lies_between() -> None:
    source = RandomWeights(num_layers=4)
    tokens = np.random.default_rng(3).integers(0, source.config.vocab_size, 60).tolist()
    rows, identities, chosen = {}, [], []
    for accuracy, threads in (("narrow", 2), ("wide", 2), ("mixed", 1), ("mixed", 2)):
        target = ExactTarget(source, threads=threads, accuracy=accuracy)
        (out,) = target.forward([Segment.chain(target.new_cache(), tokens, Want.LOGITS)])
        rows[accuracy, threads] = out.logits.copy()
        if accuracy == "mixed":
            identities.append(target.identity)
            chosen.append(target.wide)
            assert target._calibrated() == chosen[-1]  # measured anew, whatever was kept on disk
        target.close()
    mixed = rows["mixed", 2]
    assert chosen[0] == chosen[1]
    assert identities[0] == identities[1]
    assert chosen[0].digest in identities[0]
    assert np.array_equal(rows["mixed", 1], mixed)
    parts = parts_of(source.config)
    spent = sum(
        part.cost
        for part in parts
        if (chosen[0].head if part.kind == "head" else chosen[0].layers[part.start][KINDS.index(part.kind)])
    )
    assert 0 < spent <= BUDGET * sum(part.cost for part in parts)
    finest = rows["wide", 2]
    assert 0 < np.abs(mixed - finest).mean() < np.abs(rows["narrow", 2] - finest).mean()


def test_digest_tells_flags_apart() -> None:
    assert Wide.everywhere(3, True).digest != Wide.everywhere(3, False).digest
    assert Wide.everywhere(3, True).digest == Wide.everywhere(3, True).digest


def test_the_most_loss_per_multiply_add_comes_first() -> None:
    parts = [Part("qkv", 0, 1, 30), Part("o", 0, 1, 50), Part("head", 0, 0, 20)]
    assert choose(parts, [3.0, 9.0, 1.0], 0.5) == [False, True, False]
    assert choose(parts, [3.0, 1.0, 9.0], 0.5) == [True, False, True]


def test_four_bit_weights_are_never_wide() -> None:
    """They have no wide form, and the budget is left to the others."""
    kinds = dict.fromkeys(("q", "k", "v", "o", "gate", "up"), "Q4_1")
    source = FourBitWeights(kinds=kinds, num_layers=3, num_heads=2, num_kv_heads=1, head_dim=32)
    target = ExactTarget(source, threads=2, accuracy="narrow")
    tokens = calibration_tokens(target.vocab_size, ROWS)

    def logits(wide: Wide) -> np.ndarray:
        target._set_wide(wide)
        (rows,) = target.forward([Segment.chain(target.new_cache(), tokens, Want.LOGITS)])
        return rows.logits

    parts = parts_of(source.config)
    lost = losses(parts, logits, 3)
    assert all((x > 0) == (part.kind in ("down", "head")) for part, x in zip(parts, lost, strict=True))
    assert not any(any(layer[:3]) for layer in target._calibrated().layers)
    target.close()
