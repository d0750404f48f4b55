"""Drafting with a second model: its cache in step, its trees, its costs, and never another token."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scripted import ByteTokenizer, Clock, IdTokenizer, ListTarget, hash_target, script_target

from exactspec.budget import CostModel
from exactspec.drafters import CopySpecDrafter, FirstOf, ModelDrafter
from exactspec.drafters.base import Context, DraftBudget, State, Verified
from exactspec.drafters.growing import Growth, Shape, probabilities
from exactspec.drafters.pays import ModelTimes, Pays
from exactspec.engine import Engine
from exactspec.params import SamplingParams, Speculation
from exactspec.target.base import FloatArray, Segment, Want
from exactspec.tree import DraftTree

VOCAB = 97
TOKENIZER = IdTokenizer(VOCAB)
PROMPT = [3, 1, 4, 1, 5, 9, 2, 6] * 3
GREEDY = SamplingParams(max_tokens=90)
SAMPLED = SamplingParams(max_tokens=90, temperature=0.7, top_p=0.9, seed=11)
PLAIN = Speculation(draft="none")


def blurred(noise: float, *, seed: int = 1, **options: Any) -> ListTarget:
    """The hash target with another one's logits mixed in: right most of the time."""
    one, other = hash_target(order=2), hash_target(order=3)

    def logits(path: list[int]) -> FloatArray:
        return one._logits(path) + np.float32(noise) * other._logits([seed, *path])

    return ListTarget(logits, vocab_size=VOCAB, **options)


def target_like(d: ModelDrafter) -> Any:
    return d.model


class Checked(ModelDrafter):
    """Compares, after every proposal, the model's cache and its first-level probabilities with a run from nothing."""

    checks = 0

    def propose(self, state: State, budget: DraftBudget) -> DraftTree:
        tree = super().propose(state, budget)
        model = target_like(self)
        assert state.cache.tokens == state.known
        if len(tree):
            ids = state.reading.ids
            assert state.known[: len(ids) - 1] == ids[:-1]
            assert state.known[: state.agreed] == ids[: state.agreed]
            path_of = {-1: ids}
            for node, (token, parent) in enumerate(zip(tree.tokens.tolist(), tree.parents.tolist(), strict=True)):
                path_of[node] = [*path_of[parent], token]
                above = 1.0 if parent < 0 else float(tree.score[parent])
                logits = model._logits(path_of[parent])
                best = np.argsort(-logits, kind="stable")[: model.top_k]
                assert token in best
                at = best.tolist().index(token)
                assert tree.score[node] == pytest.approx(above * probabilities(logits[best])[at], rel=1e-5)
            type(self).checks += 1
        return tree


@pytest.mark.parametrize("length", [None, 1, 2, 4, 7])
@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_same_tokens_and_a_cache_in_step(length: int | None, params: SamplingParams) -> None:
    clock = Clock()
    drafter = Checked(blurred(0.1), TOKENIZER, length=length, clock=clock)
    how = Speculation(draft="self", draft_length=length or 0)
    engine = Engine(hash_target(before=clock.before), TOKENIZER, draft=drafter, speculation=how)
    before = Checked.checks
    plain = engine.generate(PROMPT, params, speculation=PLAIN)
    drafted = engine.generate(PROMPT, params)
    assert drafted.token_ids == plain.token_ids
    assert drafted.metrics.accepted_by_source["model"] > 5
    assert Checked.checks > before + 10


@pytest.mark.parametrize("length", [1, 2, 4, 7])
@pytest.mark.parametrize("prompt", [1, 7, 50])
def test_09_the_target_as_its_own_drafter_is_never_rejected(length: int, prompt: int) -> None:
    engine = Engine(hash_target(order=None), TOKENIZER)
    ids = list(itertools.islice(itertools.cycle(PROMPT), prompt))
    done = engine.generate(
        ids,
        SamplingParams(max_tokens=64),
        speculation=Speculation(draft="self", draft_length=length),
        record_steps=True,
    )
    assert done.metrics.num_accepted_tokens == done.metrics.num_draft_tokens
    for step in done.steps[:-1]:
        assert step.emitted == min(length, 64 - (step.context - prompt) - 1) + 1


