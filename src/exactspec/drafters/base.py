"""The drafter seam: what a drafter sees and what it owes.

A drafter proposes; it never decides. Whatever it returns, the output is the target's own. An exception from any
method is caught by the engine, logged once, and switches the drafter off for that request.
State belongs to one request: nothing of one request may reach another through a drafter.

Things a drafter may have beyond the protocol:
- ``wants_topk``, true: `Verified.rows` then carry the target's best ids with their logits (`Want.TOPK`) for every row.
- ``wants_features``, an int above 0: it learns from the target's hidden states of so many last tokens of a prompt
  (`Context.features`, `Verified.features`).
- ``call_s(state, budget) -> float``: seconds that the next `propose` would take, measured by the drafter itself.
  Without it a proposal counts as free. A drafter that costs is asked only where that is expected to pay.
- ``takes_late``, true: while no proposal is asked for, plain steps may be handed on some at a time, as one `commit` of
  an accepted chain (see `exactspec.backlog`), without hidden states and logits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from exactspec.budget import TABLE, Cost
from exactspec.target.base import Cache, FloatArray, IntArray, SegmentRows
from exactspec.tree import DraftTree

State: TypeAlias = Any
"""What a drafter remembers of one request; opaque to the engine."""


@dataclass(frozen=True, slots=True, eq=False)
class Context:
    """What is known when a request begins, after its prompt was prefilled (all but the last token).

    `tokens` [n]: the history so far (the prompt). `prediction` [m]: ids the caller expects in the answer
    (may be empty). `cache`: the target's cache (n - 1 tokens), to read, never to change. `features` [m, hidden_size]:
    the target's hidden states of the m tokens before the last one, as far as they are known and wanted.
    """

    tokens: IntArray
    prediction: IntArray
    cache: Cache
    features: FloatArray | None = None


@dataclass(frozen=True, slots=True)
class DraftBudget:
    """The most a proposal may hold: `max_nodes` nodes, `max_depth` below the root. Both >= 1.

    The engine cuts whatever exceeds it: max_depth already respects max_tokens and the context end.
    `cost`: of the target's rows, relative to one. `plain_s`: seconds of a forward of one row; 0 where unknown. Both are
    there for drafters that weigh their own time.
    """

    max_nodes: int
    max_depth: int
    cost: Cost = TABLE
    plain_s: float = 0.0


@dataclass(frozen=True, slots=True, eq=False)
class Verified:
    """One verified step.

    `tree`: what was verified (empty in a plain step). `path` [a]: indices of the accepted nodes, from the root
    down. `tokens` [a + 1]: what the step appended to the history: the accepted tokens and the target's own next
    one (fewer when a stop cut them). `rows`: the target's rows, row 0 the root, row i + 1 node i (views, valid
    during the call only). `cache`: committed up to and including the last accepted node (without it, if a stop fell on
    it: the cache is always one shorter than the history).

    When a session's next prompt goes on from what the drafter knows, its new tokens come in the same way, after a
    `truncate` to the common part: empty tree and path, `rows` of length 0, and any number of `tokens`;
    `features` are then as in `Context`.
    """

    tree: DraftTree
    path: IntArray
    tokens: IntArray
    rows: SegmentRows
    cache: Cache
    features: FloatArray | None = None


class Drafter(Protocol):
    """Proposes continuations of a history. Instances are shared by requests and hold no request's data."""

    @property
    def name(self) -> str:
        """The source name shown in results, e.g. "copy"."""
        ...

    def begin(self, context: Context) -> State:
        """State of a new request over `context.tokens`."""
        ...

    def propose(self, state: State, budget: DraftBudget) -> DraftTree:
        """A tree below the last token of the history; may be empty."""
        ...

    def commit(self, state: State, verified: Verified) -> None:
        """Take in what a step appended; called after every step, plain ones (empty tree) included."""
        ...

    def truncate(self, state: State, n: int) -> None:
        """Forget everything after the first n tokens of the history (sessions, prefix reuse)."""
        ...

    def fork(self, state: State) -> State:
        """An independent copy of the state."""
        ...

    def close(self, state: State) -> None:
        """The request ended; release what the state holds."""
        ...


def wants_topk(drafter: object) -> bool:
    """Whether a drafter asks for the target's best ids of every verified row."""
    return bool(getattr(drafter, "wants_topk", False))


def takes_late(drafter: object) -> bool:
    """Whether a drafter can hear of several plain steps at once, before its next proposal."""
    return bool(getattr(drafter, "takes_late", False))


def wants_features(drafter: object) -> int:
    """Of how many last tokens of a prompt a drafter wants the target's hidden states."""
    return int(getattr(drafter, "wants_features", 0))


def call_s(drafter: Drafter, state: State, budget: DraftBudget) -> float:
    """Seconds that the drafter's next proposal would take; 0 for one that does not say."""
    ask = getattr(drafter, "call_s", None)
    return 0.0 if ask is None else max(0.0, float(ask(state, budget)))
