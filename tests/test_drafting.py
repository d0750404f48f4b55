"""The seams between a request and its drafter: what the target is asked for, and who chooses the nodes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scripted import IdTokenizer, Oracle, Raising, hash_target

from exactspec.drafters.base import Context, DraftBudget, Verified, call_s, wants_topk
from exactspec.drafting import Drafting
from exactspec.engine import Engine
from exactspec.params import SamplingParams, Speculation
from exactspec.target.base import Want

PROMPT = [3, 1, 4, 1, 5]


class Watcher(Oracle):
    """Keeps what the rows of each step say."""

    name = "watcher"

    def __init__(self, text: list[int], *, asks: bool) -> None:
        super().__init__(text)
        self.wants_topk = asks
        self.seen: list[tuple[list[int], list[int], list[list[int]], list[list[float]]]] = []

    def commit(self, state: list[int], verified: Verified) -> None:
        rows = verified.rows
        self.seen.append((state[-1:], rows.argmax.tolist(), rows.topk_ids.tolist(), rows.topk_logits.tolist()))
        super().commit(state, verified)


@pytest.mark.parametrize(
    "params", [SamplingParams(max_tokens=40), SamplingParams(max_tokens=40, temperature=1, seed=3)]
)
def test_a_drafter_that_asks_gets_the_best_ids_of_every_row(params: SamplingParams) -> None:
    plain = Engine(hash_target(), IdTokenizer(), draft="none").generate(PROMPT, params).token_ids
    drafter = Watcher([*PROMPT, *plain], asks=True)
    drafted = Engine(hash_target(), IdTokenizer(), draft=drafter).generate(PROMPT, params)
    assert drafted.token_ids == plain
    assert drafted.metrics.tau > 3
    for _, argmax, ids, logits in drafter.seen:
        assert [row[0] for row in ids] == argmax
        assert all(len(set(row)) == 4 and min(row) >= 0 for row in ids)
        assert all(row == sorted(row, reverse=True) and row[0] > 0 for row in logits)


def test_one_that_does_not_ask_costs_the_target_nothing() -> None:
    drafter = Watcher([], asks=False)
    Engine(hash_target(), IdTokenizer(), draft=drafter).generate(PROMPT, SamplingParams(max_tokens=5))
    assert len(drafter.seen) == 5
    assert all(set(row) == {-1} for _, _, ids, _ in drafter.seen for row in ids)


def test_a_drafter_that_failed_asks_for_nothing() -> None:
    drafter = Raising("propose", [])
    drafter.wants_topk = True  # type: ignore[attr-defined]
    drafting = Drafting(drafter, Speculation(), vocab_size=97)
    cache: Any = hash_target().new_cache()
    cache.tokens = PROMPT[:-1]
    drafting.begin(PROMPT, [], cache)
    assert drafting.want == Want.TOPK
    drafting.propose(5)
    assert drafting.want == Want.ARGMAX


def test_the_caller_may_choose_the_nodes() -> None:
    class Unsure(Oracle):
        def draft(self, history: list[int], budget: DraftBudget) -> Any:
            tree = super().draft(history, budget)
            return tree._with_score(np.full(len(tree), 0.01, dtype=np.float32))

    drafting = Drafting(Unsure(list(range(50))), Speculation(draft="copy"), vocab_size=97)
    cache: Any = hash_target().new_cache()
    cache.tokens = [0, 1]
    drafting.begin([0, 1, 2], [], cache)
    assert len(drafting.propose(20)) == 0
    assert drafting.propose(20, choose=False).tokens.tolist() == [3, 4, 5, 6, 7, 8, 9, 10]


def test_what_a_drafter_does_not_say_is_free_and_asks_nothing() -> None:
    class Slow(Oracle):
        def call_s(self, state: list[int], budget: DraftBudget) -> float:
            return 0.25 if budget.max_nodes > 1 else -1.0

    assert call_s(Oracle([]), [], DraftBudget(4, 4)) == 0.0
    assert call_s(Slow([]), [], DraftBudget(4, 4)) == 0.25
    assert call_s(Slow([]), [], DraftBudget(1, 4)) == 0.0
    assert not wants_topk(Oracle([]))


@pytest.mark.parametrize("length", [20, 40, 41, 400])
def test_a_prediction_is_looked_at_as_far_as_the_context_goes(length: int) -> None:
    """An answer cannot go further, and a longer one costs time before the first token."""
    seen: list[list[int]] = []

    class Begun(Oracle):
        def begin(self, context: Context) -> list[int]:
            seen.append(context.prediction.tolist())
            return super().begin(context)

    target = hash_target(max_length=40)
    prediction = [token % 97 for token in range(length)]
    Engine(target, IdTokenizer(), draft=Begun([])).generate(PROMPT, SamplingParams(max_tokens=3), prediction=prediction)
    assert seen == [prediction[:40]]
