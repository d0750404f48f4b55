"""The exact promise, at the target: a row's bits are its own, however rows are grouped."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import reference
from tiny_weights import FourBitWeights, RandomWeights

from exactspec.target import tasks
from exactspec.target.base import Segment, Want
from exactspec.target.cpu import EMULATED, describe_cpu
from exactspec.target.exact import ExactTarget

# Sizes that pad every which way: head size 20 (halves of 10), hidden 72, inner 92, vocabulary 101.
ODD: dict[str, Any] = {
    "family": "llama",
    "hidden_size": 72,
    "num_heads": 6,
    "num_kv_heads": 2,
    "head_dim": 20,
    "intermediate_size": 92,
    "vocab_size": 101,
}
SHAPES: dict[str, dict[str, Any]] = {
    "llama": {"family": "llama"},
    "qwen2 tied": {"family": "qwen2", "tied_head": True},
    "odd sizes": ODD,
    "wide heads": {"family": "qwen2", "num_heads": 2, "num_kv_heads": 1, "head_dim": 128, "hidden_size": 160},
    "normed heads": {"family": "qwen3", "head_dim": 20, "hidden_size": 72, "num_heads": 6, "intermediate_size": 92},
    "gemma3": {
        "family": "gemma3",
        "tied_head": True,
        "head_dim": 40,
        "num_heads": 3,
        "num_kv_heads": 1,
        "hidden_size": 72,
        "intermediate_size": 92,
        "embed_scale": 3.0,
        "query_scale": 0.2,
        "rope_factor": 1.1,
        "local_rope_theta": 100.0,
        "rope_tables": (1, 0),
        "layer_windows": (5, 0),
    },
    # Blocks of 32 in all matrices, and of 256 in some: queries and keys beside int8 values, two forms in one layer.
    "four bits": {
        "kinds": dict.fromkeys(("q", "k", "v", "gate", "up"), "Q4_1") | {"o": "Q4_0", "down": "Q4_0"},
        "hidden_size": 96,
        "num_heads": 3,
        "num_kv_heads": 1,
        "head_dim": 32,
        "intermediate_size": 160,
    },
    "four bits, mixed": {
        "family": "qwen2",
        "kinds": {"q": "Q4_K", "k": "Q4_K", "gate": "Q4_K", "up": "Q4_K", "down": "Q4_1"},
        "hidden_size": 256,
        "intermediate_size": 288,
        "tied_head": True,
    },
    "float32 cache": {"family": "llama", "cache_dtype": "float32"},
    "int8 cache": {**ODD, "cache_dtype": "int8"},
    # Windows shorter than a tree is deep, up to one that ends within the second span.
    "windows": {"family": "llama", "num_layers": 4, "layer_windows": (3, 0, 130, 300)},
    "windows, int8 cache": {"family": "qwen2", "layer_windows": (1, 16), "cache_dtype": "int8"},
}


def make(shape: str, **options: Any) -> ExactTarget:
    given = dict(SHAPES[shape])
    cache_dtype = given.pop("cache_dtype", "bfloat16")
    source = FourBitWeights(**given) if "kinds" in given else RandomWeights(**given)
    return ExactTarget(source, cache_dtype=cache_dtype, **options)


@pytest.fixture(scope="module", params=SHAPES)
def shape(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def target(shape: str) -> Iterator[ExactTarget]:
    made = make(shape, threads=2)
    yield made
    made.close()


def text(target: ExactTarget, n: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(0, target.vocab_size, n).tolist()


def run(target: ExactTarget, tokens: list[int], blocks: list[int]) -> np.ndarray:
    """Logits of all rows, fed in blocks of the given sizes (cycled)."""
    cache, out, at, turn = target.new_cache(), [], 0, 0
    while at < len(tokens):
        block = tokens[at : at + blocks[turn % len(blocks)]]
        (rows,) = target.forward([Segment.chain(cache, block, Want.LOGITS)])
        out.append(rows.logits.copy())
        cache.keep(range(len(block)))
        at, turn = at + len(block), turn + 1
    return np.concatenate(out)


@pytest.mark.parametrize("blocks", [[1], [2], [3], [7], [64], [5, 1, 130, 2]], ids=str)
def test_any_grouping_of_a_chain(target: ExactTarget, blocks: list[int]) -> None:
    tokens = text(target, 300)
    assert np.array_equal(run(target, tokens, blocks), run(target, tokens, [300]))


def test_long_products() -> None:
    """Over 1,024 inputs, many rows take a product in several passes and one row takes it in one."""
    four = {"gate": "Q4_1", "up": "Q4_1", "down": "Q4_K"}
    for source in (
        RandomWeights(num_layers=1, hidden_size=1100, intermediate_size=2150),
        FourBitWeights(num_layers=1, hidden_size=1120, intermediate_size=2304, kinds=four),
    ):
        made = ExactTarget(source, threads=2)
        tokens = text(made, 40)
        assert np.array_equal(run(made, tokens, [1, 2, 11]), run(made, tokens, [40]))
        made.close()


@pytest.mark.parametrize("cache_dtype", ["bfloat16", "int8"])
@pytest.mark.parametrize(("head_dim", "group"), [(64, 7), (80, 1), (96, 4), (128, 7), (256, 4)])
def test_head_sizes_and_groups_of_real_models(head_dim: int, group: int, cache_dtype: str) -> None:
    """Each against float64, and a tree and blocks of any size against one row at a time."""
    source = RandomWeights(num_layers=1, num_heads=group, num_kv_heads=1, head_dim=head_dim)
    made = ExactTarget(source, threads=2, cache_dtype=cache_dtype)
    tokens = text(made, 270)
    single = run(made, tokens, [1])
    assert np.array_equal(run(made, tokens, [7, 130, 2, 40]), single)
    right = reference.logits(source, tokens, int8_weights=True)
    assert np.abs(single - right).mean() < 0.04 * right.std()
    branches, parents = random_tree(np.random.default_rng(head_dim), 24, made.vocab_size)
    cache = made.new_cache()
    made.forward([Segment.chain(cache, tokens, Want.NONE)])
    cache.keep(range(270))
    (rows,) = made.forward([Segment(cache, branches, parents, np.full(24, Want.LOGITS))])
    found = rows.logits.copy()
    for leaf in set(range(24)) - set(parents.tolist()):
        path = path_to(parents, leaf)
        assert np.array_equal(found[path], run(made, [*tokens, *branches[path].tolist()], [270, 1])[270:])
    made.close()


def test_spans_and_their_borders(target: ExactTarget) -> None:
    """Every 256 positions a span begins."""
    tokens = text(target, 1100)
    whole = run(target, tokens, [1100])
    assert np.array_equal(run(target, tokens, [500, 11, 1, 1, 300, 13, 17, 1, 40]), whole)


def test_threads(target: ExactTarget, shape: str) -> None:
    tokens = text(target, 200)
    for threads in (1, 3):
        other = make(shape, threads=threads)
        assert np.array_equal(run(other, tokens, [3, 50]), run(target, tokens, [200]))
        other.close()


@pytest.mark.parametrize("threads", [2, 3])
def test_keys_shared_by_tasks(target: ExactTarget, shape: str, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows whose keys several tasks share, as threads at long contexts do: chains and trees."""
    tokens, (branches, parents) = text(target, 700), random_tree(np.random.default_rng(3), 40, target.vocab_size)
    wants = np.full(40, Want.LOGITS)
    expected = run(target, tokens, [700])
    cache = target.new_cache()
    target.forward([Segment.chain(cache, tokens, Want.NONE)])
    cache.keep(range(700))
    (rows,) = target.forward([Segment(cache, branches, parents, wants)])
    tree = rows.logits.copy()
    monkeypatch.setattr(tasks, "LEAST_COST", 1)
    other = make(shape, threads=threads)
    shared = []
    cache, out = other.new_cache(), []
    for start, stop in ((0, 500), (500, 501), (501, 504), (504, 514), (514, 699), (699, 700)):
        (rows,) = other.forward([Segment.chain(cache, tokens[start:stop], Want.LOGITS)])
        shared.append(int(other._frames["split"][0]))
        out.append(rows.logits.copy())
        cache.keep(range(stop - start))
    (rows,) = other.forward([Segment(cache, branches, parents, wants)])
    shared.append(int(other._frames["split"][0]))
    assert np.array_equal(np.concatenate(out), expected)
    assert np.array_equal(rows.logits, tree)
    if threads > 2:
        assert shared[1] == shared[-1] == 1  # else this tests nothing
    other.close()


