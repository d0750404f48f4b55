"""The layer as a drafter: against its numpy reference, in step after every kind of step, of constant size, never in the
way of the target."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tiny_drafts import SOURCE, TOKENIZER, VOCAB, FromScratch, begun, drafter_of, paths, plain_text, read, same
from tiny_reference import reference_tree

from exactspec.budget import CostModel
from exactspec.drafters.base import DraftBudget, State, Verified
from exactspec.drafters.layer.footprint import state_bytes, weight_bytes
from exactspec.drafters.layer.kernels.frame import MOST_ROWS
from exactspec.drafters.longspec import PAPER_WIDTHS, LongSpecDrafter
from exactspec.engine import Engine
from exactspec.params import SamplingParams, Speculation
from exactspec.target.base import Cache, Segment, Want
from exactspec.target.exact import ExactTarget
from exactspec.tree import DraftTree

BUDGET = DraftBudget(max_nodes=100, max_depth=16)
GREEDY = SamplingParams(max_tokens=60, ignore_eos=True)
SAMPLED = SamplingParams(max_tokens=60, ignore_eos=True, temperature=1.0, seed=5)
PLAIN = Speculation(draft="none")
CAREFUL = Speculation(draft="recycle")  # for its budget
# Windows around what the ring's chunks and the rows of one job make of them.
WINDOWS = (12, 128, 200)


@pytest.fixture(scope="module")
def target() -> ExactTarget:
    return ExactTarget(SOURCE, threads=2, context=2048)


@pytest.mark.parametrize("draft_feature", ["verified", "own"])
@pytest.mark.parametrize(
    ("length", "window", "recent", "top"),
    [
        (1, 12, None, 0),
        (2, 12, None, 0),
        (50, 12, None, 0),
        (300, 128, 100, 0),
        (700, 200, 130, 0),
        (300, 12, 160, 1),
        (1500, 200, 130, 2),
    ],
)
def test_the_tree_is_that_of_the_reference(
    target: ExactTarget, length: int, window: int, recent: int | None, top: int, draft_feature: str
) -> None:
    drafter = drafter_of(
        target, window=window, recent=recent, top=top, draft_feature=draft_feature, widths=PAPER_WIDTHS
    )
    tokens = np.random.default_rng(length).integers(0, VOCAB, length)
    cache, features = read(target, tokens)
    tree = drafter.propose(begun(drafter, tokens, cache, features), BUDGET)
    expected = reference_tree(target, drafter, tokens, features)
    ours, theirs = (
        paths(tree.tokens, tree.parents, tree.score),
        paths(expected.tokens, expected.parents, expected.scores),
    )
    assert len(ours) == len(theirs) == sum(PAPER_WIDTHS)
    # int8 products and own keys of 8 bits of mantissa: probabilities are a few percent off, nearly equal ones swap, and
    # where a node takes its parent's output the differences add up.
    shared = ours.keys() & theirs.keys()
    assert len(shared) > 0.8 * len(theirs)
    off = {path: abs(np.log(ours[path] / theirs[path])) for path in shared}
    assert np.median(list(off.values())) < (0.08 if draft_feature == "verified" else 0.2)
    assert max(off.values()) < (0.35 if draft_feature == "verified" else 1.0)
    assert max(value for path, value in off.items() if len(path) == 1) < 0.12


@pytest.mark.parametrize(("cache_dtype", "top"), [("float32", 0), ("int8", 0), ("float32", 1), ("int8", 1)])
def test_reads_every_type_of_cache(cache_dtype: str, top: int) -> None:
    with_type = ExactTarget(SOURCE, threads=2, context=512, cache_dtype=cache_dtype)
    drafter = drafter_of(with_type, window=40, recent=150, top=top, widths=PAPER_WIDTHS)
    tokens = np.random.default_rng(3).integers(0, VOCAB, 300)
    cache, features = read(with_type, tokens)
    tree = drafter.propose(begun(drafter, tokens, cache, features), BUDGET)
    expected = reference_tree(with_type, drafter, tokens, features)
    ours, theirs = (
        paths(tree.tokens, tree.parents, tree.score),
        paths(expected.tokens, expected.parents, expected.scores),
    )
    shared = ours.keys() & theirs.keys()
    assert len(shared) > 0.8 * len(theirs)
    assert max(abs(np.log(ours[path] / theirs[path])) for path in shared) < 0.35


# With top chunks the answer goes past the end of a chunk, which is then one to choose from.
@pytest.mark.parametrize(
    ("window", "length", "top"), [*((window, 150, 0) for window in WINDOWS), (12, 355, 1), (128, 490, 2)]
)
@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_in_step_with_a_run_from_scratch(
    target: ExactTarget, window: int, length: int, top: int, params: SamplingParams
) -> None:
    prompt = np.random.default_rng(window).integers(0, VOCAB, length).tolist()
    text = plain_text(target, prompt, params)
    drafter = drafter_of(target, window=window, recent=100, top=top, kind=FromScratch)
    assert isinstance(drafter, FromScratch)
    drafter.text, drafter.features = text, read(target, text)[1]
    before = FromScratch.checks
    found = Engine(target, TOKENIZER, draft=drafter, speculation=CAREFUL, prefill_chunk=64).generate(prompt, params)
    assert found.token_ids == tuple(text[len(prompt) :].tolist())
    assert FromScratch.checks > before + 10
    assert found.metrics.num_draft_tokens > 0


class Told(FromScratch):
    """Half of what is proposed is the text itself, so that steps of all lengths occur."""

    def propose(self, state: State, budget: DraftBudget) -> DraftTree:
        n = state.layer.length
        super().propose(state, budget)
        ahead = self.text[n : n + n % 7]
        wrong = np.array([(int(token) + 1) % VOCAB for token in self.text[n : n + 2]])
        right = DraftTree.chain(ahead, source="told")
        return right.merge(DraftTree.chain(wrong, source="told", scores=np.full(len(wrong), 0.5))) if n % 3 else right


def test_in_step_after_steps_of_all_lengths(target: ExactTarget) -> None:
    prompt = np.random.default_rng(1).integers(0, VOCAB, 40).tolist()
    params = replace(GREEDY, max_tokens=200)
    text = plain_text(target, prompt, params)
    drafter = drafter_of(target, window=128, recent=None, kind=Told)
    assert isinstance(drafter, Told)
    drafter.text, drafter.features = text, read(target, text)[1]
    found = Engine(target, TOKENIZER, draft=drafter).generate(prompt, params)
    assert found.token_ids == tuple(text[len(prompt) :].tolist())
    assert found.metrics.tau > 1.5


def test_many_steps_without_a_proposal_are_taken_in(target: ExactTarget) -> None:
    """What waits is bounded: a drafter that is never asked still takes in what the steps give."""
    tokens = np.random.default_rng(2).integers(0, VOCAB, 5 + 3 * MOST_ROWS)
    cache, features = read(target, tokens)
    drafter = drafter_of(target, window=100)
    state = begun(drafter, tokens[:5], cache, features[:4])
    nothing = np.zeros(0, dtype=np.int64)
    for n in range(5, len(tokens)):
        rows = target.forward([Segment.chain(_prefix(target, cache, n - 1), tokens[n - 1 : n])])[0]
        drafter.commit(state, Verified(DraftTree.empty(), nothing, tokens[n : n + 1], rows, cache))
        assert state.layer.waiting <= MOST_ROWS
    assert same(drafter.propose(state, BUDGET), drafter.propose(begun(drafter, tokens, cache, features), BUDGET))


def _prefix(target: ExactTarget, cache: Cache, n: int) -> Cache:
    twin = cache.fork()
    twin.truncate(n)
    return twin


@pytest.mark.parametrize(("cut", "top"), [(230, 0), (230, 1), (140, 1)])
def test_a_shorter_history_and_a_fork(target: ExactTarget, cut: int, top: int) -> None:
    rng = np.random.default_rng(4)
    tokens = rng.integers(0, VOCAB, 260)
    cache, features = read(target, tokens)
    drafter = drafter_of(target, window=100, recent=20 if top else None, top=top, sharpness=40.0)
    state = begun(drafter, tokens, cache, features)
    drafter.propose(state, BUDGET)
    twin = drafter.fork(state)
    other = np.concatenate([tokens[:cut], rng.integers(0, VOCAB, 270 - cut)])  # its second chunk is another, and full
    other_cache, other_features = read(target, other)
    nothing = np.zeros(0, dtype=np.int64)
    # The next prompt of a session: what it shares stays, the rest comes with the hidden states of the tokens read.
    drafter.truncate(state, cut)
    rows = target.forward([Segment.chain(target.new_cache(), tokens[:1])])[0]
    none = replace(rows, argmax=nothing, hidden=rows.hidden[:0])
    rest = Verified(DraftTree.empty(), nothing, other[cut:], none, other_cache, other_features[cut - 1 :])
    drafter.commit(state, rest)
    anew = begun(drafter, other, other_cache, other_features)
    assert same(drafter.propose(state, BUDGET), drafter.propose(anew, BUDGET))
    np.testing.assert_array_equal(state.layer.summaries.means, anew.layer.summaries.means)
    # The fork still stands where it was.
    assert same(drafter.propose(twin, BUDGET), drafter.propose(begun(drafter, tokens, cache, features), BUDGET))


def test_cut_to_the_root_alone(target: ExactTarget) -> None:
    """A session's prompt that ends where an earlier history went on: nothing is appended after the cut."""
    tokens = np.random.default_rng(9).integers(0, VOCAB, 700)
    cache, features = read(target, tokens)
    drafter = drafter_of(target, window=100)
    state = begun(drafter, tokens, cache, features)
    drafter.propose(state, BUDGET)
    for n in (680, 60):  # the ring still holds the first; of the second nothing is known any more
        drafter.truncate(state, n)
        state.cache = _prefix(target, cache, n - 1)
        assert bool(len(drafter.propose(state, BUDGET))) is (n == 680)