class Spoilt(Checked):
    """Every 5th drafted token is a wrong one, put in after the model chose."""

    drafted = 0
    wrong: list[int]

    def propose(self, state: State, budget: DraftBudget) -> DraftTree:
        tree = super().propose(state, budget)
        tokens = tree.tokens.copy()
        self.wrong = []
        for i in range(len(tokens)):
            self.drafted += 1
            if self.drafted % 5 == 0:
                tokens[i] = (tokens[i] + 1) % VOCAB
                self.wrong.append(i)
        return DraftTree(tokens, tree.parents, tree.source, tree.score, tree.origin, tree.sources)

    def commit(self, state: State, verified: Verified) -> None:
        if len(verified.tree):
            # All before the first wrong one, in the round after a rejection too.
            assert len(verified.path) == (self.wrong[0] if self.wrong else len(verified.tree))
        super().commit(state, verified)


@pytest.mark.parametrize("length", [1, 2, 4, 7])
def test_09_a_rejection_leaves_no_trace(length: int) -> None:
    target = hash_target(order=None)
    drafter = Spoilt(hash_target(order=None), TOKENIZER, length=length)
    engine = Engine(target, TOKENIZER, draft=drafter, speculation=Speculation(draft="self", draft_length=length))
    plain = engine.generate(PROMPT, GREEDY, speculation=PLAIN)
    assert engine.generate(PROMPT, GREEDY).token_ids == plain.token_ids
    assert drafter.drafted > 40


def test_a_session_and_its_fork_stay_in_step() -> None:
    drafter = Checked(blurred(0.1), TOKENIZER, length=3)
    fixed = Speculation(draft="self", draft_length=3)  # all that is drafted is verified
    engine = Engine(hash_target(), TOKENIZER, draft=drafter, speculation=fixed)
    session = engine.session()
    first = session.generate(PROMPT, SamplingParams(max_tokens=30))
    longer = [*PROMPT, *first.token_ids, 5, 6, 7]
    twin = session.fork()
    short = replace(SAMPLED, max_tokens=30, temperature=0.2)
    shorter = [*PROMPT, *first.token_ids[:20], 8, 9]
    for one in (session, twin, session):
        for ids in (longer, shorter, longer):
            got = one.generate(ids, short)
            assert got.token_ids == engine.generate(ids, short, speculation=PLAIN).token_ids
            assert got.metrics.accepted_by_source["model"] > 0
    session.close()
    twin.close()


def test_what_the_cache_knows_is_not_computed_again() -> None:
    model = hash_target(order=2)
    drafter = ModelDrafter(model, TOKENIZER, length=3)
    state = begin(drafter, PROMPT)
    drafter.propose(state, DraftBudget(8, 8))
    assert model.rows == [len(PROMPT), 1, 1]
    tree = drafter.propose(state, DraftBudget(8, 8))  # nothing was committed: the root alone is asked again
    assert model.rows[3:] == [1, 1, 1]
    commit(drafter, state, tree, [*tree.tokens.tolist(), 50])
    drafter.propose(state, DraftBudget(8, 8))  # the last node and the new token are missing
    assert model.rows[6:] == [2, 1, 1]
    commit(drafter, state, DraftTree.empty(), [51])
    drafter.truncate(state, len(PROMPT) - 5)
    commit(drafter, state, DraftTree.empty(), [60, 61], step=False)
    drafter.propose(state, DraftBudget(8, 8))
    assert model.rows[9:] == [2, 1, 1]


def begin(drafter: ModelDrafter, tokens: Sequence[int]) -> State:
    none = np.empty(0, dtype=np.int64)
    return drafter.begin(Context(np.array(tokens, dtype=np.int64), none, hash_target().new_cache()))


def commit(drafter: ModelDrafter, state: State, tree: DraftTree, tokens: Sequence[int], *, step: bool = True) -> None:
    """As the engine tells it; the accepted nodes are a chain from the root down."""
    cache = hash_target().new_cache()
    (rows,) = hash_target().forward([Segment.chain(cache, [0] * (len(tree) + 1), Want.ARGMAX)])
    path = np.arange(len(tokens) - 1 if len(tree) else 0, dtype=np.int64)
    if not step:
        (rows,) = [
            type(rows)(
                *(a[:0] for a in (rows.argmax, rows.hidden, rows.logits_index, rows.logits)),
                rows.topk_ids[:0],
                rows.topk_logits[:0],
            )
        ]
    drafter.commit(state, Verified(tree, path, np.array(tokens, dtype=np.int64), rows, cache))


