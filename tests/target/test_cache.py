"""The cache: rollback at every edge, forks that share pages, paths that are none."""

from __future__ import annotations

import numpy as np
import pytest
from tiny_weights import RandomWeights

from exactspec.target.base import Segment, Want
from exactspec.target.cache import ExactCache
from exactspec.target.exact import ExactTarget


@pytest.fixture(scope="module")
def target() -> ExactTarget:
    return ExactTarget(RandomWeights(), threads=2)


def feed(target: ExactTarget, cache: ExactCache, tokens: list[int]) -> np.ndarray:
    (rows,) = target.forward([Segment.chain(cache, tokens, Want.LOGITS)])
    cache.keep(range(len(tokens)))
    return rows.logits.copy()


def committed(cache: ExactCache) -> tuple[np.ndarray, np.ndarray]:
    return cache.last_layer()


@pytest.mark.parametrize("n", [5, 4, 1, 0])
@pytest.mark.parametrize("before", [0, 125, 251])
def test_truncate(target: ExactTarget, n: int, before: int) -> None:
    """Field case 6: after any crop, what follows equals a fresh cache with the same tokens."""
    start = [(3 * i) % 250 for i in range(before)]
    cache = target.new_cache()
    feed(target, cache, [*start, 1, 2, 3, 4, 5])
    cache.truncate(before + n)
    assert cache.length == before + n
    after = feed(target, cache, [9, 8, 7])
    fresh = target.new_cache()
    expected = feed(target, fresh, [*start, *[1, 2, 3, 4, 5][:n], 9, 8, 7])
    assert np.array_equal(after, expected[-3:])
    for mine, other in zip(committed(cache), committed(fresh), strict=True):
        assert mine.shape == (2, before + n + 3, target.page_shape.head_pad)
        assert np.array_equal(mine, other)


@pytest.mark.parametrize("n", [-1, 6, 1000])
def test_truncate_refuses(target: ExactTarget, n: int) -> None:
    cache = target.new_cache()
    feed(target, cache, [1, 2, 3, 4, 5])
    with pytest.raises(ValueError, match=f"cannot truncate a cache of 5 tokens to {n}"):
        cache.truncate(n)
    assert cache.length == 5


def test_keep_refuses_what_is_no_path(target: ExactTarget) -> None:
    cache = target.new_cache()
    parents, tokens = np.array([-1, 0, 0, 1]), np.array([1, 2, 3, 4])
    for rows in ([1], [0, 3], [0, 2, 3], [0, 1, 2], [0, 4], [0, -1], [0, 0]):
        target.forward([Segment(cache, tokens, parents, np.zeros(4, dtype=int))])
        with pytest.raises(ValueError, match="no path"):
            cache.keep(rows)
        assert cache.length == 0
    with pytest.raises(ValueError, match="no path"):
        target.new_cache().keep([0])
    cache.keep([0, 1, 3])
    assert cache.length == 3
    with pytest.raises(ValueError, match="no path"):
        cache.keep([0])  # staged rows are gone after a keep


def test_forks_are_independent(target: ExactTarget) -> None:
    prompt = [(5 * i) % 250 for i in range(200)]
    cache = target.new_cache()
    feed(target, cache, prompt)
    other = cache.fork()
    third = other.fork()
    ours, theirs = feed(target, cache, [1, 2, 3]), feed(target, other, [4, 5, 6])
    third.truncate(130)  # inside a page that all three hold
    again = feed(target, third, prompt[130:])
    for got, tail in ((ours, [1, 2, 3]), (theirs, [4, 5, 6])):
        assert np.array_equal(got, feed(target, target.new_cache(), [*prompt, *tail])[-3:])
    assert np.array_equal(again, feed(target, target.new_cache(), prompt)[130:])
    assert np.array_equal(feed(target, cache, [7]), feed(target, target.new_cache(), [*prompt, 1, 2, 3, 7])[-1:])


def test_a_fork_shares_full_pages(target: ExactTarget) -> None:
    cache = target.new_cache()
    feed(target, cache, [1] * 300)
    other = cache.fork()
    assert [a is b for a, b in zip(cache._pages, other._pages, strict=True)] == [True] * 3
    feed(target, other, [2])
    assert [a is b for a, b in zip(cache._pages, other._pages, strict=True)] == [True, True, False]


def test_growing_keeps_what_is_there(target: ExactTarget) -> None:
    """Page by page to 40 pages: the address table grows, old pages stay where they are."""
    cache = target.new_cache()
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, 250, 40 * 128 - 1000).tolist()[:4000]
    for start in range(0, len(tokens), 500):
        feed(target, cache, tokens[start : start + 500])
    assert cache.nbytes == -(-len(tokens) // 128) * target.page_shape.page_bytes
    fresh = target.new_cache()
    feed(target, fresh, tokens)
    assert all(np.array_equal(a, b) for a, b in zip(committed(cache), committed(fresh), strict=True))
