"""Draft trees: paths, pruning, merging, and surviving junk."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exactspec.tree import ROOT, DraftTree


def tree(*nodes: tuple[int, int, float], source: str = "a") -> DraftTree:
    """Nodes as (token, parent, score); origins are 100 + index."""
    tokens, parents, score = (np.array(column) for column in zip(*nodes, strict=True))
    n = len(nodes)
    return DraftTree(
        tokens, parents, np.zeros(n, np.int64), score.astype(np.float32), np.arange(100, 100 + n), (source,)
    )


#       root
#      5     6
#    7   8   7
#    9
BUSH = tree((5, -1, 0.6), (6, -1, 0.3), (7, 0, 0.4), (8, 0, 0.2), (7, 1, 0.25), (9, 2, 0.35))


@st.composite
def trees(draw: st.DrawFn) -> DraftTree:
    """Well-formed trees of up to 12 nodes over 4 tokens, scores never above the parent's."""
    nodes: list[tuple[int, int, float]] = []
    taken: set[tuple[int, int]] = set()
    for i in range(draw(st.integers(0, 12))):
        token, parent = draw(st.integers(0, 3)), draw(st.integers(-1, i - 1))
        parent = min(parent, len(nodes) - 1)
        if (parent, token) in taken:
            continue
        taken.add((parent, token))
        top = 1.0 if parent < 0 else nodes[parent][2]
        nodes.append((token, parent, float(np.float32(draw(st.sampled_from((1.0, 0.9, 0.5))) * top))))
    return tree(*nodes, source=draw(st.sampled_from("ab"))) if nodes else DraftTree.empty()


def token_paths(t: DraftTree) -> dict[tuple[int, ...], int]:
    return {tuple(t.tokens[t.path(i)].tolist()): i for i in range(len(t))}


def check_well_formed(t: DraftTree) -> None:
    edges = list(zip(t.parents.tolist(), t.tokens.tolist(), strict=True))
    assert len(set(edges)) == len(t)
    assert all(ROOT <= parent < i for i, (parent, _) in enumerate(edges))
    assert len(t.source) == len(t.score) == len(t.origin) == len(t)
    assert all(0 <= s < len(t.sources) for s in t.source)
    assert all(parent < 0 or t.score[i] <= t.score[parent] for i, (parent, _) in enumerate(edges))


def test_depths_paths_and_children() -> None:
    assert BUSH.depths().tolist() == [1, 1, 2, 2, 2, 3]
    assert BUSH.path(5).tolist() == [0, 2, 5]
    assert BUSH.path(ROOT).tolist() == []
    assert BUSH.children() == [0, 1]
    assert BUSH.children(0) == [2, 3]
    assert BUSH.child(ROOT, 6) == 1
    assert BUSH.child(1, 7) == 4
    assert BUSH.child(1, 8) is None


def test_prune_takes_the_best_with_their_ancestors() -> None:
    assert BUSH.prune(max_nodes=3).tokens.tolist() == [5, 7, 9]
    assert BUSH.prune(max_nodes=3).parents.tolist() == [-1, 0, 1]
    assert BUSH.prune(max_nodes=4).tokens.tolist() == [5, 6, 7, 9]
    assert BUSH.prune(max_depth=1).tokens.tolist() == [5, 6]
    assert BUSH.prune(max_nodes=2, max_depth=1).origin.tolist() == [100, 101]
    assert len(BUSH.prune(max_nodes=0)) == 0
    assert BUSH.prune(max_nodes=6, max_depth=3) is BUSH


def test_prune_of_a_child_scored_above_its_parent_still_gives_a_tree() -> None:
    odd = tree((1, -1, 0.1), (2, -1, 0.5), (3, 0, 0.9))
    assert odd.prune(max_nodes=1).tokens.tolist() == [2]
    check_well_formed(odd.prune(max_nodes=2))


@settings(deadline=None, max_examples=200)
@given(trees(), st.integers(0, 8), st.integers(0, 5))
def test_pruned_trees_hold_the_best_scores(t: DraftTree, nodes: int, depth: int) -> None:
    small = t.prune(max_nodes=nodes, max_depth=depth)
    check_well_formed(small)
    allowed = [float(s) for s, d in zip(t.score, t.depths(), strict=True) if d <= depth]
    assert sorted(map(float, small.score)) == sorted(sorted(allowed, reverse=True)[:nodes])
    before, after = token_paths(t), token_paths(small)
    assert after.keys() <= before.keys()
    assert all(small.origin[i] == t.origin[before[path]] for path, i in after.items())


def test_a_chain_is_cut_at_its_end() -> None:
    chain = DraftTree.chain([1, 2, 3, 4], source="copy", scores=[0.9, 0.8, 0.7, 0.6], origins=[7, 8, 9, 10])
    cut = chain.prune(max_nodes=3, max_depth=2)
    assert (cut.tokens.tolist(), cut.parents.tolist(), cut.origin.tolist()) == ([1, 2], [-1, 0], [7, 8])


def test_merge_gives_credit_to_the_higher_score() -> None:
    a = DraftTree.chain([5, 6, 7], source="copy", scores=[0.5, 0.4, 0.3], origins=[10, 11, 12])
    b = DraftTree.chain([5, 6, 9], source="model", scores=[0.8, 0.4, 0.2])
    both = a.merge(b)
    assert both.sources == ("copy", "model")
    paths = token_paths(both)
    assert set(paths) == {(5,), (5, 6), (5, 6, 7), (5, 6, 9)}
    credit = {
        path: (both.sources[both.source[i]], round(float(both.score[i]), 3), int(both.origin[i]))
        for path, i in paths.items()
    }
    assert credit[(5,)] == ("model", 0.8, -1)
    assert credit[(5, 6)] == ("copy", 0.4, 11)
    assert credit[(5, 6, 9)] == ("model", 0.2, -1)
    assert a.merge(DraftTree.empty()) is a
    assert DraftTree.empty().merge(b) is b


