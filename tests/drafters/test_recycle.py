"""Recycled successors: what a row said comes back where its context does, in well-formed trees with honest scores."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted import IdTokenizer, hash_target

from exactspec.bench.propose import NoCache, rows_of_nothing
from exactspec.drafters.base import Context, DraftBudget, Verified, wants_topk
from exactspec.drafters.recycle import RecycleDrafter
from exactspec.engine import Engine
from exactspec.params import SamplingParams
from exactspec.tree import DraftTree

RECYCLE = RecycleDrafter()
BUDGET = DraftBudget(48, 8)
Row = Sequence[tuple[int, float]]


def begin(history: Sequence[int]) -> Any:
    none = np.empty(0, dtype=np.int64)
    return RECYCLE.begin(Context(np.array(history, dtype=np.int64), none, NoCache(len(history) - 1)))


def step(state: Any, token: int, best: Row, tree: DraftTree | None = None, others: Sequence[Row] = ()) -> None:
    """A step that appends `token`, where the root's row says `best` and those of the tree's nodes, all rejected, say
    `others`."""
    tree = DraftTree.empty() if tree is None else tree
    rows = [best, *others]
    k = max(len(row) for row in rows)
    ids, logits = np.full((len(rows), k), -1, dtype=np.int64), np.zeros((len(rows), k), dtype=np.float32)
    for i, row in enumerate(rows):
        ids[i, : len(row)], logits[i, : len(row)] = [t for t, _ in row], [x for _, x in row]
    made = replace(rows_of_nothing(len(rows)), topk_ids=ids, topk_logits=logits)
    none = np.empty(0, dtype=np.int64)
    RECYCLE.commit(state, Verified(tree, none, np.array([token]), made, NoCache(0)))


def say(state: Any, *tokens: int) -> None:
    """Append tokens of which no row is known, as a session's next prompt does."""
    made = rows_of_nothing(0)
    none = np.empty(0, dtype=np.int64)
    RECYCLE.commit(state, Verified(DraftTree.empty(), none, np.array(tokens), made, NoCache(0)))


def first_level(tree: DraftTree) -> list[int]:
    return tree.tokens[tree.parents < 0].tolist()


SURE: Row = [(7, 9.0), (8, 2.0), (9, 1.0)]


def test_it_asks_for_the_best_ids_and_proposes_them_where_the_context_returns() -> None:
    assert wants_topk(RECYCLE)
    state = begin([1, 5])
    assert len(RECYCLE.propose(state, BUDGET)) == 0
    step(state, 7, SURE)
    assert len(RECYCLE.propose(state, BUDGET)) == 0
    say(state, 1, 5)
    tree = RECYCLE.propose(state, BUDGET)
    assert first_level(tree)[0] == 7
    assert tree.score[0] > 0.5
    assert tree.sources == ("recycle",)
    assert set(tree.origin.tolist()) == {-1}


def test_two_tokens_say_more_than_one() -> None:
    state = begin([1, 5])
    step(state, 7, [(7, 9.0), (3, 1.0)])
    say(state, 2, 5)
    step(state, 8, [(8, 9.0), (4, 1.0)])
    say(state, 1, 5)
    tree = RECYCLE.propose(state, BUDGET)
    assert first_level(tree)[0] == 7
    assert tree.score[0] > 6 * max(tree.score[i] for i in tree.children() if tree.tokens[i] == 8)
    say(state, 2, 5)
    assert first_level(RECYCLE.propose(state, BUDGET))[0] == 8
    say(state, 3, 5)  # a pair that is not known: both
    tree = RECYCLE.propose(state, BUDGET)
    assert set(first_level(tree)[:2]) == {7, 8}
    known = begin([1, 5])
    step(known, 7, [(7, 9.0), (3, 1.0)])
    say(known, 1, 5)
    assert tree.score.max() < RECYCLE.propose(known, BUDGET).score.max()


def test_rows_of_rejected_nodes_are_kept_too() -> None:
    state = begin([1, 5])
    drafted = DraftTree.chain([6, 2], source="recycle")
    step(state, 9, [(9, 5.0)], drafted, [[(11, 5.0)], [(12, 5.0)]])
    say(state, 5, 6)
    tree = RECYCLE.propose(state, BUDGET)
    assert tree.tokens.tolist() == [11]  # after 5 6
    say(state, 2)
    assert RECYCLE.propose(state, BUDGET).tokens.tolist() == [12]  # after 6 2