def test_a_long_prompt_is_read_in_chunks_one_a_step() -> None:
    model = hash_target(order=2)
    drafter = ModelDrafter(model, TOKENIZER, length=2)
    prompt = list(itertools.islice(itertools.cycle(PROMPT), 700))
    fixed = Speculation(draft="self", draft_length=2)
    engine = Engine(hash_target(order=2), TOKENIZER, draft=drafter, speculation=fixed)
    done = engine.generate(prompt, SamplingParams(max_tokens=12), record_steps=True)
    assert model.rows[:3] == [256, 256, 190]  # two plain steps have added a token each
    assert [step.rows for step in done.steps[:3]] == [1, 1, 3]


@pytest.mark.parametrize(("row_s", "tokens", "read"), [(0.008, 200, 0), (0.0005, 200, 200), (0.008, 20, 20)])
def test_a_prompt_is_read_only_where_that_can_pay(row_s: float, tokens: int, read: int) -> None:
    """A step of the target takes 10 ms, a row of the model most of that, or a twentieth."""
    model = hash_target(order=2)
    drafter = ModelDrafter(model, TOKENIZER, row_s=row_s)
    state = begin(drafter, list(itertools.islice(itertools.cycle(PROMPT), tokens)))
    drafter.propose(state, DraftBudget(8, 8, plain_s=0.010))
    assert sum(model.rows[:1]) == read


def test_past_its_own_context_it_is_silent(caplog: pytest.LogCaptureFixture) -> None:
    model = hash_target(order=2, max_length=40)
    drafter = ModelDrafter(model, TOKENIZER, length=4)
    fixed = Speculation(draft="self", draft_length=4)
    engine = Engine(hash_target(order=2), TOKENIZER, draft=drafter, speculation=fixed)
    done = engine.generate(PROMPT, GREEDY, record_steps=True)
    assert done.token_ids == engine.generate(PROMPT, GREEDY, speculation=PLAIN).token_ids
    assert model.last_position == 39
    for step in done.steps:
        assert (step.rows > 1) == (step.context <= 40 and step.context - len(PROMPT) < 89)
    for more in range(1, 5):  # one of these has a step that is one token past it
        engine.generate([*PROMPT, *range(more)], GREEDY)
    long = engine.generate(PROMPT * 3, GREEDY)
    assert long.metrics.num_draft_tokens == 0
    assert not caplog.records  # it was not switched off by an error


@pytest.mark.parametrize("nodes", [1, 2, 5, 30])
@pytest.mark.parametrize("depth", [1, 2, 6])
def test_trees_keep_to_the_budget(nodes: int, depth: int) -> None:
    drafter = ModelDrafter(hash_target(order=None, scale=20.0), TOKENIZER)
    state = begin(drafter, PROMPT)
    tree = drafter.propose(state, DraftBudget(nodes, depth))
    assert 1 <= len(tree) <= nodes
    assert tree.depths().max() <= depth
    assert len(tree.sanitise(VOCAB)) == len(tree)
    above = np.where(tree.parents < 0, 1.0, tree.score[tree.parents])
    assert (tree.score <= above + 1e-6).all()


def everything(logits: Any, root: list[int], shape: Shape) -> dict[tuple[int, ...], float]:
    """Growth written out: paths and their probabilities, the best `width` unasked ones asked at each level."""

    def below(path: tuple[int, ...], prob: float) -> None:
        row = logits([*root, *path])
        best = np.argsort(-row, kind="stable")[:4]
        for i, (token, p) in enumerate(zip(best.tolist(), probabilities(row[best]), strict=True)):
            if i < shape.children and (i == 0 or prob * p >= 0.02):
                found[(*path, token)] = prob * p

    found: dict[tuple[int, ...], float] = {}
    asked: set[tuple[int, ...]] = set()
    below((), 1.0)
    for _ in range(shape.levels):
        open_ = sorted((p for p in found if p not in asked and p[-1] not in shape.leaves), key=lambda p: -found[p])
        level = [p for p in open_[: shape.width] if 3 * found[p] >= found[open_[0]]]
        asked.update(level)
        for path in level:
            below(path, found[path])
    return found