def random_tree(rng: np.random.Generator, n: int, vocab_size: int) -> tuple[np.ndarray, np.ndarray]:
    """Mostly deep, with branches; siblings distinct."""
    tokens, parents, used = [int(rng.integers(vocab_size))], [-1], set()
    while len(tokens) < n:
        parent = len(tokens) - 1 if rng.random() < 0.8 else int(rng.integers(len(tokens)))
        token = int(rng.integers(vocab_size))
        if (parent, token) not in used:
            used.add((parent, token))
            parents.append(parent)
            tokens.append(token)
    return np.array(tokens), np.array(parents)


def path_to(parents: np.ndarray, row: int) -> list[int]:
    path = [row]
    while parents[path[0]] >= 0:
        path.insert(0, int(parents[path[0]]))
    return path


@pytest.mark.parametrize("root", [0, 1, *range(120, 137), *range(250, 261), 1019, 1024])
def test_a_tree_against_its_paths(target: ExactTarget, root: int) -> None:
    """Every row of a tree deeper than 8 equals the row of a plain run over its own path, and so does what follows
    after a path was kept."""
    rng = np.random.default_rng(root)
    prompt = text(target, root, seed=root)
    base = target.new_cache()
    if prompt:
        target.forward([Segment.chain(base, prompt, Want.NONE)])
        base.keep(range(root))
    tokens, parents = random_tree(rng, 36, target.vocab_size)
    cache = base.fork()
    (rows,) = target.forward([Segment(cache, tokens, parents, np.full(36, Want.LOGITS))])
    found, argmax, hidden = rows.logits.copy(), rows.argmax.copy(), rows.hidden.copy()
    leaves = set(range(36)) - set(parents.tolist())
    deepest = max(leaves, key=lambda row: len(path_to(parents, row)))
    assert len(path_to(parents, deepest)) > 8
    for leaf in leaves:
        path = path_to(parents, leaf)
        (plain,) = target.forward([Segment.chain(base.fork(), tokens[path], Want.LOGITS)])
        assert np.array_equal(found[path], plain.logits)
        assert np.array_equal(argmax[path], plain.argmax)
        assert np.array_equal(hidden[path], plain.hidden)
    path = path_to(parents, deepest)
    cache.keep(path)
    following = text(target, 5, seed=9)
    (after,) = target.forward([Segment.chain(cache, following, Want.LOGITS)])
    after_tree = after.logits.copy()
    (fresh,) = target.forward(
        [Segment.chain(target.new_cache(), [*prompt, *tokens[path].tolist(), *following], Want.LOGITS)]
    )
    assert np.array_equal(after_tree, fresh.logits[-5:])


