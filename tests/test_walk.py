"""The acceptance rule, by hand-made trees and rows."""

from __future__ import annotations

import numpy as np
import pytest
from scripted import hash_target

from exactspec.sampling import Sampled
from exactspec.target.base import Segment, SegmentRows, Want
from exactspec.tree import ROOT, DraftTree
from exactspec.walk import Credit, Walked, credits, walk


class Says:
    """Samples the argmax; ends at `stop`. Notes what it was given."""

    def __init__(self, stop: int | None = None) -> None:
        self.stop = stop
        self.sampled: list[int] = []
        self.pushed: list[int] = []

    def sample(self, *, argmax: int, logits: np.ndarray | None) -> Sampled:
        self.sampled.append(argmax)
        return Sampled(argmax, None, ())

    def push(self, token: int) -> bool:
        self.pushed.append(token)
        return token == self.stop


def rows(*argmax: int) -> SegmentRows:
    n = len(argmax)
    none = np.full(n, -1)
    empty = np.empty((0, 0), dtype=np.float32)
    return SegmentRows(np.array(argmax), empty, none, empty, empty, empty)


def tree(
    tokens: list[int], parents: list[int], source: list[int] | None = None, origin: list[int] | None = None
) -> DraftTree:
    n = len(tokens)
    return DraftTree(
        np.array(tokens),
        np.array(parents),
        np.array(source or [0] * n),
        np.ones(n, dtype=np.float32),
        np.array(origin or [-1] * n),
        ("a", "b"),
    )


def tokens_of(walked: Walked) -> list[int]:
    return [choice.token for choice in walked.choices]


def test_empty_tree_gives_the_targets_own_token() -> None:
    says = Says()
    assert walk(DraftTree.empty(), rows(7), says, says) == Walked((Sampled(7, None, ()),), (), False)


def test_whole_chain_accepted_and_one_more() -> None:
    says = Says()
    walked = walk(DraftTree.chain([5, 6], source="a"), rows(5, 6, 7), says, says)
    assert tokens_of(walked) == [5, 6, 7]
    assert walked.path == (0, 1)
    assert says.pushed == says.sampled == [5, 6, 7]


def test_disagreement_ends_the_walk_and_nothing_behind_it_is_sampled() -> None:
    says = Says()
    walked = walk(DraftTree.chain([5, 9, 7], source="a"), rows(5, 6, 7, 8), says, says)
    assert tokens_of(walked) == [5, 6]
    assert walked.path == (0,)
    assert says.sampled == [5, 6]


def test_walk_takes_the_branch_that_holds_the_token() -> None:
    #       root -> 5 -> 6        nodes 0, 2
    #            -> 8 -> 6 -> 4   nodes 1, 3, 4
    draft = tree([5, 8, 6, 6, 4], [ROOT, ROOT, 0, 1, 3])
    says = Says()
    walked = walk(draft, rows(8, 0, 6, 0, 4, 2), says, says)
    assert walked.path == (1, 3, 4)
    assert tokens_of(walked) == [8, 6, 4, 2]


def test_a_token_that_is_only_a_grandchild_is_not_accepted() -> None:
    says = Says()
    walked = walk(DraftTree.chain([5, 6], source="a"), rows(6, 6, 6), says, says)
    assert tokens_of(walked) == [6]
    assert walked.path == ()


@pytest.mark.parametrize(("stop", "emitted", "path"), [(5, [5], (0,)), (6, [5, 6], (0, 1)), (7, [5, 6, 7], (0, 1))])
def test_nothing_after_the_first_stop(stop: int, emitted: list[int], path: tuple[int, ...]) -> None:
    says = Says(stop)
    walked = walk(DraftTree.chain([5, 6], source="a"), rows(5, 6, 7), says, says)
    assert tokens_of(walked) == emitted == says.pushed
    assert walked.path == path
    assert walked.stopped


def test_rows_with_logits_hand_them_on() -> None:
    target = hash_target()
    cache = target.new_cache()
    (result,) = target.forward([Segment.chain(cache, [1, 2], Want.LOGITS)])
    seen: list[np.ndarray | None] = []

    class Keeps(Says):
        def sample(self, *, argmax: int, logits: np.ndarray | None) -> Sampled:
            seen.append(logits)
            return super().sample(argmax=argmax, logits=logits)

    walk(DraftTree.chain([2], source="a"), result, Keeps(), Keeps())
    assert np.array_equal(seen[0], result.row_logits(0))


def test_credit_per_source_and_run() -> None:
    draft = tree([1, 2, 3, 4, 5, 6], [ROOT, 0, 1, 2, 3, 4], [0, 0, 0, 1, 1, 0], [7, 8, 30, 31, -1, -1])
    says = Says()
    walked = walk(draft, rows(1, 2, 3, 4, 5, 6, 9), says, says)
    assert credits(draft, walked) == [
        Credit("a", (7, 9)),
        Credit("a", (7, 9)),
        Credit("a", (30, 31)),
        Credit("b", (31, 32)),
        Credit("b", None),
        Credit("a", None),
        Credit("target", None),
    ]


def test_credit_when_the_stop_falls_on_a_node() -> None:
    draft = DraftTree.chain([5, 6, 7], source="copy", origins=[2, 3, 4])
    says = Says(6)
    walked = walk(draft, rows(5, 6, 7, 8), says, says)
    assert credits(draft, walked) == [Credit("copy", (2, 4))] * 2
