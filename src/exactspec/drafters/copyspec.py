"""The published rule of CopySpec (arXiv 2502.08923): last gamma tokens, earliest match, a block of fixed length."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import numpy as np

from exactspec.drafters.base import Context, DraftBudget, State, Verified
from exactspec.target.base import IntArray
from exactspec.tree import DraftTree

_ACCEPT = 0.8
"""Rough probability that a copied token is accepted when the one before it was; the rule itself has no estimate."""


class _History:
    """Tokens of one request, and for each run of gamma tokens the index of what followed it first.

    Keys are the tokens themselves, so equal hashes of different tokens cannot meet.
    """

    __slots__ = ("_first", "_gamma", "tokens")

    def __init__(self, gamma: int) -> None:
        self._gamma = gamma
        self._first: dict[tuple[int, ...], int] = {}
        self.tokens = array("i")

    def append(self, tokens: Sequence[int] | IntArray) -> None:
        begin = max(len(self.tokens), self._gamma)
        self.tokens.extend(array("i", tokens.tolist() if isinstance(tokens, np.ndarray) else tokens))
        # A position counts from the moment its own token is there: the text's end is no match of itself.
        text, first = self.tokens.tolist() if begin == self._gamma else self.tokens, self._first
        for position in range(begin, len(text)):
            first.setdefault(tuple(text[position - self._gamma : position]), position)

    def truncate(self, n: int) -> None:
        """Keep the first n tokens, exactly: a run first seen later is forgotten."""
        if not 0 <= n <= len(self.tokens):
            raise ValueError(f"cannot truncate {len(self.tokens)} tokens to {n}")
        for position in range(len(self.tokens) - 1, max(n, self._gamma) - 1, -1):
            key = tuple(self.tokens[position - self._gamma : position])
            if self._first.get(key) == position:
                del self._first[key]
        del self.tokens[n:]

    def clear(self) -> None:
        self._first, self.tokens = {}, array("i")

    def fork(self) -> _History:
        copy = _History(self._gamma)
        copy._first, copy.tokens = self._first.copy(), self.tokens[:]
        return copy

    def match(self) -> int | None:
        """Index of what first followed the last gamma tokens, None if they never occurred before."""
        if len(self.tokens) < self._gamma:
            return None
        return self._first.get(tuple(self.tokens[-self._gamma :]))


class CopySpecDrafter:
    """Copies the `block` tokens that followed the earliest occurrence of the last `gamma` tokens.

    Kept as published, to compare with: no estimate of success, no adaptation, no prediction text. Constant work
    per token. Raises ValueError unless both are >= 1.
    """

    __slots__ = ("_block", "_gamma")

    def __init__(self, *, gamma: int = 3, block: int = 10) -> None:
        if gamma < 1 or block < 1:
            raise ValueError(f"gamma and block must be >= 1, got {gamma} and {block}")
        self._gamma = gamma
        self._block = block

    @property
    def name(self) -> str:
        return "copyspec"

    def begin(self, context: Context) -> State:
        history = _History(self._gamma)
        history.append(context.tokens)
        return history

    def propose(self, state: State, budget: DraftBudget) -> DraftTree:
        history: _History = state
        start = history.match()
        if start is None:
            return DraftTree.empty()
        draft = history.tokens[start : start + min(self._block, budget.max_nodes, budget.max_depth)]
        n = len(draft)
        scores = _ACCEPT ** np.arange(1, n + 1, dtype=np.float32)
        return DraftTree.chain(draft, source=self.name, scores=scores, origins=np.arange(start, start + n))

    def commit(self, state: State, verified: Verified) -> None:
        state.append(verified.tokens)

    def truncate(self, state: State, n: int) -> None:
        state.truncate(n)

    def fork(self, state: State) -> State:
        return state.fork()

    def close(self, state: State) -> None:
        state.clear()
