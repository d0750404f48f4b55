"""The draft: a tree of tokens below the root. No model, no device.

The root is not a node. Node i becomes row i + 1 of the verify segment (row 0 is the root).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from exactspec.target.base import FloatArray, IntArray

ROOT = -1
"""Parent of the nodes directly below the root."""


@dataclass(frozen=True, slots=True, eq=False)
class DraftTree:
    """n drafted tokens.

    `tokens` [n] ids; `parents` [n] index of the parent node, ROOT (-1) below the root, ``parents[i] < i``.
    `source` [n] index into `sources`, the names of the drafters that proposed the nodes.
    `score` [n] float32: estimated probability that the node is reached and accepted; never above its parent's.
    `origin` [n]: where the token was copied from: an index into the history (prompt + output), or into the
    prediction text's ids for source "prediction"; -1 for drafters that do not copy.
    Siblings hold distinct tokens.

    >>> t = DraftTree.chain([5, 6], source="copy", scores=[0.9, 0.8], origins=[3, 4])
    >>> t.parents.tolist(), t.depths().tolist()
    ([-1, 0], [1, 2])
    """

    tokens: IntArray
    parents: IntArray
    source: IntArray
    score: FloatArray
    origin: IntArray
    sources: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.tokens)

    @classmethod
    def empty(cls) -> DraftTree:
        none = np.empty(0, dtype=np.int64)
        return cls(none, none, none, np.empty(0, dtype=np.float32), none, ())

    @classmethod
    def chain(
        cls,
        tokens: Sequence[int] | IntArray,
        *,
        source: str,
        scores: Sequence[float] | FloatArray | None = None,
        origins: Sequence[int] | IntArray | None = None,
    ) -> DraftTree:
        ids = np.asarray(tokens, dtype=np.int64)
        n = len(ids)
        return cls(
            ids,
            np.arange(-1, n - 1, dtype=np.int64),
            np.zeros(n, dtype=np.int64),
            np.ones(n, dtype=np.float32) if scores is None else np.asarray(scores, dtype=np.float32),
            np.full(n, -1, dtype=np.int64) if origins is None else np.asarray(origins, dtype=np.int64),
            (source,),
        )
