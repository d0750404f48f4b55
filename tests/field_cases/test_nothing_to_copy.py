"""Case 27: prose without repetition. Drafters' own time; what verifying costs is told by test_budget.py, from tables,
and both are measured by the bars `controls` and `propose`."""

from __future__ import annotations

import random
import time

import numpy as np
import pytest

from exactspec.bench.propose import NoCache, rows_of_nothing
from exactspec.drafters import make_drafter
from exactspec.drafters.base import Context, DraftBudget, Verified
from exactspec.params import Speculation
from exactspec.tree import DraftTree

STEPS = 40


def words(n: int) -> list[int]:
    """Tokens drawn without a repeated pair."""
    rng = random.Random(0)
    seen: set[tuple[int, int]] = set()
    text = [0]
    while len(text) < n:
        token = rng.randrange(4000)
        if (text[-1], token) not in seen:
            seen.add((text[-1], token))
            text.append(token)
    return text


@pytest.mark.parametrize("draft", ["copy", "auto"])
def test_27_a_proposal_takes_less_than_a_millisecond_at_any_length(draft: str) -> None:
    drafter = make_drafter(Speculation(draft=draft))
    assert drafter is not None
    text = words(32_000 + STEPS)
    taken = {}
    for n in (1000, 4000, 16_000, 32_000):
        context = Context(np.array(text[:n]), np.empty(0, dtype=np.int64), NoCache(n - 1))
        state = drafter.begin(context)
        times = []
        for i in range(STEPS):
            started = time.process_time()
            drafter.propose(state, DraftBudget(48, 128))
            times.append(time.process_time() - started)
            token = np.array(text[n + i : n + i + 1])
            none = np.empty(0, dtype=np.int64)
            drafter.commit(state, Verified(DraftTree.empty(), none, token, rows_of_nothing(1), NoCache(n + i)))
        taken[n] = sorted(times)[STEPS // 2]
        drafter.close(state)
    assert max(taken.values()) < 1e-3
    assert taken[32_000] < 4 * taken[1000] + 50e-6
