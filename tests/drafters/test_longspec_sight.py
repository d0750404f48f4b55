"""What the compiled layer reads of the target's keys: the chunks that the reference would choose, and no more of them
the longer the context is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tiny_drafts import SOURCE, VOCAB, begun, drafter_of, read
from tiny_reference import reference_of

from exactspec.drafters.base import DraftBudget
from exactspec.drafters.longspec import LongSpecDrafter
from exactspec.target.exact import ExactTarget

BUDGET = DraftBudget(max_nodes=100, max_depth=16)


@pytest.fixture(scope="module")
def target() -> ExactTarget:
    return ExactTarget(SOURCE, threads=2, context=2048)


def seen_pieces(target: ExactTarget, drafter: LongSpecDrafter, cache: Any) -> list[tuple[int, int, int]]:
    """What the last tree's rows saw, as `Sight.fixed` says it."""
    frame, scratch = drafter.runner._frame[0], drafter.runner._scratch
    count = int(frame["cross_count"])
    table = scratch.flat("cross", np.int64, 0)[: 3 * count].reshape(-1, 3)
    inside = (target.config.num_layers - 1) * target.page_shape.layer_bytes
    chunk_of = {int(address) + inside: chunk for chunk, address in enumerate(cache.addresses)}
    return [(chunk_of[address], first, end) for address, first, end in table.tolist()]


@pytest.mark.parametrize("top", [1, 3])
def test_the_chunks_that_the_root_weighs_most_are_seen(target: ExactTarget, top: int) -> None:
    """By a layer whose queries are sharp: those of random weights hardly prefer a chunk."""
    drafter = drafter_of(target, window=100, recent=200, top=top, sharpness=40.0)
    chosen = set()
    for seed in range(4):
        tokens = np.random.default_rng(seed).integers(0, VOCAB, 1400)
        cache, features = read(target, tokens)
        drafter.propose(begun(drafter, tokens, cache, features), BUDGET)
        sight = drafter.runner.sight
        fixed, between = sight.fixed(1399), sight.between(1399)
        pieces = seen_pieces(target, drafter, cache)
        assert pieces[: len(fixed)] == fixed
        ours = pieces[len(fixed) :]
        assert ours == sorted(set(ours))
        assert len(ours) == top
        assert set(ours) <= set(between)
        reference, cross = reference_of(target, drafter, tokens, features, sharpness=40.0)
        masses = reference.masses(cross, sight)
        best = np.sort(masses)[::-1]
        # 8 bits of mantissa: chunks that are nearly equal may swap.
        assert sum(masses[chunk] for chunk, _, _ in ours) > 0.9 * best[:top].sum()
        assert best[:top].sum() > 1.3 * np.sort(masses)[:top].sum()
        chosen |= {chunk for chunk, _, _ in ours}
    assert len(chosen) > 1  # not always the same


@pytest.mark.parametrize("top", [0, 2])
def test_reads_a_constant_part_of_the_targets_keys(target: ExactTarget, top: int) -> None:
    drafter = drafter_of(target, recent=100, top=top)
    for length in (140, 701, 2000):
        tokens = np.random.default_rng(8).integers(0, VOCAB, length)
        cache, features = read(target, tokens)
        drafter.propose(begun(drafter, tokens, cache, features), BUDGET)
        pieces = seen_pieces(target, drafter, cache)
        seen = [end - first for _, first, end in pieces]
        always, chosen = (seen, []) if length == 140 else (seen[: len(seen) - top], seen[len(seen) - top :])
        if length == 140 and top:  # one chunk is full, a part of which is seen anyway
            always, chosen = seen[:-1], seen[-1:]
        assert sum(always) == 104
        assert len(always) <= 3
        assert len(chosen) == min(top, (length - 1) // 128)
        assert max(chosen, default=0) <= 128
