"""The tree of kept prefixes against a list of the same caches, searched from end to end."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted import ListCache

from exactspec.prompts import common_prefix
from exactspec.scheduling.footprint import shared_bytes
from exactspec.scheduling.prefix import PrefixTree
from exactspec.target.base import Segment, Want
from exactspec.target.cache import CHUNK


def ids(*tokens: int) -> np.ndarray:
    return np.array(tokens, dtype=np.int64)


def put(tree: PrefixTree, *tokens: int) -> ListCache:
    cache = ListCache(tokens)
    tree.insert(ids(*tokens), cache)
    return cache


def found(tree: PrefixTree, *tokens: int) -> list[int]:
    cache, n = tree.match(ids(*tokens))
    return [] if cache is None else cache.tokens[:n]  # type: ignore[attr-defined]


words = st.lists(st.lists(st.integers(0, 2), max_size=8), max_size=25)


@settings(max_examples=80, deadline=None)
@given(words, st.lists(st.lists(st.integers(0, 2), max_size=9), min_size=1, max_size=6))
def test_the_longest_prefix_is_found(stored: list[list[int]], asked: list[list[int]]) -> None:
    tree = PrefixTree(10**6, exact=True)
    for tokens in stored:
        put(tree, *tokens)
    for prompt in asked:
        best = max((common_prefix(t, prompt) for t in stored), default=0)
        assert found(tree, *prompt) == prompt[:best]
    # One cache for each text that no other one goes on from, and nothing counted that is not held.
    leaves = {tuple(t) for t in stored if t and not any(len(o) > len(t) and o[: len(t)] == t for o in stored)}
    assert len(tree) == len(leaves)
    assert tree.nbytes == 8 * sum(map(len, leaves))


@settings(max_examples=80, deadline=None)
@given(words, st.integers(0, 200))
def test_the_limit_is_hard_and_the_least_recently_used_go_first(stored: list[list[int]], limit: int) -> None:
    tree = PrefixTree(limit, exact=True)
    kept: list[list[int]] = []  # oldest first
    for tokens in stored:
        put(tree, *tokens)
        # The same by hand: a lookup marks what it finds, a longer text replaces what it goes on from.
        if tokens and limit:
            if not any(k[: len(tokens)] == tokens for k in kept):
                kept = [k for k in kept if tokens[: len(k)] != k] + [tokens]
            while sum(8 * len(k) for k in kept) > limit:
                kept.pop(0)
            assert tree.nbytes <= limit
            assert len(tree) <= len(stored)
    assert tree.nbytes <= limit


def test_used_ones_stay() -> None:
    tree = PrefixTree(8 * 9, exact=True)
    for start in (10, 20, 30):
        put(tree, start, 1, 2)
    assert found(tree, 10, 1) == [10, 1]
    put(tree, 40, 1, 2)
    assert [found(tree, s, 1, 2, 9) for s in (10, 20, 30, 40)] == [[10, 1, 2], [], [30, 1, 2], [40, 1, 2]]
    first = put(tree, 50, *range(9))  # larger than the limit by itself
    assert tree.nbytes == 0
    assert first.tokens == []  # its memory is free at once


def test_a_shared_beginning_outlives_one_of_its_holders() -> None:
    tree = PrefixTree(8 * 10, exact=True)
    put(tree, 1, 2, 3, 4, 5)
    put(tree, 1, 2, 3, 7, 8)
    assert found(tree, 1, 2, 3, 4, 5) == [1, 2, 3, 4, 5]
    put(tree, 9)
    assert found(tree, 1, 2, 3, 7) == [1, 2, 3]
    assert found(tree, 1, 2, 3, 4, 5) == [1, 2, 3, 4, 5]
    tree.clear()
    assert (len(tree), tree.nbytes, found(tree, 1)) == (0, 0, [])
    put(tree, 1, 2)
    assert found(tree, 1, 2) == [1, 2]


def test_a_limit_of_nothing_keeps_nothing() -> None:
    tree = PrefixTree(0, exact=True)
    cache = put(tree, 1, 2, 3)
    assert (len(tree), tree.nbytes, cache.tokens) == (0, 0, [])


# -- pages of the exact target ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tiny():
    from tiny_weights import RandomWeights

    from exactspec.target.exact import ExactTarget

    return ExactTarget(RandomWeights("llama"), threads=1, context=1024)


def filled(target, tokens: list[int]):
    cache = target.new_cache()
    target.forward([Segment.chain(cache, tokens, Want.NONE)])
    cache.keep(range(len(tokens)))
    return cache


def test_a_prefix_that_two_computed_is_stored_once(tiny) -> None:
    page = tiny.page_shape.page_bytes
    system = [(5 * i + i // 9) % 256 for i in range(2 * CHUNK + 40)]
    one, two = [*system, *range(10)], [*system, *range(100, 150)]
    tree = PrefixTree(100 * page, exact=True)
    for tokens in (one, two):
        tree.insert(np.array(tokens), filled(tiny, tokens))
    # Two full pages in common; the third is cut in the middle, and each has its own.
    assert tree.nbytes == 4 * page
    for tokens in (one, two):
        cache, n = tree.match(np.array(tokens))
        assert n == len(tokens)
        assert cache is not None
        twin = cache.fork()
        (found,) = tiny.forward([Segment.chain(twin, [7, 8], Want.LOGITS)])
        logits = found.logits.copy()
        (expected,) = tiny.forward([Segment.chain(filled(tiny, tokens), [7, 8], Want.LOGITS)])
        assert np.array_equal(logits, expected.logits)
        twin.truncate(0)
    tree.drop_oldest()
    assert tree.nbytes == 3 * page
    cache, n = tree.match(np.array(one))
    assert n == len(system)
    assert cache is not None
    assert all(p.holders == 1 for p in cache._pages)  # type: ignore[attr-defined]
    tree.clear()
    assert tree.nbytes == 0


def test_an_inexact_target_keeps_its_own_pages(tiny) -> None:
    """Equal tokens need not have equal bits there: one's pages are not another's."""
    system = list(range(CHUNK)) * 2
    tree = PrefixTree(10**9, exact=False)
    for last in (1, 2):
        tokens = [*system, last]
        tree.insert(np.array(tokens), filled(tiny, tokens))
    assert tree.nbytes == 6 * tiny.page_shape.page_bytes


def test_sharing_checks_its_arguments_and_counts_holders(tiny) -> None:
    tokens = list(range(200))
    a, b = filled(tiny, tokens), filled(tiny, tokens)
    with pytest.raises(ValueError, match="share no 201"):
        a.share(b, 201)
    a.share(b, 200)
    assert a._pages[0] is b._pages[0]
    assert a._pages[1] is not b._pages[1]
    assert b._pages[0].holders == 2
    assert shared_bytes([a, b]) == 3 * tiny.page_shape.page_bytes
    (left,) = tiny.forward([Segment.chain(a, [9], Want.LOGITS)])
    left_logits = left.logits.copy()
    (right,) = tiny.forward([Segment.chain(b, [9], Want.LOGITS)])
    assert np.array_equal(left_logits, right.logits)
    a.truncate(0)
    assert b._pages[0].holders == 1
