"""Costs of rows follow the steps, and no disturbed step moves them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scripted import IdTokenizer, Oracle, hash_target

from exactspec.budget import CostModel
from exactspec.drafting import Drafting
from exactspec.engine import Engine
from exactspec.live_cost import LEAST, STALE, LiveCost
from exactspec.params import SamplingParams, Speculation

TABLE = CostModel(rows=(1, 4, 16, 64), cost=(1.0, 1.2, 2.0, 6.0))


def feed(cost: LiveCost, *, context: int, seconds: Any, steps: int = 60) -> None:
    for step in range(steps):
        rows = (1, 4, 8, 16)[step % 4]
        cost.record(rows=rows, context=context, seconds=seconds(rows, step))


def test_without_steps_it_is_the_measured_curve() -> None:
    cost = LiveCost(TABLE, plain_s=0.02)
    for rows in (1, 3, 8, 40):
        assert cost(rows) == cost.at(0)(rows) == cost.at(20_000)(rows) == TABLE(rows)
    assert cost.plain_s(100) == 0.02


def test_rows_that_grow_dear_at_long_contexts_are_dear_there_alone() -> None:
    cost = LiveCost(TABLE, plain_s=0.02)
    feed(cost, context=300, seconds=lambda rows, _: 0.02 * TABLE(rows))
    feed(cost, context=12_000, seconds=lambda rows, _: 0.02 * (TABLE(rows) + 0.5 * rows))
    near, far = cost.at(200), cost.at(10_000)
    assert [near(rows) for rows in (4, 8, 16)] == pytest.approx([TABLE(rows) for rows in (4, 8, 16)])
    for rows in (4, 8, 16):
        assert far(rows) == pytest.approx((TABLE(rows) + 0.5 * rows) / 1.5, rel=0.02)
    assert cost.plain_s(12_000) == pytest.approx(0.03)


def test_a_slow_machine_changes_the_seconds_and_not_the_shape() -> None:
    cost = LiveCost(TABLE, plain_s=0.02)
    feed(cost, context=300, seconds=lambda rows, _: 0.06 * TABLE(rows))
    assert [cost.at(300)(rows) for rows in (2, 8, 64)] == pytest.approx([TABLE(rows) for rows in (2, 8, 64)])
    assert cost.plain_s(300) == pytest.approx(0.06)


def test_disturbed_steps_move_nothing() -> None:
    cost = LiveCost(TABLE, plain_s=0.02)
    feed(cost, context=300, seconds=lambda rows, step: 0.02 * TABLE(rows) * (50 if step % 16 > 12 else 1), steps=160)
    assert [cost.at(300)(rows) for rows in (4, 8, 16)] == pytest.approx([TABLE(rows) for rows in (4, 8, 16)])


def test_a_few_steps_say_nothing_yet_and_a_wild_range_is_held() -> None:
    cost = LiveCost(TABLE)
    for _ in range(LEAST - 1):
        cost.record(rows=8, context=0, seconds=9.0)
        cost.record(rows=1, context=0, seconds=0.01)
    assert cost.at(0)(8) == TABLE(8)
    for _ in range(40):
        cost.record(rows=8, context=0, seconds=9.0)
        cost.record(rows=1, context=0, seconds=0.01)
    assert cost.at(0)(8) == pytest.approx(4 * TABLE(8))
    costs = [cost.at(0)(rows) for rows in range(1, 65)]
    assert costs == sorted(costs)
    assert costs[0] == 1.0


def test_what_was_seen_long_ago_is_forgotten() -> None:
    cost = LiveCost(TABLE)
    feed(cost, context=300, seconds=lambda rows, _: 0.02 * TABLE(rows) * (3 if rows == 8 else 1))
    assert cost.at(300)(8) == pytest.approx(3 * TABLE(8))
    for _ in range(STALE + 1):
        cost.record(rows=1, context=300, seconds=0.02)
    assert cost.at(300)(8) == pytest.approx(TABLE(8))


def test_nonsense_is_left_out() -> None:
    cost = LiveCost(TABLE)
    for seconds in (0.0, -1.0, float("nan")):
        for _ in range(30):
            cost.record(rows=4, context=0, seconds=seconds)
    assert cost.at(0)(4) == TABLE(4)


def test_an_engine_learns_from_its_steps_and_answers_the_same() -> None:
    """Whatever the clock says; rows that turn out too dear are not verified."""
    prompt = [3, 1, 4, 1, 5]
    params = SamplingParams(max_tokens=300)
    plain = Engine(hash_target(order=None), IdTokenizer(), draft="none").generate(prompt, params).token_ids
    for plain_s in (1e-9, 1e-4, 10.0):
        cost = LiveCost(TABLE, plain_s=plain_s)
        oracle = Oracle([*prompt, *plain])
        found = Engine(hash_target(order=None), IdTokenizer(), draft=oracle, cost=cost).generate(prompt, params)
        assert found.token_ids == plain
        assert cost.plain_s(100) != plain_s

    dear = LiveCost(CostModel(), plain_s=0.01)
    drafting = Drafting(Oracle(list(range(90))), Speculation(draft="copy"), vocab_size=97, cost=dear)
    cache: Any = hash_target().new_cache()
    cache.tokens = [0, 1]
    drafting.begin([0, 1, 2], [], cache)
    assert len(drafting.propose(20)) == 8
    for _ in range(60):
        drafting.took(rows=9, seconds=1.0)
        drafting.took(rows=1, seconds=0.01)
    assert len(drafting.propose(20)) < 8


def test_it_is_made_of_a_measured_cost() -> None:
    assert LiveCost.of(None) is None
    made = LiveCost.of(CostModel(one_s=0.5))
    assert made is not None
    assert made.plain_s(0) == 0.5
    assert made.measured == CostModel(one_s=0.5)
    assert np.isfinite(made(100))
