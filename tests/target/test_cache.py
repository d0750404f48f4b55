"""The cache: rollback at every edge, forks that share pages, paths that are none."""

from __future__ import annotations

import numpy as np
import pytest
import reference
from tiny_weights import RandomWeights

from exactspec.target.base import Segment, Want
from exactspec.target.cache import ExactCache, PageShape
from exactspec.target.exact import ExactTarget


@pytest.fixture(scope="module", params=["bfloat16", "float32", "int8"])
def target(request: pytest.FixtureRequest) -> ExactTarget:
    return ExactTarget(RandomWeights(), threads=2, cache_dtype=request.param)


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


def test_bytes_of_a_token() -> None:
    """smollm2-135m: 30 layers, 3 kv heads of 64."""
    tokens = {dtype: PageShape(30, 3, 64, dtype).page_bytes / 128 for dtype in ("float32", "bfloat16", "int8")}
    assert tokens == {"float32": 46_080, "bfloat16": 23_040, "int8": 12_240}


def test_types_round_the_same_keys() -> None:
    """What each type holds, beside float32: bfloat16 to the nearest, ties to even; int8 within half a step."""
    tokens = [(7 * i) % 250 for i in range(150)]
    held = {}
    for dtype in ("float32", "bfloat16", "int8"):
        # one layer: its keys and values depend on no attention, so they differ by their rounding alone
        made = ExactTarget(RandomWeights(num_layers=1, head_dim=20), threads=2, cache_dtype=dtype)
        cache = made.new_cache()
        feed(made, cache, tokens)
        held[dtype] = committed(cache)
        assert held[dtype][0].dtype == np.float32
        made.close()
    for exact, half, byte in zip(*held.values(), strict=True):
        assert np.array_equal(half, nearest_bfloat16(exact))
        step = np.abs(exact).max(axis=2, keepdims=True) / 127
        assert (np.abs(byte - exact) <= 0.5001 * step).all()
        assert not np.array_equal(byte, exact)


def nearest_bfloat16(x: np.ndarray) -> np.ndarray:
    """By the two neighbours, without bit tricks on the sum."""
    low = (x.view(np.uint32) & 0xFFFF0000).view(np.float32)
    high = ((x.view(np.uint32) & 0xFFFF0000) + 0x10000).view(np.float32)
    below, above = np.abs(np.float64(x) - low), np.abs(np.float64(high) - x)
    even = (low.view(np.uint32) >> 16) % 2 == 0
    return np.where((below < above) | ((below == above) & even), low, high)


WINDOWED = {"num_layers": 3, "layer_windows": (16, 0, 128)}


@pytest.mark.parametrize("cache_dtype", ["bfloat16", "int8"])
@pytest.mark.parametrize(("fed", "kept"), [(60, 40), (60, 50), (150, 128), (150, 127), (150, 0), (300, 255)])
def test_truncate_across_a_window(fed: int, kept: int, cache_dtype: str) -> None:
    """Keys that had left a window are seen again after a rollback."""
    target = ExactTarget(RandomWeights(**WINDOWED), threads=2, cache_dtype=cache_dtype)
    tokens, after = [(11 * i) % 250 for i in range(fed)], [9, 8, 7, 6]
    cache = target.new_cache()
    feed(target, cache, tokens)
    cache.truncate(kept)
    again = feed(target, cache, after)
    assert np.array_equal(again, feed(target, target.new_cache(), [*tokens[:kept], *after])[kept:])
    target.close()


@pytest.mark.parametrize("window", [1, 2, 15, 127, 128, 129, 256, 257])
def test_windows_at_the_borders_of_chunks(window: int) -> None:
    """Against float64; no key more and no key less (each would be outside the bound for the rows it moves most)."""
    tokens = np.random.default_rng(2).integers(0, 250, 400).tolist()
    source = RandomWeights(num_layers=1, layer_windows=(window,))
    target = ExactTarget(source, threads=2, cache_dtype="float32")
    found = feed(target, target.new_cache(), tokens)
    right, *wrong = (
        reference.logits(RandomWeights(num_layers=1, layer_windows=(w,)), tokens, int8_weights=True)
        for w in (window, window + 1, max(window - 1, 1))
    )
    error = np.abs(found - right).mean()
    assert error < 0.04 * right.std()
    for other in wrong:
        if not np.array_equal(other, right):
            rows = np.argsort(np.abs(other - right).mean(axis=1))[-20:]  # where the key at the edge weighs most
            assert np.abs(found - right)[rows].mean() < np.abs(found - other)[rows].mean()
    target.close()


def test_a_window_as_long_as_the_text_is_none() -> None:
    tokens = [(13 * i) % 250 for i in range(300)]
    found = []
    for windows in (None, (300, 301)):
        target = ExactTarget(RandomWeights(layer_windows=windows), threads=2)
        found.append(feed(target, target.new_cache(), tokens))
        target.close()
    assert np.array_equal(*found)
