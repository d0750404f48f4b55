"""From a proposal to what its step brought: how a drafter that takes time learns whether asking it pays.

Shared by drafters whose call costs forwards of their own (another model, a trained layer). The clock runs from the
moment a proposal is handed over until the step's rows come back: that is what the target took for the rows of this
draft, or, when none was offered, for a plain step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from exactspec.drafters.base import DraftBudget, Verified
from exactspec.drafters.pays import Pays
from exactspec.target.base import IntArray
from exactspec.tree import DraftTree


@dataclass(frozen=True, slots=True)
class _Call:
    """A proposal whose step has not come back yet."""

    tree: DraftTree
    levels: int
    draft_s: float


@dataclass(slots=True)
class Calls:
    """One request's calls of the drafter named `source`. `clock`: seconds. `pays`: what they taught."""

    source: str
    clock: Callable[[], float]
    pays: Pays = field(default_factory=Pays)
    _start: float = 0.0
    _open: _Call | None = None
    _handed: float | None = None  # when this step's proposal was handed over, a draft or not; None: none was asked for

    def start(self, budget: DraftBudget) -> None:
        """A proposal is asked for."""
        self._start = self.clock()
        self._open = None
        self.pays.costs(budget.cost, budget.plain_s)

    def hand_over(self, tree: DraftTree, levels: int) -> None:
        """`tree` is proposed, after `levels` forwards of the drafter (0: it was not asked)."""
        self._handed = self.clock()
        if levels:
            self._open = _Call(tree, levels, self._handed - self._start)

    def come_back(self, verified: Verified) -> None:
        """The step after a proposal, if there was one."""
        if len(verified.rows) and self._handed is not None:
            self._learn(verified, self.clock() - self._handed)
        self.forget()

    def forget(self) -> None:
        """No step belongs to the last proposal."""
        self._open = self._handed = None

    def _learn(self, verified: Verified, seconds: float) -> None:
        call = self._open
        if call is None:
            if not len(verified.tree):
                self.pays.plain(seconds)
            return
        if any(source != self.source for source in verified.tree.sources):
            return  # beside other drafters' nodes: what the step cost says nothing of this one
        self.pays.drafted(
            levels=call.levels,
            draft_s=call.draft_s,
            verify_s=seconds,
            rows=len(verified.tree) + 1,
            promised=float(call.tree.score.sum()),
            agreed=agreed(call.tree, verified.tokens),
        )


def agreed(tree: DraftTree, tokens: IntArray) -> int:
    """Nodes of `tree` on the path that `tokens` take."""
    node, depth = -1, 0
    for token in tokens.tolist():
        child = tree.child(node, token)
        if child is None:
            break
        node, depth = child, depth + 1
    return depth
