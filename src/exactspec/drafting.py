"""One request's drafter, kept from doing harm: whatever it returns or raises, the request goes on."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TypeAlias, TypeVar, cast

import numpy as np

from exactspec.backlog import Backlog
from exactspec.budget import TABLE, Budget, Cost, make_budget
from exactspec.drafters.base import (
    Context,
    DraftBudget,
    Drafter,
    State,
    Verified,
    takes_late,
    wants_features,
    wants_topk,
)
from exactspec.live_cost import LiveCost
from exactspec.params import Speculation
from exactspec.target.base import Cache, FloatArray, SegmentRows, Want
from exactspec.tree import DraftTree

_METHODS = ("begin", "propose", "commit", "truncate", "fork", "close")
_T = TypeVar("_T")
Fit: TypeAlias = Callable[[DraftTree], DraftTree]
_log = logging.getLogger(__name__)


def check_drafter(drafter: object) -> Drafter:
    """Raises ValueError, naming what is missing, so that a wrong drafter fails at start-up and not in a request."""
    missing = [name for name in _METHODS if not callable(getattr(drafter, name, None))]
    if not isinstance(getattr(drafter, "name", None), str):
        missing.append("name")
    if missing:
        raise ValueError(f"{type(drafter).__name__} is no drafter: it lacks {', '.join(missing)}; see drafters/base.py")
    return cast(Drafter, drafter)


class Drafting:
    """A drafter, its state for one request (or one session), and its budget.

    Every call into the drafter or the budget is guarded: the first exception is logged and switches the drafter
    off. `alive`: whether it is on. `cost`: of the target's rows (None: the built-in table). `budget`: makes one for
    each request, instead of the one that `speculation` asks for.
    """

    __slots__ = (
        "_backlog",
        "_begun",
        "_budget",
        "_cost",
        "_drafter",
        "_length",
        "_new_budget",
        "_state",
        "_vocab_size",
        "alive",
        "speculation",
    )

    def __init__(
        self,
        drafter: Drafter | None,
        speculation: Speculation,
        *,
        vocab_size: int,
        cost: Cost | None = None,
        budget: Callable[[], Budget] | None = None,
    ) -> None:
        self._drafter = drafter
        self._cost = cost
        self._new_budget = budget or (lambda: make_budget(speculation, cost=cost))
        self._budget = self._new_budget()
        self._vocab_size = vocab_size
        self._length = 0  # of the history
        self._state: State = None
        self._backlog = Backlog() if takes_late(drafter) else None
        self._begun = False  # the drafter made a state (which may be None)
        self.speculation = speculation
        self.alive = drafter is not None

    @property
    def want(self) -> Want:
        """The least that the target must answer for every row, for the drafter's sake."""
        return Want.TOPK if self.alive and wants_topk(self._drafter) else Want.ARGMAX

    @property
    def wants_features(self) -> int:
        """Of how many tokens before the last one of a prompt the drafter wants the target's hidden states."""
        return wants_features(self._drafter) if self.alive else 0

    def begin(
        self,
        tokens: Sequence[int],
        prediction: Sequence[int],
        cache: Cache,
        features: FloatArray | None = None,
    ) -> None:
        """Start over `tokens` (the whole prompt, its last token included). `features`: see `Context`."""
        self._length = len(tokens)
        if self.alive and (drafter := self._drafter) is not None:
            context = Context(np.array(tokens, dtype=np.int64), np.array(prediction, dtype=np.int64), cache, features)
            self._state = self._guard("begin", lambda: drafter.begin(context), None)
            self._begun = True

    def resume(self, keep: int, tokens: Sequence[int], cache: Cache, features: FloatArray | None = None) -> None:
        """The next request of a session: forget all but the first `keep` tokens, then take in `tokens`, the rest of
        its prompt (as a commit with an empty tree and no rows). The budget starts afresh."""
        self._budget = self._new_budget()
        self._length = keep
        self._catch_up()
        if self.alive and (drafter := self._drafter) is not None:
            self._guard("truncate", lambda: drafter.truncate(self._state, keep), None)
        if self.alive and len(tokens):
            ids = np.array(tokens, dtype=np.int64)
            self.commit(Verified(DraftTree.empty(), np.empty(0, dtype=np.int64), ids, _no_rows(), cache, features))

    def propose(self, max_depth: int, *, choose: bool = True, fit: Fit | None = None) -> DraftTree:
        """What to verify in the next step, fit for the target; empty for a plain step. `max_depth` 0: plain.

        `choose` False leaves the choice of nodes to the caller, who makes it for several requests at once
        (`budget.choose_batch`): the tree is then all that may be worth verifying. `fit` takes out nodes that cannot
        be accepted, before the budget looks at the draft.
        """
        if not self.alive or max_depth < 1:
            return DraftTree.empty()
        return self._guard("propose", lambda: self._propose(max_depth, choose, fit), DraftTree.empty())

    def _propose(self, max_depth: int, choose: bool, fit: Fit | None) -> DraftTree:
        nodes = min(self._budget.nodes(), self.speculation.max_nodes)
        if nodes < 1 or self._drafter is None:
            return DraftTree.empty()
        self._catch_up()
        if not self.alive:
            return DraftTree.empty()
        cost, plain_s = self._cost_here()
        proposed = self._drafter.propose(self._state, DraftBudget(nodes, max_depth, cost or TABLE, plain_s))
        if proposed is None:  # breaks the contract, but can only mean "nothing"
            return DraftTree.empty()
        if not isinstance(proposed, DraftTree):
            raise TypeError(f"propose returned {type(proposed).__name__}, not a DraftTree")
        if not len(proposed):
            return DraftTree.empty()
        tree = proposed.sanitise(self._vocab_size, max_nodes=nodes, max_depth=max_depth)
        if fit is not None:
            tree = fit(tree)
        if not len(tree):
            return tree
        return self._budget.choose(tree, cost=cost) if choose else self._budget.allow(tree)

    def _cost_here(self) -> tuple[Cost | None, float]:
        """Of rows behind the history, and the seconds of one row (0: unknown)."""
        if isinstance(self._cost, LiveCost):
            return self._cost.at(self._length), self._cost.plain_s(self._length)
        return self._cost, 0.0

    def took(self, *, rows: int, seconds: float) -> None:
        """The target's forward of a step of this request alone took so long. Before the step's `commit`."""
        if isinstance(self._cost, LiveCost):
            self._cost.record(rows=rows, context=self._length, seconds=seconds)

    def commit(self, verified: Verified) -> None:
        """Hand on what a step appended: at once, or before the next proposal where that is some steps away."""
        self._length += len(verified.tokens)
        if not self.alive:
            return
        self._guard("budget", lambda: self._record(verified), None)
        if self._can_wait(verified) and self._backlog is not None:
            self._backlog.add(verified)
        else:
            self._catch_up()
            self._tell(verified)

    def _record(self, verified: Verified) -> None:
        if len(verified.rows):
            drafted = len(verified.tree)
            promised = float(verified.tree.score.sum()) if drafted else 0.0
            self._budget.record(drafted=drafted, accepted=len(verified.path), promised=promised)

    def _can_wait(self, verified: Verified) -> bool:
        if self._backlog is None or self._backlog.full or not self.alive:
            return False
        if len(verified.tree) or len(verified.rows) != 1 or len(verified.tokens) != 1:
            return False
        return len(self._backlog) > 0 or self._guard("budget", lambda: self._budget.nodes() < 1, False)

    def _tell(self, verified: Verified) -> None:
        if self.alive and (drafter := self._drafter) is not None:
            self._guard("commit", lambda: drafter.commit(self._state, verified), None)

    def _catch_up(self) -> None:
        """Tell the drafter of the steps that were kept back."""
        if self._backlog is not None and len(self._backlog) and (late := self._backlog.take()) is not None:
            self._tell(late)

    def fork(self) -> Drafting:
        """An independent copy; off if the drafter's state cannot be copied."""
        twin = Drafting(
            self._drafter, self.speculation, vocab_size=self._vocab_size, cost=self._cost, budget=self._new_budget
        )
        self._catch_up()
        twin.alive = self.alive
        twin._length = self._length
        if self.alive and self._begun and (drafter := self._drafter) is not None:
            twin._state = twin._guard("fork", lambda: drafter.fork(self._state), None)
            twin._begun = True
        return twin

    def close(self) -> None:
        """Release the state; the drafter is off afterwards."""
        self._catch_up()
        if self.alive and self._begun and (drafter := self._drafter) is not None:
            self._guard("close", lambda: drafter.close(self._state), None)
        self.alive = False
        self._state = None

    def _guard(self, what: str, call: Callable[[], _T], otherwise: _T) -> _T:
        try:
            return call()
        except Exception:  # KeyboardInterrupt and SystemExit are the caller's business, not the drafter's
            self.alive = False
            self._state = None
            name = getattr(self._drafter, "name", "?")
            _log.warning("drafter %s failed in %s and is off for this request", name, what, exc_info=True)
            return otherwise


def _no_rows() -> SegmentRows:
    none = np.empty(0, dtype=np.int64)
    floats = np.empty((0, 0), dtype=np.float32)
    return SegmentRows(none, floats, none, floats, none.reshape(0, 0), floats)