def test_the_tree_goes_on_below_its_own_nodes_within_the_budget() -> None:
    state = begin([0, 1])
    for token in (2, 3, 4, 5, 6):
        step(state, token, [(token, 9.0), (30, 1.0)])
    say(state, 0, 1)
    tree = RECYCLE.propose(state, BUDGET)
    assert tree.tokens[tree.path(int(np.flatnonzero(tree.tokens == 6)[0]))].tolist() == [2, 3, 4, 5, 6]
    assert RECYCLE.propose(state, DraftBudget(48, 2)).depths().max() == 2
    assert len(RECYCLE.propose(state, DraftBudget(3, 8))) == 3


def test_the_table_is_of_fixed_size_and_begins_empty_for_every_request() -> None:
    state = begin([1, 2])
    size = sum(array.nbytes for array in state.arrays)
    rng = random.Random(0)
    last = 0
    for _ in range(3000):
        last = rng.randrange(50_000)
        step(state, last, [(rng.randrange(50_000), float(8 - i)) for i in range(8)])
    assert sum(array.nbytes for array in state.arrays) == size < 4_000_000
    other = begin(state.history[-2:])
    assert len(RECYCLE.propose(other, BUDGET)) == 0


def test_a_fork_goes_its_own_way() -> None:
    state = begin([1, 5])
    step(state, 7, SURE)
    twin = RECYCLE.fork(state)
    say(state, 1, 5)
    before = RECYCLE.propose(state, BUDGET)
    for _ in range(2):
        say(twin, 1, 5)
        step(twin, 20, [(20, 9.0), (21, 1.0)])
    after = RECYCLE.propose(state, BUDGET)
    assert before.tokens.tolist() == after.tokens.tolist()
    assert before.score.tolist() == after.score.tolist()
    say(twin, 1, 5)
    assert first_level(RECYCLE.propose(twin, BUDGET))[0] == 20


def test_what_is_cut_off_is_forgotten() -> None:
    state = begin([1, 5])
    step(state, 7, SURE)
    kept = len(state.history)
    say(state, 3)
    step(state, 21, [(21, 9.0), (22, 3.0)])
    say(state, 1, 5)
    step(state, 40, [(40, 9.0)])  # writes over what 1 5 said before
    RECYCLE.truncate(state, kept)
    assert state.history == [1, 5, 7]
    say(state, 7, 3)
    assert len(RECYCLE.propose(state, BUDGET)) == 0
    say(state, 1, 5)
    assert not {21, 22, 40} & set(RECYCLE.propose(state, BUDGET).tokens.tolist())


def test_what_a_cut_leaves_alone_is_kept() -> None:
    state = begin([1, 5])
    step(state, 7, SURE)
    kept = len(state.history)
    say(state, 3, 4)
    RECYCLE.truncate(state, kept)
    say(state, 1, 5)
    assert first_level(RECYCLE.propose(state, BUDGET))[0] == 7


def test_promises_that_do_not_come_true_are_believed_less() -> None:
    """Rows of a target that is sampled hot: they name 7, and something else comes."""
    rng = random.Random(1)
    state = begin([1, 5])
    scores = []
    for _ in range(120):
        tree = RECYCLE.propose(state, BUDGET)
        if len(tree):
            scores.append(float(tree.score[0]))
        step(state, rng.randrange(100, 200), SURE)
        say(state, 1, 5)
    assert scores[0] > 0.5
    assert scores[-1] < 0.3 * scores[0]