def test_a_cache_that_is_not_in_step_gets_no_draft(target: ExactTarget) -> None:
    tokens = np.random.default_rng(5).integers(0, VOCAB, 30)
    cache, features = read(target, tokens)
    drafter = drafter_of(target)
    state = begun(drafter, tokens, cache, features)
    state.cache = _prefix(target, cache, 20)
    assert not len(drafter.propose(state, BUDGET))


def test_unknown_features_are_zeros(target: ExactTarget) -> None:
    tokens = np.random.default_rng(6).integers(0, VOCAB, 30)
    cache, features = read(target, tokens)
    drafter = drafter_of(target, window=64)
    zeros = np.zeros_like(features)
    partly = np.concatenate([zeros[:20], features[20:]])
    for given, meant in ((None, zeros), (features[20:], partly), (features, features)):
        a = drafter.propose(begun(drafter, tokens, cache, given), BUDGET)
        assert same(a, drafter.propose(begun(drafter, tokens, cache, meant), BUDGET))
    assert not same(
        drafter.propose(begun(drafter, tokens, cache, partly), BUDGET),
        drafter.propose(begun(drafter, tokens, cache, features), BUDGET),
    )


def test_a_tree_is_cut_by_its_budget(target: ExactTarget) -> None:
    tokens = np.random.default_rng(7).integers(0, VOCAB, 30)
    cache, features = read(target, tokens)
    drafter = drafter_of(target)
    whole = drafter.propose(begun(drafter, tokens, cache, features), DraftBudget(100, 16))
    best = paths(whole.tokens, whole.parents, whole.score)
    assert int(whole.depths().max()) <= drafter.runner.card.depth
    for nodes, depth in ((1, 16), (5, 16), (12, 2), (100, 1)):
        tree = drafter.propose(begun(drafter, tokens, cache, features), DraftBudget(nodes, depth))
        assert 1 <= len(tree) <= nodes
        assert int(tree.depths().max()) <= depth
        some = paths(tree.tokens, tree.parents, tree.score)
        # The likeliest nodes of all, and nothing else.
        among = sorted((score for path, score in best.items() if len(path) <= depth), reverse=True)
        if nodes <= 6:
            assert sorted(some.values(), reverse=True) == among[: len(some)]


