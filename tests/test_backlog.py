"""Plain steps that are told late: nothing of them is lost, and what the drafter knows is what it would have known."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scripted import IdTokenizer, hash_target

from exactspec.backlog import MOST, Backlog
from exactspec.budget import Budget
from exactspec.drafters.base import Context, DraftBudget, Drafter, State, Verified, takes_late
from exactspec.drafters.copy import CopyDrafter
from exactspec.drafters.first_of import FirstOf
from exactspec.drafters.recycle import RecycleDrafter
from exactspec.drafters.union import UnionDrafter
from exactspec.drafting import Drafting
from exactspec.engine import Engine
from exactspec.params import SamplingParams, Speculation
from exactspec.target.base import SegmentRows
from exactspec.tree import DraftTree

K = 4
VOCAB = 50


def plain(token: int, seed: int = 0) -> Verified:
    """A plain step whose row names `K` ids."""
    random = np.random.default_rng((token, seed))
    ids = random.permutation(VOCAB)[:K].astype(np.int64)[None]
    logits = np.sort(random.normal(size=K).astype(np.float32))[::-1][None].copy()
    rows = SegmentRows(
        ids[:, 0].copy(), np.ones((1, 3), np.float32), np.full(1, -1), np.empty((0, 0), np.float32), ids, logits
    )
    return Verified(DraftTree.empty(), np.empty(0, np.int64), np.array([token]), rows, hash_target().new_cache())


def test_it_gives_one_accepted_chain() -> None:
    backlog = Backlog()
    steps = [plain(token) for token in (7, 8, 9)]
    for step in steps:
        backlog.add(step)
    kept = [step.rows.topk_ids.copy() for step in steps]
    for step in steps:
        step.rows.topk_ids[:] = -5  # they are views of what the next forward overwrites
    late = backlog.take()
    assert late is not None
    assert late.tokens.tolist() == [7, 8, 9]
    assert (late.tree.tokens.tolist(), late.tree.parents.tolist(), late.path.tolist()) == ([7, 8], [-1, 0], [0, 1])
    assert (late.rows.topk_ids == np.concatenate(kept)).all()
    assert (late.rows.topk_logits == np.concatenate([step.rows.topk_logits for step in steps])).all()
    assert len(late.rows) == 3
    assert (len(backlog), backlog.take()) == (0, None)


def test_other_steps_are_no_plain_ones() -> None:
    step = plain(3)
    drafted = Verified(DraftTree.chain([1], source="x"), step.path, step.tokens, step.rows, step.cache)
    with pytest.raises(ValueError, match="only plain steps"):
        Backlog().add(drafted)


class Resting:
    """Proposals are wanted in every fourth step alone."""

    def __init__(self) -> None:
        self.steps = 0

    def nodes(self) -> int:
        return 0 if self.steps % 4 else 8

    def choose(self, tree: DraftTree, *, cost: Any = None) -> DraftTree:
        return DraftTree.empty()

    def allow(self, tree: DraftTree) -> DraftTree:
        return tree

    def record(self, *, drafted: int, accepted: int, promised: float | None = None) -> None:
        self.steps += 1


class Never(Resting):
    def nodes(self) -> int:
        return 0


class Heard:
    """Notes the lengths of what it is told."""

    name = "heard"

    def __init__(self, *, takes_late: bool = True) -> None:
        self.takes_late = takes_late
        self.told: list[int] = []

    def begin(self, context: Context) -> State:
        return None

    def propose(self, state: State, budget: DraftBudget) -> DraftTree:
        return DraftTree.empty()

    def commit(self, state: State, verified: Verified) -> None:
        self.told.append(len(verified.tokens))

    def truncate(self, state: State, n: int) -> None:
        assert self.told, "what was kept back comes first"

    def fork(self, state: State) -> State:
        return None

    def close(self, state: State) -> None:
        return None


def drafting(drafter: Drafter, budget: type[Budget] = Resting) -> Drafting:
    made = Drafting(drafter, Speculation(), vocab_size=VOCAB, budget=budget)
    made.begin([1, 2], [], hash_target().new_cache())
    return made


def test_steps_wait_for_the_next_proposal_and_no_longer() -> None:
    heard = Heard()
    its = drafting(heard)
    for token in range(9):
        its.propose(5)
        its.commit(plain(token))
    assert heard.told == [4, 4]
    its.close()
    assert heard.told == [4, 4, 1]


def test_no_more_than_a_few_wait() -> None:
    heard = Heard()
    its = drafting(heard, Never)
    for token in range(2 * MOST + 3):
        its.commit(plain(token % VOCAB))
    assert heard.told[0] == MOST
    assert sum(heard.told) >= 2 * MOST


def test_one_that_does_not_say_so_hears_of_every_step() -> None:
    heard = Heard(takes_late=False)
    its = drafting(heard)
    for token in range(5):
        its.commit(plain(token))
    assert heard.told == [1] * 5


def test_forks_and_next_prompts_know_everything() -> None:
    heard = Heard()
    its = drafting(heard, Never)
    its.commit(plain(3))
    its.fork()
    assert heard.told == [1]
    its.commit(plain(4))
    its.commit(plain(5))
    its.resume(3, [9, 9, 9], hash_target().new_cache())
    assert heard.told == [1, 2, 3]


@pytest.mark.parametrize(
    "make", [CopyDrafter, RecycleDrafter, lambda: UnionDrafter((CopyDrafter(),), RecycleDrafter())]
)
def test_drafters_propose_what_they_would_have_proposed(make: Any) -> None:
    """What was told late and what was told at once give one tree, but for how far the table of successors is trusted:
    that is judged by the table as it was when the steps came."""
    text = [int(t) for t in np.random.default_rng(5).integers(0, 9, 60)] * 2
    drafter = make()
    assert takes_late(drafter)
    trees = []
    for late in (False, True):
        cache = hash_target().new_cache()
        state = drafter.begin(Context(np.array([1, 2]), np.empty(0, np.int64), cache))
        backlog = Backlog()
        for token in text:
            if not late:
                drafter.commit(state, plain(token))
                continue
            backlog.add(plain(token))
            if len(backlog) == 3:
                drafter.commit(state, backlog.take())
        tree = drafter.propose(state, DraftBudget(16, 16))
        scored = sorted(zip(tree.score.tolist(), tree.tokens.tolist(), strict=True), reverse=True)
        trees.append(([token for _, token in scored], scored))
    (first, first_scored), (second, second_scored) = trees
    assert first[0] == second[0]
    if make is CopyDrafter:
        assert first_scored == second_scored


def test_costly_drafters_hear_of_every_step() -> None:
    assert not takes_late(UnionDrafter((), RecycleDrafter(), costly=(Heard(takes_late=False),)))
    assert not takes_late(FirstOf((CopyDrafter(), CopyDrafter())))


def test_answers_are_the_plain_ones() -> None:
    params = SamplingParams(max_tokens=400, temperature=1.0, seed=4)
    answers = {
        Engine(hash_target(max_length=500), IdTokenizer(), draft=draft).generate([3, 1, 4], params).token_ids
        for draft in ("none", "auto")
    }
    assert len(answers) == 1
