"""Several drafters in one tree, and those that cost time asked only where it pays."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from scripted import IdTokenizer, Oracle, Raw, hash_target

from exactspec.bench.propose import NoCache, rows_of_nothing
from exactspec.budget import CostModel
from exactspec.drafters import CopyDrafter, ModelDrafter, RecycleDrafter, UnionDrafter
from exactspec.drafters.base import Context, DraftBudget, Verified
from exactspec.drafters.worth import LONGEST, PROBE, Worth, best_rate
from exactspec.engine import Engine
from exactspec.params import SamplingParams
from exactspec.tree import DraftTree

COST = CostModel()


class Priced(Oracle):
    """An oracle whose calls take `seconds`; counts them."""

    name = "priced"

    def __init__(self, text: Sequence[int], seconds: float, **options: Any) -> None:
        super().__init__(text, **options)
        self.seconds, self.calls = seconds, 0

    def call_s(self, state: list[int], budget: DraftBudget) -> float:
        return self.seconds

    def draft(self, history: list[int], budget: DraftBudget) -> DraftTree:
        self.calls += 1
        return super().draft(history, budget)


def run(union: UnionDrafter, text: Sequence[int], *, begin: int, plain_s: float = 0.01) -> int:
    """Steps through `text` from `begin` on, taking every tree whole; how many."""
    ids = np.array(text, dtype=np.int64)
    none = np.empty(0, dtype=np.int64)
    state = union.begin(Context(ids[:begin], none, NoCache(begin - 1)))
    at, steps = begin, 0
    while at < len(ids):
        tree = union.propose(state, DraftBudget(16, 16, COST, plain_s))
        path: list[int] = []
        while at + len(path) < len(ids) - 1:
            node = tree.child(path[-1] if path else -1, int(ids[at + len(path)]))
            if node is None:
                break
            path.append(node)
        new = ids[at : at + len(path) + 1]
        at += len(new)
        made = rows_of_nothing(len(tree) + 1)
        union.commit(state, Verified(tree, np.array(path, dtype=np.int64), new, made, NoCache(at - 1)))
        steps += 1
    return steps


RANDOM = [random.Random(i).randrange(5000) for i in range(400)]


def test_a_cheap_one_that_is_right_is_asked_in_every_step() -> None:
    priced = Priced(RANDOM, 0.002)
    steps = run(UnionDrafter((CopyDrafter(),), RecycleDrafter(), costly=(priced,)), RANDOM, begin=100)
    assert priced.calls == steps < 45


def test_one_that_is_wrong_or_too_dear_is_hardly_asked() -> None:
    wrong = Priced([0] * 400, 0.005)
    steps = run(UnionDrafter((CopyDrafter(),), RecycleDrafter(), costly=(wrong,)), RANDOM, begin=100)
    assert steps > 290
    assert wrong.calls <= 3 + steps // PROBE
    dear = Priced(RANDOM, 0.2)  # 20 plain steps for 8 tokens
    run(UnionDrafter((CopyDrafter(),), RecycleDrafter(), costly=(dear,)), RANDOM, begin=100)
    assert dear.calls <= 1 + 300 // PROBE


def test_where_copying_goes_well_it_is_not_asked() -> None:
    text = [*RANDOM[:200], *RANDOM[:200]]
    priced = Priced(text, 0.02)
    run(UnionDrafter((CopyDrafter(),), RecycleDrafter(), costly=(priced,)), text, begin=205)
    assert priced.calls <= 3
    alone = Priced(RANDOM, 0.02)  # the same price, where nothing can be copied
    run(UnionDrafter((CopyDrafter(),), RecycleDrafter(), costly=(alone,)), RANDOM, begin=205)
    assert alone.calls >= 20


def test_without_a_clock_it_is_always_asked() -> None:
    dear = Priced(RANDOM, 5.0)
    steps = run(UnionDrafter((CopyDrafter(),), RecycleDrafter(), costly=(dear,)), RANDOM, begin=100, plain_s=0.0)
    assert dear.calls == steps


def test_both_trees_are_verified_together() -> None:
    history = [5, 6, 7, 8, 9, 5, 6, 7]
    priced = Priced([*history, 30, 31], 0.0)
    union = UnionDrafter((CopyDrafter(),), RecycleDrafter(), costly=(priced,))
    state = union.begin(Context(np.array(history), np.empty(0, dtype=np.int64), NoCache(7)))
    tree = union.propose(state, DraftBudget(16, 8))
    below = {int(tree.tokens[i]): tree.sources[tree.source[i]] for i in tree.children()}
    assert below == {8: "copy", 30: "priced"}
    assert union.name == "copy+recycle+priced"


@pytest.mark.parametrize(
    "params", [SamplingParams(max_tokens=60), SamplingParams(max_tokens=60, temperature=1, seed=2)]
)
def test_junk_from_one_drafter_harms_nothing(params: SamplingParams) -> None:
    """Numbers of all sorts in the tree of a costly drafter: the compiled parts must never see them."""
    n = 6
    junk = DraftTree(
        np.array([3, -7, 5, 10**12, 3, 2]),
        np.array([-1, 0, 99, 2, -1, 4]),
        np.array([0, 5, 0, -3, 0, 0]),
        np.array([np.nan, 2, -1, 0.5, 0.4, 0.9], dtype=np.float32),
        np.full(n, -9),
        ("junk",),
    )
    prompt = [3, 1, 4, 1, 5]
    plain = Engine(hash_target(), IdTokenizer(), draft="none").generate(prompt, params)
    union = UnionDrafter((CopyDrafter(),), RecycleDrafter(), costly=(Raw(junk),))
    found = Engine(hash_target(), IdTokenizer(), draft=union).generate(prompt, params)
    assert found.token_ids == plain.token_ids
    assert found.metrics.num_draft_tokens > 0


def test_a_model_beside_auto_by_name() -> None:
    """Where nothing repeats only the model is right; its nodes are credited to it."""
    prompt, params = [3, 1, 4, 1, 5], SamplingParams(max_tokens=80)
    target = hash_target(order=None)
    plain = Engine(target, IdTokenizer(), draft="none").generate(prompt, params)
    models = {"twin": ModelDrafter(hash_target(order=None), IdTokenizer())}
    engine = Engine(target, IdTokenizer(), draft="auto+model:twin", draft_models=models)
    found = engine.generate(prompt, params)
    assert found.token_ids == plain.token_ids
    assert found.metrics.tau > 2
    assert found.metrics.accepted_by_source["model"] > 30
    with pytest.raises(ValueError, match="which is not open"):
        Engine(target, IdTokenizer(), draft="auto+model:other")


def test_forks_cuts_and_ends_reach_every_drafter() -> None:
    priced = Priced(RANDOM, 0.0)
    union = UnionDrafter((CopyDrafter(),), RecycleDrafter(), costly=(priced,))
    ids = np.array(RANDOM[:50])
    state = union.begin(Context(ids, np.empty(0, dtype=np.int64), NoCache(49)))
    twin = union.fork(state)
    union.truncate(state, 20)
    assert state.costly == [RANDOM[:20]]
    assert twin.costly == [RANDOM[:50]]
    assert state.recycled.history == RANDOM[:20]
    assert twin.recycled.history == RANDOM[:50]
    union.close(state)
    assert state.costly == [[]]
    assert union.propose(twin, DraftBudget(8, 8, COST, 0.01)).tokens.tolist()[:2] == RANDOM[50:52]


class TestWorth:
    def test_the_best_number_of_nodes(self) -> None:
        assert best_rate([], COST) == (1.0, 1.0)
        assert best_rate([0.01, 0.001], COST) == (1.0, 1.0)
        tokens, spent = best_rate([0.5, 0.9, 0.8], COST)
        assert (tokens, spent) == (pytest.approx(3.2), COST(4))

    def test_what_it_gave_where_the_free_ones_had_little_says_nothing_of_elsewhere(self) -> None:
        worth = Worth()
        for _ in range(20):
            if worth.ask([0.1], call=0.5, cost=COST):
                worth.record(tokens=1, cost=1.2)
        assert not worth.ask([0.1], call=0.5, cost=COST)
        assert worth.ask([0.5], call=0.5, cost=COST)

    def test_it_is_tried_again_now_and_then(self) -> None:
        worth = Worth()
        asked = []
        for turn in range(10 * PROBE):
            asked.append(worth.ask([0.1], call=1.0, cost=COST))
            worth.record(tokens=1 if turn < 3 * PROBE else 9, cost=1.4)
        assert 2 <= sum(asked[: 3 * PROBE]) <= 4
        assert all(asked[-PROBE:])

    def test_and_ever_less_often_while_that_does_not_help(self) -> None:
        worth, steps = Worth(), 6 * LONGEST
        asked = []
        for _ in range(steps):
            asked.append(worth.ask([0.1], call=1.0, cost=COST))
            worth.record(tokens=1, cost=1.4)
        late = asked[steps // 2 :]
        assert 2 <= sum(late) <= 1 + len(late) // LONGEST
        worth.record(tokens=1, cost=1.4)
        for _ in range(2 * LONGEST):  # texts change
            if worth.ask([0.1], call=0.2, cost=COST):
                worth.record(tokens=9, cost=1.2)
        assert worth.ask([0.1], call=0.2, cost=COST)
