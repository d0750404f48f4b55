"""Counts of drafts agree with what a step did."""

from __future__ import annotations

import numpy as np
from scripted import ByteTokenizer, Oracle, hash_target

from exactspec.counts import DraftCounts
from exactspec.engine import Engine
from exactspec.params import SamplingParams
from exactspec.tree import DraftTree


def test_a_tree_of_two_sources() -> None:
    zero = np.zeros(4, dtype=np.int64)
    tree = DraftTree(
        np.array([1, 2, 3, 4]),
        np.array([-1, -1, 1, 2]),
        np.array([0, 1, 1, 0]),
        zero.astype(np.float32),
        zero,
        ("a", "b"),
    )
    counts = DraftCounts()
    counts.add(tree, [1, 2])
    counts.add(DraftTree.empty(), [])
    counts.add(tree, [])
    assert counts.drafted == {"a": 4, "b": 4}
    assert counts.accepted == {"b": 2}
    assert counts.drafted_at == [4, 2, 2]
    assert counts.accepted_at == [1, 1]


def test_metrics_add_up() -> None:
    prompt = [1, 2, 3]
    params = SamplingParams(max_tokens=40)
    text = [*prompt, *Engine(hash_target(), ByteTokenizer(), draft="none").generate(prompt, params).token_ids]
    draft = Oracle(text, length=6, wrong_every=5)
    m = Engine(hash_target(), ByteTokenizer(), draft=draft).generate(prompt, params, record_steps=True).metrics
    assert sum(m.drafted_by_depth) == sum(m.drafted_by_source.values()) == m.num_draft_tokens > 20
    assert sum(m.accepted_by_depth) == m.accepted_by_source["oracle"] == m.num_accepted_tokens > 10
    assert list(m.accepted_by_depth) == sorted(m.accepted_by_depth, reverse=True)
