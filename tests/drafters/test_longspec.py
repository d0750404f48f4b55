"""The layer as a drafter: against its numpy reference, in step after every kind of step, of constant size, never in the
way of the target."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scripted import IdTokenizer
from tiny_layer import random_layer, tiny_card
from tiny_weights import RandomWeights

from exactspec.draft_names import models_of
from exactspec.drafters import make_drafter
from exactspec.drafters.base import Context, DraftBudget, State, Verified
from exactspec.drafters.layer.checkpoint import write_layer
from exactspec.drafters.layer.kernels.frame import MOST_ROWS
from exactspec.drafters.layer.reference import Keys, ReferenceLayer
from exactspec.drafters.layer.reference_drafter import ReferenceDrafter
from exactspec.drafters.layer.runner import LayerRunner
from exactspec.drafters.layers import OpenLayer, shipped_layer
from exactspec.drafters.longspec import PAPER_WIDTHS, LongSpecDrafter
from exactspec.drafters.union import UnionDrafter
from exactspec.engine import Engine
from exactspec.opening import open_layers
from exactspec.params import SamplingParams, Speculation
from exactspec.scheduling import Scheduler
from exactspec.target.base import Cache, FloatArray, Segment, Want
from exactspec.target.exact import ExactTarget
from exactspec.tree import DraftTree

SOURCE = RandomWeights()
VOCAB = SOURCE.config.vocab_size
TOKENIZER = IdTokenizer(VOCAB)
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


def drafter_of(
    target: ExactTarget,
    *,
    recent: int | None = None,
    kind: type[LongSpecDrafter] = LongSpecDrafter,
    widths: tuple[int, ...] | None = None,
    **card: Any,
) -> LongSpecDrafter:
    layer = random_layer(tiny_card(SOURCE, **card))
    return kind(LayerRunner(target, layer, recent=recent), widths=widths)


def read(target: ExactTarget, tokens: np.ndarray) -> tuple[Cache, FloatArray]:
    """A cache of all but the last token, and its hidden states."""
    cache = target.new_cache()
    parts = [np.zeros((0, SOURCE.config.hidden_size), dtype=np.float32)]
    for at in range(0, len(tokens) - 1, 100):
        part = tokens[at : min(at + 100, len(tokens) - 1)]
        (rows,) = target.forward([Segment.chain(cache, part, Want.NONE)])
        parts.append(rows.hidden.copy())
        cache.keep(range(len(part)))
    return cache, np.concatenate(parts)


def begun(drafter: LongSpecDrafter, tokens: np.ndarray, cache: Cache, features: FloatArray | None) -> State:
    return drafter.begin(Context(tokens, np.zeros(0, dtype=np.int64), cache, features))


def paths(tokens: Any, parents: Any, scores: Any) -> dict[tuple[int, ...], float]:
    """Scores by path of ids."""
    found: list[tuple[int, ...]] = []
    for token, parent in zip(tokens.tolist(), parents.tolist(), strict=True):
        found.append((*(found[parent] if parent >= 0 else ()), token))
    return dict(zip(found, map(float, scores), strict=True))


def same(a: DraftTree, b: DraftTree) -> bool:
    return all(np.array_equal(x, y) for x, y in zip(a._columns(), b._columns(), strict=True))


def reference_tree(target: ExactTarget, drafter: LongSpecDrafter, tokens: np.ndarray, features: FloatArray) -> Any:
    """The tree of the numpy reference over the cache's own keys, by the head and embedding that the target reads."""
    card = drafter.runner.card
    layer = random_layer(card)
    head = SOURCE.matrix("head")[layer.head_ids]
    reference = ReferenceDrafter(ReferenceLayer(layer, SOURCE.config, SOURCE.matrix("embed"), head), tokens, features)
    cache, _ = read(target, tokens)
    keys, values = cache.last_layer()  # type: ignore[attr-defined]
    half, size = keys.shape[-1] // 2, SOURCE.config.head_dim
    places = np.concatenate([np.arange(size // 2), half + np.arange(size // 2)])
    n = len(tokens) - 1
    near = np.arange(n)
    if drafter.runner.recent is not None and n > 4 + drafter.runner.recent:
        near = np.concatenate([np.arange(4), np.arange(n - drafter.runner.recent, n)])
    return reference.propose(Keys(keys[:, near][..., places], values[:, near, :size], near))


@pytest.mark.parametrize("draft_feature", ["verified", "own"])
@pytest.mark.parametrize(
    ("length", "window", "recent"), [(1, 12, None), (2, 12, None), (50, 12, None), (300, 128, 100), (700, 200, 130)]
)
def test_the_tree_is_that_of_the_reference(
    target: ExactTarget, length: int, window: int, recent: int | None, draft_feature: str
) -> None:
    drafter = drafter_of(target, window=window, recent=recent, draft_feature=draft_feature, widths=PAPER_WIDTHS)
    tokens = np.random.default_rng(length).integers(0, VOCAB, length)
    cache, features = read(target, tokens)
    tree = drafter.propose(begun(drafter, tokens, cache, features), BUDGET)
    expected = reference_tree(target, drafter, tokens, features)
    ours, theirs = (
        paths(tree.tokens, tree.parents, tree.score),
        paths(expected.tokens, expected.parents, expected.scores),
    )
    assert len(ours) == len(theirs) == sum(PAPER_WIDTHS)
    # int8 products and own keys of 8 bits of mantissa: probabilities are a few percent off, nearly equal ones swap.
    shared = ours.keys() & theirs.keys()
    assert len(shared) > 0.8 * len(theirs)
    assert max(abs(np.log(ours[path] / theirs[path])) for path in shared) < 0.35
    first = [path for path in shared if len(path) == 1]
    assert max(abs(np.log(ours[path] / theirs[path])) for path in first) < 0.12


@pytest.mark.parametrize("cache_dtype", ["float32", "int8"])
def test_reads_every_type_of_cache(cache_dtype: str) -> None:
    with_type = ExactTarget(SOURCE, threads=2, context=512, cache_dtype=cache_dtype)
    drafter = drafter_of(with_type, window=40, recent=150, widths=PAPER_WIDTHS)
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


class FromScratch(LongSpecDrafter):
    """Compares every proposal with that of a drafter which begins anew over the same history, bit for bit."""

    features: FloatArray  # of the whole text
    text: np.ndarray
    checks = 0

    def propose(self, state: State, budget: DraftBudget) -> DraftTree:
        tree = super().propose(state, budget)
        n = state.layer.length
        fresh = LongSpecDrafter.begin(
            self, Context(self.text[:n], np.zeros(0, dtype=np.int64), state.cache, self.features[: n - 1])
        )
        again = LongSpecDrafter.propose(self, fresh, budget)
        assert same(tree, again), n
        type(self).checks += 1
        return tree


def _text(target: ExactTarget, prompt: list[int], params: SamplingParams) -> np.ndarray:
    plain = Engine(target, TOKENIZER, draft="none").generate(prompt, params)
    return np.array([*prompt, *plain.token_ids])


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_in_step_with_a_run_from_scratch(target: ExactTarget, window: int, params: SamplingParams) -> None:
    prompt = np.random.default_rng(window).integers(0, VOCAB, 150).tolist()
    text = _text(target, prompt, params)
    drafter = drafter_of(target, window=window, recent=100, kind=FromScratch)
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
    text = _text(target, prompt, params)
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


def test_a_shorter_history_and_a_fork(target: ExactTarget) -> None:
    rng = np.random.default_rng(4)
    tokens = rng.integers(0, VOCAB, 260)
    cache, features = read(target, tokens)
    drafter = drafter_of(target, window=100)
    state = begun(drafter, tokens, cache, features)
    drafter.propose(state, BUDGET)
    twin = drafter.fork(state)
    other = np.concatenate([tokens[:230], rng.integers(0, VOCAB, 9)])
    other_cache, other_features = read(target, other)
    nothing = np.zeros(0, dtype=np.int64)
    # The next prompt of a session: what it shares stays, the rest comes with the hidden states of the tokens read.
    drafter.truncate(state, 230)
    rows = target.forward([Segment.chain(target.new_cache(), tokens[:1])])[0]
    none = replace(rows, argmax=nothing, hidden=rows.hidden[:0])
    drafter.commit(state, Verified(DraftTree.empty(), nothing, other[230:], none, other_cache, other_features[229:]))
    expected = drafter.propose(begun(drafter, other, other_cache, other_features), BUDGET)
    assert same(drafter.propose(state, BUDGET), expected)
    # The fork still stands where it was.
    assert same(drafter.propose(twin, BUDGET), drafter.propose(begun(drafter, tokens, cache, features), BUDGET))


def test_cut_to_the_root_alone(target: ExactTarget) -> None:
    """A session's prompt that ends where an earlier history went on: nothing is appended after the cut."""
    tokens = np.random.default_rng(9).integers(0, VOCAB, 300)
    cache, features = read(target, tokens)
    drafter = drafter_of(target, window=100)
    state = begun(drafter, tokens, cache, features)
    drafter.propose(state, BUDGET)
    for n in (280, 60):  # the ring still holds the first; of the second nothing is known any more
        drafter.truncate(state, n)
        state.cache = _prefix(target, cache, n - 1)
        assert bool(len(drafter.propose(state, BUDGET))) is (n == 280)


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


def test_bytes_do_not_depend_on_the_context(target: ExactTarget) -> None:
    """Field case 28. 12 tokens of window: two chunks of 128 slots of a ring, and one of a tree."""
    found = set()
    drafter = drafter_of(target, recent=100)
    for length in (64, 1024, 2000):
        tokens = np.random.default_rng(8).integers(0, VOCAB, length)
        cache, features = read(target, tokens)
        state = begun(drafter, tokens, cache, features)
        drafter.propose(state, BUDGET)
        found.add((state.layer.nbytes, drafter.runner.nbytes))
        # kv heads x (keys + values) x slots x padded head size x two bytes, by hand
        assert state.layer.pages.nbytes == 3 * 2 * (256 + 128) * 32 * 2
    assert len(found) == 1
    assert next(iter(found))[0] == drafter.runner.state_bytes


def test_reads_a_constant_part_of_the_targets_keys(target: ExactTarget) -> None:
    drafter = drafter_of(target, recent=100)
    seen = set()
    for length in (140, 700, 2000):
        tokens = np.random.default_rng(8).integers(0, VOCAB, length)
        cache, features = read(target, tokens)
        drafter.propose(begun(drafter, tokens, cache, features), BUDGET)
        frame = drafter.runner._frame[0]
        count = int(frame["cross_count"])
        table = drafter.runner._scratch.flat("cross", np.int64, 0)[: 3 * count].reshape(-1, 3)
        seen.add(int((table[:, 2] - table[:, 1]).sum()))
        assert count <= 3
    assert seen == {104}


# -- beside others -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("layer")
    write_layer(path, random_layer(tiny_card(SOURCE, precision="int8", window=64)))
    return path


@pytest.fixture(scope="module")
def opened(target: ExactTarget, folder: Path) -> Callable[..., Engine]:
    def engine(draft: str) -> Engine:
        named = draft.replace("FOLDER", str(folder))
        layers = open_layers([name for name in models_of(named) if name != "longspec"], target, None)
        layers["longspec"] = OpenLayer(folder, target)  # as if it were shipped
        return Engine(target, TOKENIZER, draft=named, draft_models=layers)

    return engine


@pytest.mark.parametrize(
    "draft", ["longspec", "longspec:FOLDER", "copy+recycle+longspec", "copy+recycle+longspec:FOLDER", "auto"]
)
@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_same_tokens(opened: Callable[..., Engine], draft: str, params: SamplingParams) -> None:
    prompt = np.random.default_rng(10).integers(0, VOCAB, 90).tolist()
    engine = opened(draft)
    plain = engine.generate(prompt, params, speculation=PLAIN)
    found = engine.generate(prompt, params, record_steps=True)
    assert found.token_ids == plain.token_ids
    assert found.metrics.drafted_by_source.get("longspec", 0) > 0
    session = engine.session()
    session.generate(prompt[:50], replace(params, max_tokens=9))
    again = session.generate(prompt, params)
    assert again.token_ids == plain.token_ids
    assert again.metrics.cached_tokens >= 49


def test_many_requests_at_once(opened: Callable[..., Engine]) -> None:
    engine = opened("copy+recycle+longspec")
    rng = np.random.default_rng(11)
    prompts = [rng.integers(0, VOCAB, n).tolist() for n in (5, 40, 90, 200)]
    plain = [engine.generate(prompt, SAMPLED, speculation=PLAIN).token_ids for prompt in prompts]
    with Scheduler(engine) as scheduler:
        tickets = [scheduler.submit(prompt, SAMPLED) for prompt in prompts]
        assert [ticket.result().token_ids for ticket in tickets] == plain


def test_the_unions_free_trees_come_without_the_layer(target: ExactTarget) -> None:
    free = make_drafter(Speculation(draft="copy+recycle"))
    assert isinstance(free, UnionDrafter)
    assert free.name == "copy+recycle"
    assert free.wants_features == 0
    auto = make_drafter(Speculation(draft="auto"))
    assert auto is not None
    assert auto.name == "copy+recycle"


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
    assert found.token_ids == tuple(_text(target, prompt, GREEDY)[5:].tolist())
    assert isinstance(drafter, Broken)
    assert drafter.proposals == 4


def test_the_targets_bits_do_not_change(target: ExactTarget) -> None:
    """A job between two forwards leaves nothing behind that a forward could see."""
    tokens = np.random.default_rng(12).integers(0, VOCAB, 150)
    cache, features = read(target, tokens)
    segment = lambda: Segment.chain(cache, tokens[-1:], Want.LOGITS)  # noqa: E731
    before = target.forward([segment()])[0].logits.copy()
    drafter = drafter_of(target, recent=50)
    drafter.propose(begun(drafter, tokens, cache, features), BUDGET)
    np.testing.assert_array_equal(target.forward([segment()])[0].logits, before)


def test_threads_do_not_change_a_draft(target: ExactTarget) -> None:
    tokens = np.random.default_rng(13).integers(0, VOCAB, 150)
    trees = []
    for threads in (1, 2, 3):
        one = ExactTarget(SOURCE, threads=threads, context=512)
        drafter = drafter_of(one, recent=50, widths=PAPER_WIDTHS)
        cache, features = read(one, tokens)
        trees.append(drafter.propose(begun(drafter, tokens, cache, features), BUDGET))
    assert all(same(tree, trees[0]) for tree in trees[1:])


# -- names and refusals --------------------------------------------------------------------------------------------


def test_another_targets_layer_is_refused(folder: Path) -> None:
    other = ExactTarget(RandomWeights(seed=3), threads=1, context=256)
    with pytest.raises(ValueError, match="trained for other weights of tiny") as refused:
        open_layers([f"longspec:{folder}"], other, None)
    assert "\n" not in str(refused.value)
    with pytest.raises(ValueError, match="exactspec train longspec"):
        open_layers(["longspec"], other, None)
    assert open_layers([], other, None) == {}


def test_a_folder_without_a_layer_is_refused(target: ExactTarget, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="holds no draft layer"):
        open_layers([f"longspec:{tmp_path}"], target, None)
    with pytest.raises(ValueError, match="needs a layer that is shipped"):
        Engine(target, TOKENIZER, draft="longspec")
    with pytest.raises(ValueError, match="needs the layer in /nowhere"):
        Engine(target, TOKENIZER, draft="copy+recycle+longspec:/nowhere")


def test_the_shipped_layer_is_found_by_the_weights_hash(target: ExactTarget, tmp_path: Path) -> None:
    others = RandomWeights(seed=3)
    write_layer(tmp_path / "a", random_layer(tiny_card(others)))
    with pytest.raises(ValueError, match=r"none is|there are some for tiny"):
        shipped_layer(target, folder=tmp_path)
    write_layer(tmp_path / "b", random_layer(tiny_card(SOURCE)))
    assert shipped_layer(target, folder=tmp_path) == tmp_path / "b"
