"""Weights and the draw from them: as exact as float64 allows, the same bits wherever a number stands."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from exactspec.softmax.entry import BLOCK, LEAST
from exactspec.softmax.load import compiled


def exp(values: object) -> np.ndarray:
    x = np.array(values, dtype=np.float64)
    compiled().exp(x)
    return x


def test_it_is_the_exponential_to_an_ulp_or_two() -> None:
    for low in (-1e-9, -0.7, -3.0, -40.0, LEAST):
        x = np.linspace(low, 0.0, 100_003)
        wanted = np.array([math.exp(v) for v in x])
        assert np.max(np.abs(exp(x) - wanted) / wanted) < 2.5 * 2**-52


def test_the_best_has_weight_one_and_the_impossible_none() -> None:
    assert exp([0.0, -0.0]).tolist() == [1.0, 1.0]
    assert exp([-np.inf, -1e308, np.nextafter(LEAST, -np.inf), -709.0]).tolist() == [0.0] * 4
    assert exp([LEAST])[0] == pytest.approx(math.exp(LEAST), rel=1e-15)
    assert exp([]).tolist() == []


@given(st.integers(0, 40), st.integers(1, 3 * BLOCK), st.integers(0, 2**32))
@settings(max_examples=100, deadline=None)
def test_a_number_has_the_same_bits_wherever_it_stands(offset: int, n: int, seed: int) -> None:
    x = -np.abs(np.random.default_rng(seed).normal(scale=9, size=n + offset))
    assert (exp(x)[offset:] == exp(x[offset:])).all()


def test_larger_numbers_have_no_smaller_weights() -> None:
    x = np.sort(-np.abs(np.random.default_rng(1).normal(scale=30, size=20_000)))
    assert (np.diff(exp(x)) >= 0).all()


WEIGHTS = hnp.arrays(
    np.float64,
    st.integers(1, 3 * BLOCK + 5),
    elements=st.one_of(st.just(0.0), st.floats(1e-300, 1.0), st.floats(0.1, 1.0)),
)


@given(WEIGHTS, st.one_of(st.floats(0, 1, exclude_max=True), st.just(0.0), st.just(1 - 2**-53)))
@settings(max_examples=400, deadline=None)
def test_the_id_is_the_one_whose_share_holds_the_number(weights: np.ndarray, u: float) -> None:
    at = compiled().pick(weights, u)
    if not weights.any():
        assert at == -1
        return
    assert weights[at] > 0
    total = math.fsum(weights)
    slack = total * len(weights) * 2**-52
    assert math.fsum(weights[:at]) <= u * total + slack
    assert math.fsum(weights[: at + 1]) >= u * total - slack


def test_ends_of_the_range() -> None:
    weights = np.zeros(1000)
    weights[[3, 700]] = 1.0
    assert compiled().pick(weights, 0.0) == 3
    assert compiled().pick(weights, np.nextafter(0.5, 0.0)) == 3
    assert compiled().pick(weights, 0.5) == 700
    assert compiled().pick(weights, 1 - 2**-53) == 700


def test_shares_are_the_weights() -> None:
    random = np.random.default_rng(2)
    weights = random.random(700)
    weights[random.random(700) < 0.3] = 0.0
    draws = 200_000
    seen = np.bincount([compiled().pick(weights, u) for u in random.random(draws)], minlength=700)
    expected = draws * weights / weights.sum()
    held = expected > 0
    assert not seen[~held].any()
    chi2 = float(((seen[held] - expected[held]) ** 2 / expected[held]).sum())
    freedom = int(held.sum()) - 1
    assert abs(chi2 - freedom) < 6 * math.sqrt(2 * freedom)