@settings(deadline=None, max_examples=200)
@given(trees(), trees())
def test_merged_trees_hold_every_path_once_at_its_best_score(a: DraftTree, b: DraftTree) -> None:
    both = a.merge(b)
    check_well_formed(both)
    paths_a, paths_b, paths = token_paths(a), token_paths(b), token_paths(both)
    assert paths.keys() == paths_a.keys() | paths_b.keys()
    assert len(paths) == len(both)
    for path, i in paths.items():
        of_a = float(a.score[paths_a[path]]) if path in paths_a else -1.0
        of_b = float(b.score[paths_b[path]]) if path in paths_b else -1.0
        assert float(both.score[i]) == max(of_a, of_b)
        better = (a, paths_a) if of_a >= of_b else (b, paths_b)
        assert both.origin[i] == better[0].origin[better[1][path]]


def raw(tokens: Any, parents: Any, *, source: Any = None, score: Any = None, origin: Any = None) -> DraftTree:
    n = len(tokens)
    return DraftTree(
        tokens,
        parents,
        np.zeros(n, np.int64) if source is None else source,
        np.ones(n, np.float32) if score is None else score,
        np.full(n, -1) if origin is None else origin,
        ("x",),
    )


@pytest.mark.parametrize(
    ("bad", "tokens"),
    [
        (raw(np.array([1, 10, 2, 3]), np.array([-1, 0, 1, 0])), [1, 3]),  # id outside, with its child
        (raw(np.array([1, -1, 2]), np.array([-1, 0, 1])), [1]),
        (raw(np.array([1, 2, 3]), np.array([-1, 1, 0])), [1, 3]),  # a node that is its own parent
        (raw(np.array([1, 2, 3]), np.array([2, -1, 1])), [2, 3]),  # a parent that comes later, with no descendants
        (raw(np.array([1, 2]), np.array([-7, -1])), [2]),
        (raw(np.array([4, 4, 5, 6]), np.array([-1, -1, 1, 0])), [4, 6]),  # a sibling twice, with its child
        (raw(np.array([1.0, 2.0]), np.array([-1, 0])), []),  # floats are no ids
        (raw([1, "2", 3], [-1, 0, -1]), [1, 3]),
        (raw(np.array([1, None, 3], dtype=object), [-1, 0, -1]), [1, 3]),
        (raw(np.array([True, False]), np.array([-1, 0])), []),
        (raw(np.array([1, 2, 3]), np.array([-1])), [1]),  # too few parents
        (raw(np.array([[1, 2], [3, 4]]), np.array([-1, 0])), []),
        (raw(np.array([1, 2], dtype=np.uint64), np.array([-1, 0])), [1, 2]),
        (raw(np.array([1, 2**63 + 5], dtype=np.uint64), np.array([-1, 0])), [1]),
        (DraftTree(None, 3, object(), "junk", None, None), []),  # type: ignore[arg-type]
    ],
)
def test_malformed_nodes_go_with_their_descendants(bad: DraftTree, tokens: list[int]) -> None:
    clean = bad.sanitise(10)
    assert clean.tokens.tolist() == tokens
    check_well_formed(clean)


def test_bad_scores_sources_and_origins_cost_no_node() -> None:
    bad = raw(
        np.array([1, 2, 3]),
        np.array([-1, -1, -1]),
        source=np.array([0, 9, -1]),
        score=np.array([np.nan, 0.5, 7.0], dtype=np.float32),
        origin=np.array([-5, 3, 4]),
    )
    clean = bad.sanitise(10)
    assert clean.tokens.tolist() == [1, 2, 3]
    assert clean.score.tolist() == [0.0, 0.5, 0.0]
    assert clean.origin.tolist() == [-1, 3, 4]
    assert [clean.sources[s] for s in clean.source] == ["x", "unknown", "unknown"]


def test_a_clean_chain_passes_untouched_and_is_cut_to_the_budget() -> None:
    chain = DraftTree.chain([1, 2, 3], source="copy")
    assert chain.sanitise(10) is chain
    assert chain.sanitise(10, max_nodes=2).tokens.tolist() == [1, 2]
    assert chain.sanitise(10, max_depth=1).tokens.tolist() == [1]
    assert chain.sanitise(3).tokens.tolist() == [1, 2]


JUNK = st.one_of(
    st.none(),
    st.integers(),
    st.floats(),
    st.text(max_size=3),
    st.lists(st.one_of(st.integers(-3, 12), st.floats(), st.none(), st.text(max_size=2)), max_size=8),
    st.lists(st.integers(-3, 12), max_size=8).map(np.array),
    st.lists(st.floats(), max_size=8).map(np.array),
)


@settings(deadline=None, max_examples=300)
@given(JUNK, JUNK, JUNK, JUNK, JUNK, JUNK)
def test_sanitise_never_raises(a: Any, b: Any, c: Any, d: Any, e: Any, f: Any) -> None:
    clean = DraftTree(a, b, c, d, e, f).sanitise(10, max_nodes=5, max_depth=3)
    assert len(clean) <= 5
    assert all(0 <= t < 10 for t in clean.tokens.tolist())
    edges = list(zip(clean.parents.tolist(), clean.tokens.tolist(), strict=True))
    assert len(set(edges)) == len(clean)
    assert all(ROOT <= parent < i for i, (parent, _) in enumerate(edges))
    assert all(d <= 3 for d in clean.depths().tolist())
