"""The exact promise on a GPU: a row's bits are its own, however rows are grouped.

In Triton's interpreter a row costs a tenth of a second, so contexts are made of random keys and values written straight
into the cache: what matters is that every grouping sees the same ones.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tiny_weights import RandomWeights

from exactspec.target.base import Segment, SegmentRows, Want

SHAPES: dict[str, dict[str, Any]] = {
    "llama": {"family": "llama"},
    # Pads every which way: head size 20, 3 query heads a kv head, widths that are no whole groups.
    "odd qwen2": {
        "family": "qwen2",
        "num_layers": 1,
        "tied_head": True,
        "hidden_size": 72,
        "num_heads": 3,
        "num_kv_heads": 1,
        "head_dim": 20,
        "intermediate_size": 140,
        "vocab_size": 101,
    },
}


@pytest.fixture(scope="module", params=SHAPES)
def target(request: pytest.FixtureRequest, device: str) -> Any:
    from exactspec.target.cuda.target import CudaTarget

    return CudaTarget(RandomWeights(**SHAPES[request.param]), device=device)


@pytest.fixture(scope="module")
def small(device: str) -> Any:
    from exactspec.target.cuda.target import CudaTarget

    return CudaTarget(RandomWeights(num_layers=1, num_heads=2, num_kv_heads=1), device=device)


def text(target: Any, n: int, seed: int = 0) -> list[int]:
    tokens: list[int] = np.random.default_rng(seed).integers(0, target.vocab_size, n).tolist()
    return tokens


def context(target: Any, length: int) -> Any:
    """A cache with `length` committed positions of random keys and values."""
    import torch

    cache = target.new_cache()
    if length:
        cache.stage(list(range(-1, length - 1)))
        generator = torch.Generator().manual_seed(length)
        for page in cache._pages:
            page.data.copy_(torch.randn(page.data.shape, generator=generator))
        cache.keep(range(length))
    return cache


def logits(rows: SegmentRows) -> np.ndarray:
    return np.stack([rows.row_logits(row) for row in range(len(rows))])


def run(target: Any, base: Any, tokens: list[int], blocks: list[int]) -> np.ndarray:
    """Logits of all rows behind `base`, fed in blocks of the given sizes (cycled)."""
    cache, out, at, turn = base.fork(), [], 0, 0
    while at < len(tokens):
        block = tokens[at : at + blocks[turn % len(blocks)]]
        (rows,) = target.forward([Segment.chain(cache, block, Want.LOGITS)])
        out.append(logits(rows))
        cache.keep(range(len(block)))
        at, turn = at + len(block), turn + 1
    return np.concatenate(out)


@pytest.mark.parametrize("length", [0, 120])
def test_any_grouping_of_a_chain(target: Any, length: int) -> None:
    base, tokens = context(target, length), text(target, 12)
    whole = run(target, base, tokens, [12])
    assert np.array_equal(run(target, base, tokens, [1, 5, 2]), whole)


def test_tiles_of_every_height(small: Any) -> None:
    """The product takes tiles of 16, 32 and 64 rows."""
    base, tokens = context(small, 0), text(small, 34)
    whole = run(small, base, tokens, [34])
    assert np.array_equal(run(small, base, tokens, [17, 2, 15]), whole)


def test_spans_and_their_border(small: Any) -> None:
    """Position 512 opens a second span, 1,024 a third."""
    for length in (509, 1021):
        base, tokens = context(small, length), text(small, 6)
        whole = run(small, base, tokens, [6])
        assert np.array_equal(run(small, base, tokens, [2, 1]), whole)


def test_launches_of_few_rows(small: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Long contexts share the scratch of unmerged spans: attention then takes the rows a few at a time."""
    from exactspec.target.cuda import launch

    base, tokens = context(small, 509), text(small, 5)
    whole = run(small, base, tokens, [5])
    monkeypatch.setattr(launch, "PART_BYTES", 2 * 4 * 2 * 16 * 16)  # two rows
    assert np.array_equal(run(small, base, tokens, [5]), whole)


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