@pytest.mark.parametrize("width", [1, 2, 3, 5])
@pytest.mark.parametrize("seed", range(4))
def test_growth_is_best_first(width: int, seed: int) -> None:
    """Whatever is committed, dropped and computed again in the cache: the tree is the one written out."""
    target = hash_target(order=None, scale=4.0 + 4 * seed)
    root = [seed, 5, 7]
    cache = target.new_cache()
    (rows,) = target.forward([Segment.chain(cache, root, Want.TOPK)])
    first = rows.topk_ids[2].tolist(), probabilities(rows.topk_logits[2])
    cache.keep(range(3))

    def forward(segment: Segment, asked: Sequence[int]) -> list[tuple[list[int], list[float]]]:
        assert set(np.flatnonzero(segment.want)) == set(asked)
        (rows,) = target.forward([segment])
        return [(rows.topk_ids[i].tolist(), probabilities(rows.topk_logits[i])) for i in asked]

    shape = Shape(levels=6, width=width, children=3, leaves=frozenset({11, 40, 41}))
    growth = Growth(cache, root[-1], forward, shape, lambda mass, rows: True)
    grown = growth.run(first)
    paths: list[tuple[int, ...]] = []
    for token, parent in zip(grown.tokens, grown.parents, strict=True):
        paths.append((*(paths[parent] if parent >= 0 else ()), token))
    assert dict(zip(paths, grown.probs, strict=True)) == pytest.approx(everything(target._logits, root, shape))
    assert cache.tokens == [*root[:-1], *growth.spine_tokens]


def test_copyspec_before_a_model() -> None:
    model = ModelDrafter(blurred(0.3), TOKENIZER)
    engine = Engine(hash_target(order=2), TOKENIZER, draft_models={"small": model})
    spec = Speculation(draft="copyspec+model:small", draft_length=3, block=6)
    params = SamplingParams(max_tokens=220)
    done = engine.generate(PROMPT, params, speculation=spec, record_steps=True)
    assert done.token_ids == engine.generate(PROMPT, params, speculation=PLAIN).token_ids
    assert done.metrics.accepted_by_source["model"] > 0
    assert done.metrics.accepted_by_source["copyspec"] > 0
    # What copying finds comes first; where it finds nothing, three tokens of the model.
    rule = CopySpecDrafter(gamma=spec.gamma, block=spec.block)
    history = [*PROMPT, *done.token_ids]
    for step in done.steps[:-8]:
        state = rule.begin(Context(np.array(history[: step.context]), np.empty(0), hash_target().new_cache()))
        copied = len(rule.propose(state, DraftBudget(48, 48)))
        assert step.rows - 1 == (copied or 3)


def test_a_chain_of_drafters_needs_one() -> None:
    with pytest.raises(ValueError, match="at least one"):
        FirstOf(())


def test_a_model_that_is_not_open_is_refused_before_any_work() -> None:
    engine = Engine(hash_target(), TOKENIZER)
    with pytest.raises(ValueError, match="needs the model 'other', which is not open"):
        engine.generate(PROMPT, GREEDY, speculation=Speculation(draft="model:other"))
    with pytest.raises(ValueError, match="not open"):
        Engine(hash_target(), TOKENIZER, draft="model:other")
    for wrong in ("model:", "models:x", "copy+model:x", "selfish"):
        with pytest.raises(ValueError, match="draft"):
            Speculation(draft=wrong)
    for length in (-1, 65, 1.5):
        with pytest.raises(ValueError, match="draft_length"):
            Speculation(draft="self", draft_length=length)  # type: ignore[arg-type]


def test_an_answer_that_ends_is_not_drafted_on() -> None:
    tokenizer = ByteTokenizer()
    text = b"abcdef"
    script = [*text, 256, 0, 0, 0]
    model = script_target(3, script)
    drafter = ModelDrafter(model, tokenizer)
    state = drafter.begin(Context(np.array([1, 2, 3]), np.empty(0), model.new_cache()))
    tree = drafter.propose(state, DraftBudget(48, 16))
    best = tree.path(int(np.argmax(tree.depths())))
    assert tree.tokens[best].tolist() == [*text, 256]


# -- costs -------------------------------------------------------------------------------------------------------------


