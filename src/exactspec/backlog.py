"""Plain steps that a drafter has not heard of yet.

Where nothing can be drafted, the next proposals are some steps away, and telling the drafter of every single token is a
percent of a small model's step. Plain steps in a row are one chain of tokens with a row each, which is what a step with
an accepted chain looks like: so they can be handed on together, before the next proposal.
"""

from __future__ import annotations

import numpy as np

from exactspec.drafters.base import Verified
from exactspec.target.base import Cache, FloatArray, IntArray, SegmentRows
from exactspec.tree import DraftTree

MOST = 16
"""Steps that are kept back at most."""

SOURCE = "target"


class Backlog:
    """Up to `MOST` plain steps, oldest first. What is kept of a row: its choice and its best ids with their logits.

    >>> len(Backlog())
    0
    """

    __slots__ = ("_argmax", "_cache", "_ids", "_logits", "_tokens")

    def __init__(self) -> None:
        self._tokens: list[int] = []
        self._argmax: list[IntArray] = []
        self._ids: list[IntArray] = []
        self._logits: list[FloatArray] = []
        self._cache: Cache | None = None

    def __len__(self) -> int:
        return len(self._tokens)

    @property
    def full(self) -> bool:
        return len(self._tokens) >= MOST

    def add(self, verified: Verified) -> None:
        """Keep a plain step (no tree, one row, one token); its rows are copied. Raises ValueError for any other."""
        if len(verified.tree) or len(verified.rows) != 1 or len(verified.tokens) != 1:
            raise ValueError("only plain steps can be kept back")
        rows = verified.rows
        self._tokens.append(int(verified.tokens[0]))
        self._argmax.append(rows.argmax.copy())
        self._ids.append(rows.topk_ids.copy())
        self._logits.append(rows.topk_logits.copy())
        self._cache = verified.cache

    def take(self) -> Verified | None:
        """All of them as one step, which are then let go: a chain of all tokens but the last, accepted; row 0 before
        it, row i + 1 behind its node i, without logits and hidden states. None where there are none."""
        if self._cache is None:
            return None
        tokens, cache = self._tokens, self._cache
        n = len(tokens)
        rows = SegmentRows(
            np.concatenate(self._argmax),
            np.empty((n, 0), dtype=np.float32),
            np.full(n, -1, dtype=np.int64),
            np.empty((0, 0), dtype=np.float32),
            np.concatenate(self._ids),
            np.concatenate(self._logits),
        )
        chain = DraftTree.chain(tokens[:-1], source=SOURCE)
        self._tokens, self._argmax, self._ids, self._logits, self._cache = [], [], [], [], None
        return Verified(chain, np.arange(n - 1, dtype=np.int64), np.array(tokens, dtype=np.int64), rows, cache)