def test_segments_together_and_alone(target: ExactTarget) -> None:
    rng = np.random.default_rng(5)
    caches, trees = [], []
    for length in (0, 3, 127, 250):
        cache = target.new_cache()
        if length:
            target.forward([Segment.chain(cache, text(target, length, seed=length), Want.NONE)])
            cache.keep(range(length))
        caches.append(cache)
        trees.append(random_tree(rng, 1 + length % 17, target.vocab_size))
    make = lambda i, cache: Segment(cache, *trees[i], np.full(len(trees[i][0]), Want.LOGITS))  # noqa: E731
    alone = [target.forward([make(i, c.fork())])[0] for i, c in enumerate(caches)]
    alone = [np.copy(target.forward([make(i, c.fork())])[0].logits) for i, c in enumerate(caches)]
    together = target.forward([make(i, c) for i, c in enumerate(caches)])
    for i, rows in enumerate(together):
        assert np.array_equal(np.stack([rows.row_logits(r) for r in range(len(rows))]), alone[i])


def test_what_is_wanted_changes_nothing(target: ExactTarget) -> None:
    """Argmax, the best ids and full logits agree, and rows that want nothing leave no trace."""
    tokens = text(target, 40)
    (full,) = target.forward([Segment.chain(target.new_cache(), tokens, Want.LOGITS)])
    logits = full.logits.copy()
    (best,) = target.forward([Segment.chain(target.new_cache(), tokens, Want.TOPK)])
    order = np.argsort(-logits, axis=1, kind="stable")[:, : target.top_k]
    assert np.array_equal(best.topk_ids, order)
    assert np.array_equal(best.topk_logits, np.take_along_axis(logits, order, axis=1))
    want = np.array([Want.NONE, Want.ARGMAX, Want.LOGITS, Want.TOPK] * 10)
    (mixed,) = target.forward([Segment(target.new_cache(), np.array(tokens), np.arange(-1, 39), want)])
    assert np.array_equal(mixed.argmax[want > 0], logits.argmax(axis=1)[want > 0])
    assert (mixed.argmax[want == 0] == -1).all()
    assert np.array_equal(mixed.row_logits(2), logits[2])
    with pytest.raises(ValueError, match="row 1 has no logits"):
        mixed.row_logits(1)