def test_the_cost_of_a_call_is_a_median_by_level() -> None:
    times = ModelTimes(row_s=0.010)
    assert times.call_s(3) == pytest.approx(0.030)
    for seconds in (0.004, 0.004, 5.0, 0.004, 0.004):
        times.record(0, 1, seconds)
    for seconds in (0.006, 0.006, 0.006, 5.0):
        times.record(1, 1, seconds)
    assert times.call_s(1) == pytest.approx(0.004)
    assert times.call_s(2) == pytest.approx(0.010)
    assert times.call_s(3) == pytest.approx(0.010 + times.forward_s(1))
    assert times.call_s(0) == 0.0
    assert times.call_s(1, missing=64) > 3 * times.call_s(1)
    assert ModelTimes().call_s(4) == 0.0


def rounds(pays: Pays, n: int, *, agreed: int, draft_s: float, verify_s: float = 0.020) -> int:
    """n steps as the drafter takes them; how many were drafted."""
    drafted = 0
    for _ in range(n):
        if pays.call():
            drafted += 1
            pays.drafted(levels=3, draft_s=draft_s, verify_s=verify_s, rows=4, promised=2.0, agreed=agreed)
        else:
            pays.plain(0.016)
    return drafted


def test_drafts_that_do_not_pay_end_and_are_tried_again() -> None:
    pays = Pays()
    pays.plain(0.016)
    assert rounds(pays, 60, agreed=3, draft_s=0.020) == 60  # 4 tokens in 40 ms, one plain in 16
    assert rounds(pays, 600, agreed=0, draft_s=0.020) < 40
    assert rounds(pays, 600, agreed=4, draft_s=0.010) > 300


def test_steps_that_it_was_not_asked_in_teach_it_nothing() -> None:
    """Beside other drafters the model may wait for many steps."""
    clock = Clock()
    drafter = ModelDrafter(hash_target(), TOKENIZER, clock=clock)
    state = begin(drafter, PROMPT)
    seen: list[float] = []

    class Seen(Pays):
        def plain(self, seconds: float) -> None:
            seen.append(seconds)

        def drafted(self, **figures: Any) -> None:
            seen.append(figures["verify_s"])

    state.calls.pays = Seen()
    tree = drafter.propose(state, DraftBudget(8, 8))
    clock.now += 0.020
    commit(drafter, state, tree, [50])
    assert seen == [pytest.approx(0.021)]
    clock.now += 5.0
    commit(drafter, state, DraftTree.empty(), [51])
    assert len(seen) == 1
    tree = drafter.propose(state, DraftBudget(8, 8))
    other = DraftTree.chain([1, 2], source="copy", scores=[0.9, 0.8])
    commit(drafter, state, tree.merge(other), [52])
    assert len(seen) == 1


def test_what_was_measured_counts_more_than_what_was_told() -> None:
    pays = Pays()
    pays.costs(CostModel(), 0.001)
    assert not pays.another_level(0.9, 1, 0.005)
    pays.costs(CostModel(), 0.016)
    assert pays.another_level(0.9, 1, 0.005)
    pays.plain(0.004)
    pays.costs(CostModel(), 1.0)
    assert not pays.another_level(0.9, 1, 0.005)
    told = Pays()
    told.costs(CostModel(), 1.0)
    told.drafted(levels=2, draft_s=0.004, verify_s=0.004, rows=1, promised=1.0, agreed=1)
    assert not told.another_level(0.9, 1, 0.005)


def test_one_slow_step_ends_nothing() -> None:
    pays = Pays()
    pays.plain(0.016)
    rounds(pays, 30, agreed=3, draft_s=0.010)
    rounds(pays, 1, agreed=3, draft_s=9.0)
    assert rounds(pays, 30, agreed=3, draft_s=0.010) == 30


def test_reading_is_worth_what_drafts_save() -> None:
    pays = Pays()
    assert pays.worth_reading(100.0, 0.001)  # nothing is known of the target
    pays.plain(0.040)
    assert pays.worth_reading(1.0, 0.004)  # some 18 ms a token less, 128 times
    assert not pays.worth_reading(4.0, 0.004)
    assert not pays.worth_reading(0.1, 0.030)  # no draft gains anything
    assert pays.worth_reading(4.0, None)


def test_levels_stop_where_tokens_cost_more_than_they_bring() -> None:
    pays = Pays()
    pays.plain(0.016)
    assert pays.another_level(0.9, 1, 0.005)
    assert not pays.another_level(0.3, 1, 0.005)
    assert not pays.another_level(0.9, 1, 0.015)
    assert not pays.another_level(0.2, 1, None)