# -- sizes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("top", [0, 2])
def test_bytes_do_not_depend_on_the_context(target: ExactTarget, top: int) -> None:
    """Field case 28. 12 tokens of window: two chunks of 128 slots of a ring, and one of a tree."""
    found = set()
    drafter = drafter_of(target, recent=100, top=top)
    for length in (64, 1024, 2000):
        tokens = np.random.default_rng(8).integers(0, VOCAB, length)
        cache, features = read(target, tokens)
        state = begun(drafter, tokens, cache, features)
        drafter.propose(state, BUDGET)
        found.add((state.layer.nbytes, drafter.runner.nbytes))
        # kv heads x (keys + values) x slots x padded head size x two bytes, by hand
        assert state.layer.pages.nbytes == 3 * 2 * (256 + 128) * 32 * 2
    assert len(found) == 1
    card = drafter.runner.card
    summarised = 2048 // 128 if top else 0  # of the longest context, two kv heads of 32 floats each
    assert state_bytes(card, summarised=summarised) - state_bytes(card) == summarised * 2 * 32 * 4
    assert next(iter(found))[0] == drafter.runner.state_bytes == state_bytes(card, summarised=summarised)
    assert drafter.runner.packed.nbytes == weight_bytes(card)


# -- in nobody's way


class Broken(LongSpecDrafter):
    """Fails in the middle of an answer."""

    proposals = 0

    def propose(self, state: State, budget: DraftBudget) -> DraftTree:
        self.proposals += 1
        if self.proposals == 4:
            raise RuntimeError("no")
        return super().propose(state, budget)