@pytest.mark.parametrize("accuracy", ["narrow", "wide"])
def test_instruction_sets_agree(target: ExactTarget, shape: str, accuracy: str) -> None:
    """All that this CPU can run: integers are equal by mathematics, floats because no order is left to a compiler."""
    tokens = text(target, 150)
    own = make(shape, threads=2, accuracy=accuracy)
    expected = run(own, tokens, [150])
    assert np.array_equal(run(own, tokens, [1, 2, 30, 8]), expected)
    own.close()
    others = [name for name in (*describe_cpu({}).supported, EMULATED) if name != target.cpu.instruction_set]
    assert "portable" in {target.cpu.instruction_set, *others}
    for name in others:
        other = make(shape, threads=2, accuracy=accuracy, cpu=describe_cpu({"EXACTSPEC_ISA": name}))
        assert np.array_equal(run(other, tokens, [1, 2, 30, 8, 13, 5]), expected), name
        other.close()


def test_wide_activations_are_finer(target: ExactTarget, shape: str) -> None:
    """16 bits change the logits, a little; four-bit weights always take 8."""
    tokens = text(target, 150)
    both = []
    for accuracy in ("wide", "narrow"):
        made = make(shape, threads=2, accuracy=accuracy)
        both.append(run(made, tokens, [150]))
        made.close()
    wide, narrow = both
    assert not np.array_equal(wide, narrow)
    assert np.abs(wide - narrow).mean() < 0.05 * narrow.std()


def test_rejected_rows_leave_no_trace(target: ExactTarget) -> None:
    """The same rows after any number of rejected trees, even trees that reach into fresh pages."""
    prompt, probe = text(target, 125), text(target, 4, seed=3)
    cache = target.new_cache()
    target.forward([Segment.chain(cache, prompt, Want.NONE)])
    cache.keep(range(125))
    (rows,) = target.forward([Segment.chain(cache.fork(), probe, Want.LOGITS)])
    expected = rows.logits.copy()
    for seed in range(4):
        tokens, parents = random_tree(np.random.default_rng(seed), 150, target.vocab_size)
        target.forward([Segment(cache, tokens, parents, np.full(150, Want.NONE))])
        cache.keep([])
        (rows,) = target.forward([Segment.chain(cache, probe, Want.LOGITS)])
        assert np.array_equal(rows.logits, expected)
        cache.truncate(125)
