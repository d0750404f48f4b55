"""Several drafters in order: the first that has something to say drafts the step.

With the rule of CopySpec before a model this is "CopySpec + draft model" as published (arXiv 2502.08923): copy when the
last gamma tokens occurred before, else draft with the model.
"""

from __future__ import annotations

from collections.abc import Sequence

from exactspec.drafters.base import Context, DraftBudget, Drafter, State, Verified, call_s, wants_topk
from exactspec.tree import DraftTree


class FirstOf:
    """Asks its drafters in order and takes the first tree that is not empty. All of them see every token.

    Raises ValueError without a drafter.
    """

    __slots__ = ("_drafters",)

    def __init__(self, drafters: Sequence[Drafter]) -> None:
        if not drafters:
            raise ValueError("give at least one drafter")
        self._drafters = tuple(drafters)

    @property
    def name(self) -> str:
        return "+".join(drafter.name for drafter in self._drafters)

    @property
    def wants_topk(self) -> bool:
        return any(wants_topk(drafter) for drafter in self._drafters)

    def begin(self, context: Context) -> State:
        return [drafter.begin(context) for drafter in self._drafters]

    def propose(self, state: State, budget: DraftBudget) -> DraftTree:
        for drafter, own in zip(self._drafters, state, strict=True):
            tree = drafter.propose(own, budget)
            if len(tree):
                return tree
        return DraftTree.empty()

    def call_s(self, state: State, budget: DraftBudget) -> float:
        """Of the first alone: only what it finds is known to be asked for."""
        return call_s(self._drafters[0], state[0], budget)

    def commit(self, state: State, verified: Verified) -> None:
        for drafter, own in zip(self._drafters, state, strict=True):
            drafter.commit(own, verified)

    def truncate(self, state: State, n: int) -> None:
        for drafter, own in zip(self._drafters, state, strict=True):
            drafter.truncate(own, n)

    def fork(self, state: State) -> State:
        return [drafter.fork(own) for drafter, own in zip(self._drafters, state, strict=True)]

    def close(self, state: State) -> None:
        for drafter, own in zip(self._drafters, state, strict=True):
            drafter.close(own)