def test_a_failure_ends_drafting_and_not_the_request(target: ExactTarget) -> None:
    drafter = drafter_of(target, kind=Broken)
    prompt = [3, 1, 4, 1, 5]
    found = Engine(target, TOKENIZER, draft=drafter).generate(prompt, GREEDY)
    assert len(found.token_ids) == 60
    assert found.token_ids == tuple(plain_text(target, prompt, GREEDY)[5:].tolist())
    assert isinstance(drafter, Broken)
    assert drafter.proposals == 4


def test_the_targets_bits_do_not_change(target: ExactTarget) -> None:
    """A job between two forwards leaves nothing behind that a forward could see."""
    tokens = np.random.default_rng(12).integers(0, VOCAB, 150)
    cache, features = read(target, tokens)
    segment = lambda: Segment.chain(cache, tokens[-1:], Want.LOGITS)  # noqa: E731
    before = target.forward([segment()])[0].logits.copy()
    drafter = drafter_of(target, recent=20, top=1)
    drafter.propose(begun(drafter, tokens, cache, features), BUDGET)
    np.testing.assert_array_equal(target.forward([segment()])[0].logits, before)


@pytest.mark.parametrize("top", [0, 2])
def test_threads_do_not_change_a_draft(target: ExactTarget, top: int) -> None:
    tokens = np.random.default_rng(13).integers(0, VOCAB, 450 if top else 150)
    trees = []
    for threads in (1, 2, 3):
        one = ExactTarget(SOURCE, threads=threads, context=512)
        drafter = drafter_of(one, recent=50, top=top, widths=PAPER_WIDTHS)
        cache, features = read(one, tokens)
        trees.append(drafter.propose(begun(drafter, tokens, cache, features), BUDGET))
    assert all(same(tree, trees[0]) for tree in trees[1:])


def test_nodes_that_cannot_pay_for_their_row_are_not_grown(target: ExactTarget) -> None:
    """Where rows are dear the tree is small, and so are the passes; a drafter that is asked always grows them all."""
    tokens = np.random.default_rng(4).integers(0, VOCAB, 60)
    cache, features = read(target, tokens)
    found = {}
    for always in (False, True):
        for name, row in (("cheap", 0.002), ("dear", 0.3)):
            drafter = drafter_of(target)
            drafter.always = always
            cost = CostModel(rows=(1, 64), cost=(1.0, 1.0 + 63 * row))
            tree = drafter.propose(
                begun(drafter, tokens, cache, features),
                DraftBudget(max_nodes=100, max_depth=16, cost=cost, plain_s=1.0),
            )
            found[always, name] = tree
    assert (found[False, "dear"].score >= 0.3).all()
    assert len(found[False, "dear"]) < len(found[False, "cheap"])
    assert same(found[True, "dear"], found[True, "cheap"])
