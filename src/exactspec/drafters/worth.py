"""Whether a drafter that costs time is worth asking, given what the others offer for nothing.

Steps are told apart by how likely the best free node is. For each kind it is remembered what steps with the costly
drafter gave, in tokens and in time; it is asked where that beats what the free tree promises by itself, and now and
then where it does not, since texts change.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from exactspec.budget import Cost

KINDS = (0.3, 0.6, 0.8, 0.95)
"""Upper ends of the ranges of the best free node's probability."""

KEEP = 0.9
PRIOR_TOKENS = 3.0
"""What a step with the drafter is taken to give before there was one."""

PROBE = 24
"""Steps of a kind without it after which it is asked once more; twice as many after each time that did not help."""

LONGEST = 8 * PROBE


PASS = 0.1
"""What a pass of a draft layer is taken to cost before one was timed, in plain steps."""

LEAST_GAIN = 1.15
"""Expected by `chain_rate` of a layer that `auto` asks: a smaller gain is what asking itself may cost."""


def chain_rate(acceptance: Sequence[float], cost: Cost) -> float:
    """Tokens a time, to plain decoding, of a layer's chains of the best length. `acceptance`: of depth 1, 2, .., given
    that those above were accepted. `cost`: of the target's rows.

    >>> round(chain_rate([0.5, 0.4], lambda rows: 1 + 0.05 * (rows - 1)), 2)
    1.31
    """
    tokens, reached, best = 1.0, 1.0, 1.0
    for depth, share in enumerate(acceptance, 1):
        reached *= share
        tokens += reached
        best = max(best, tokens / (cost(depth + 1) + depth * PASS))
    return best


def best_rate(scores: Sequence[float], cost: Cost) -> tuple[float, float]:
    """(tokens, cost) of the number of nodes, likeliest first, at which expected tokens per cost are most."""
    tokens, best = 1.0, (1.0, 1.0)
    for nodes, score in enumerate(sorted(scores, reverse=True), 1):
        tokens += score
        spent = cost(nodes + 1)
        if tokens * best[1] > best[0] * spent:
            best = (tokens, spent)
    return best


class Worth:
    """What one costly drafter has given in one request."""

    __slots__ = ("_asked", "_kind", "_skipped", "_spent", "_tokens", "_wait")

    def __init__(self) -> None:
        n = len(KINDS) + 1
        self._tokens: list[float] = [PRIOR_TOKENS] * n
        self._spent: list[float | None] = [None] * n  # cost of the rows, the drafter's own call left out
        self._skipped = [0] * n
        self._wait = [PROBE] * n
        self._kind = 0
        self._asked = False

    def ask(self, scores: Sequence[float], *, call: float, cost: Cost) -> bool:
        """Whether to ask it in this step. `scores`: of the free nodes. `call`: its cost, in plain steps."""
        self._kind = kind = bisect_left(KINDS, max(scores, default=0.0))
        tokens, spent = best_rate(scores, cost)
        its = self._spent[kind]
        its_spent = cost(1 + round(self._tokens[kind])) if its is None else its
        pays = self._tokens[kind] * spent > tokens * (its_spent + call)
        if pays:
            self._skipped[kind], self._wait[kind] = 0, PROBE
        else:
            self._skipped[kind] += 1
        self._asked = pays or self._skipped[kind] >= self._wait[kind]
        if self._asked and not pays:
            self._skipped[kind], self._wait[kind] = 0, min(LONGEST, 2 * self._wait[kind])
        return self._asked

    def record(self, *, tokens: int, cost: float) -> None:
        """A step ended: it appended `tokens`, its rows cost that much."""
        if not self._asked:
            return
        kind, self._asked = self._kind, False
        before = self._spent[kind]
        self._tokens[kind] = tokens if before is None else KEEP * self._tokens[kind] + (1 - KEEP) * tokens
        self._spent[kind] = cost if before is None else KEEP * before + (1 - KEEP) * cost