class TestExtend:
    def test_a_token_that_both_offer_is_one_likelier_node(self) -> None:
        state = begin([1, 5])
        step(state, 7, SURE)
        say(state, 1, 5)
        base = DraftTree.chain([7], source="copy", scores=[0.6], origins=[3])
        alone = begin([1, 5])  # knows nothing
        one, both = RECYCLE.extend(alone, base, BUDGET, sound=1), RECYCLE.extend(state, base, BUDGET, sound=1)
        assert one.tokens.tolist() == [7]
        assert one.score[0] == pytest.approx(0.6, abs=0.08)
        assert first_level(both).count(7) == 1
        at = both.child(-1, 7)
        assert at is not None
        assert both.score[at] > 0.7
        assert both.sources[both.source[at]] == "recycle"  # which scored it higher
        assert both.origin[at] == -1

    def test_who_scored_it_higher_has_the_credit(self) -> None:
        state = begin([1, 5])
        step(state, 7, SURE)
        say(state, 1, 5)
        base = DraftTree.chain([8], source="copy", scores=[0.6], origins=[3])
        tree = RECYCLE.extend(state, base, BUDGET, sound=1)
        at = tree.child(-1, 8)
        assert at is not None
        assert (tree.sources[tree.source[at]], int(tree.origin[at])) == ("copy", 3)
        beside = tree.child(-1, 7)
        assert beside is not None
        assert tree.sources[tree.source[beside]] == "recycle"
        assert tree.score[beside] < 1 - tree.score[at]  # what the copy leaves over

    def test_it_goes_on_below_the_nodes_of_others(self) -> None:
        state = begin([6, 9])
        step(state, 4, [(4, 9.0)])
        say(state, 1, 2)
        base = DraftTree.chain([6, 9], source="copy", scores=[0.9, 0.85])
        tree = RECYCLE.extend(state, base, BUDGET, sound=1)
        assert tree.tokens.tolist() == [6, 9, 4]
        assert tree.parents.tolist() == [-1, 0, 1]
        assert [tree.sources[i] for i in tree.source] == ["copy", "copy", "recycle"]

    @given(seed=st.integers(0, 10_000), most=st.integers(1, 60), deepest=st.integers(1, 6))
    @settings(max_examples=60, deadline=None)
    def test_trees_are_well_formed_and_scores_are_probabilities(self, seed: int, most: int, deepest: int) -> None:
        rng = random.Random(seed)
        vocab = 12
        state = begin([rng.randrange(vocab) for _ in range(2)])
        for _ in range(20):
            base = _random_tree(rng, vocab)
            tree = RECYCLE.extend(state, base, DraftBudget(most, deepest), sound=rng.randrange(2))
            assert len(tree) <= most
            if len(tree):
                assert tree.sanitise(vocab, max_nodes=most, max_depth=deepest) is tree
                above = np.where(tree.parents >= 0, tree.score[tree.parents], 1.0)
                assert (tree.score <= above + 1e-6).all()
                sums = np.zeros(len(tree) + 1)
                np.add.at(sums, tree.parents, tree.score)
                assert sums[-1] <= 1 + 1e-5
                assert (sums[:-1] <= tree.score + 1e-5).all()
            rows = [_random_row(rng, vocab) for _ in range(len(tree) + 1)]
            step(state, rng.randrange(vocab), rows[0], tree, rows[1:])


def _random_row(rng: random.Random, vocab: int) -> Row:
    logits = sorted((rng.gauss(0, 3) for _ in range(8)), reverse=True)
    return list(zip(rng.sample(range(vocab), 8), logits, strict=True))


def _random_tree(rng: random.Random, vocab: int) -> DraftTree:
    tokens: list[int] = []
    parents: list[int] = []
    scores: list[float] = []
    for _ in range(rng.randrange(30)):
        parent = rng.randrange(-1, len(tokens))
        token = rng.randrange(vocab)
        if any(p == parent and t == token for p, t in zip(parents, tokens, strict=True)):
            continue
        above = scores[parent] if parent >= 0 else 1.0
        used = sum(s for s, p in zip(scores, parents, strict=True) if p == parent)
        tokens.append(token)
        parents.append(parent)
        scores.append(rng.random() * max(0.0, above - used))
    zero = np.zeros(len(tokens), dtype=np.int64)
    score = np.array(scores, dtype=np.float32)
    return DraftTree(np.array(tokens, dtype=np.int64), np.array(parents, dtype=np.int64), zero, score, zero - 1, ("x",))


@pytest.mark.parametrize("draft", ["recycle", "auto"])
@pytest.mark.parametrize(
    "params", [SamplingParams(max_tokens=150), SamplingParams(max_tokens=150, temperature=1, seed=5)]
)
def test_a_target_that_repeats_itself_is_drafted_and_answers_the_same(draft: str, params: SamplingParams) -> None:
    prompt = [3, 1, 4, 1, 5]
    answers = [
        Engine(hash_target(order=1, vocab_size=40), IdTokenizer(), draft=mode).generate(prompt, params)
        for mode in ("none", draft)
    ]
    assert answers[0].token_ids == answers[1].token_ids
    assert answers[1].metrics.tau > (1.1 if params.temperature else 4)