@pytest.mark.parametrize("root", [0, 507])
def test_a_tree_against_its_paths(target: Any, root: int) -> None:
    """Every row of a tree equals the row of a plain run over its own path, and so does what follows after a path was
    kept. From root 507 trees and paths cross the border of a page and a span."""
    base = context(target, root)
    tokens, parents = np.arange(20, 31), np.array([-1, 0, 1, 2, 2, 4, 5, 1, 7, 0, 9])
    cache = base.fork()
    (rows,) = target.forward([Segment(cache, tokens, parents, np.full(11, Want.LOGITS))])
    found, argmax, hidden = logits(rows), rows.argmax.copy(), rows.hidden.copy()
    leaves = set(range(11)) - set(parents.tolist())
    deepest = max(leaves, key=lambda row: len(path_to(parents, row)))
    assert len(path_to(parents, deepest)) > 4
    assert len(leaves) > 2
    for leaf in leaves:
        path = path_to(parents, leaf)
        (plain,) = target.forward([Segment.chain(base.fork(), tokens[path], Want.LOGITS)])
        assert np.array_equal(found[path], logits(plain))
        assert np.array_equal(argmax[path], plain.argmax)
        assert np.array_equal(hidden[path], plain.hidden)
    path = path_to(parents, deepest)
    assert path != list(range(len(path)))
    cache.keep(path)
    (after,) = target.forward([Segment.chain(cache, [5, 6], Want.LOGITS)])
    (fresh,) = target.forward([Segment.chain(base.fork(), [*tokens[path].tolist(), 5, 6], Want.LOGITS)])
    assert np.array_equal(logits(after), logits(fresh)[-2:])


def test_segments_together_and_alone(target: Any) -> None:
    rng = np.random.default_rng(5)
    caches = [context(target, length) for length in (0, 127, 140)]
    trees = [random_tree(rng, n, target.vocab_size) for n in (1, 5, 3)]
    wants = [np.full(n, Want.LOGITS) for n in (1, 5, 3)]
    make = lambda i, cache: Segment(cache, *trees[i], wants[i])  # noqa: E731
    alone = [logits(target.forward([make(i, c.fork())])[0]) for i, c in enumerate(caches)]
    together = target.forward([make(i, c) for i, c in enumerate(caches)])
    for i, rows in enumerate(together):
        assert np.array_equal(logits(rows), alone[i])


def test_what_is_wanted_changes_nothing(small: Any) -> None:
    """Argmax, the best ids and full logits agree, and rows that want nothing leave no trace."""
    tokens = text(small, 12)
    (rows,) = small.forward([Segment.chain(small.new_cache(), tokens, Want.LOGITS)])
    full = logits(rows)
    (best,) = small.forward([Segment.chain(small.new_cache(), tokens, Want.TOPK)])
    order = np.argsort(-full, axis=1, kind="stable")[:, : small.top_k]
    assert np.array_equal(best.topk_ids, order)
    assert np.array_equal(best.topk_logits, np.take_along_axis(full, order, axis=1))
    want = np.array([Want.NONE, Want.ARGMAX, Want.LOGITS, Want.TOPK] * 3)
    (mixed,) = small.forward([Segment(small.new_cache(), np.array(tokens), np.arange(-1, 11), want)])
    assert np.array_equal(mixed.argmax[want > 0], full.argmax(axis=1)[want > 0])
    assert (mixed.argmax[want == 0] == -1).all()
    assert np.array_equal(mixed.row_logits(6), full[6])
    with pytest.raises(ValueError, match="row 1 has no logits"):
        mixed.row_logits(1)


def test_rejected_rows_leave_no_trace(small: Any) -> None:
    """The same rows after rejected trees, even trees that reach into fresh pages, and after a truncation."""
    cache = context(small, 125)
    probe = text(small, 4, seed=3)
    expected = logits(small.forward([Segment.chain(cache.fork(), probe, Want.LOGITS)])[0])
    for seed in range(2):
        tree = random_tree(np.random.default_rng(seed), 7, small.vocab_size)
        small.forward([Segment(cache, *tree, np.full(7, Want.NONE))])
        cache.keep([] if seed else [0])
        cache.truncate(125)
        (rows,) = small.forward([Segment.chain(cache, probe, Want.LOGITS)])
        assert np.array_equal(logits(rows), expected)
        cache.truncate(125)
