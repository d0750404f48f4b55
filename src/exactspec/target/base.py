"""The target seam: what a target model offers the engine, whatever it is made of.

A *target* turns rows (tokens placed in a tree below the committed context) into the model's own choices.
One call serves several requests, one `Segment` each. A forward stages keys and values and commits nothing;
`Cache.keep` commits the path that the walk accepted.

Position of a row: ``cache.length + depth``, where the root (row 0) has depth 0. Between steps the history has
n tokens and the cache n - 1, so the root is ``history[-1]`` at position n - 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

IntArray: TypeAlias = npt.NDArray[np.integer[Any]]
FloatArray: TypeAlias = npt.NDArray[np.float32]


class Want(IntEnum):
    """What is asked of one row. Each value includes the ones below it."""

    NONE = 0  # keys and values only (prompt rows)
    ARGMAX = 1  # the id with the highest logit; ties go to the lowest id
    TOPK = 2  # also the `Target.top_k` best ids with their logits, best first, ties to the lowest id
    LOGITS = 3  # also the full row of logits


class Cache(Protocol):
    """Keys and values of one request's committed tokens, and of the rows of the last forward (staged).

    Cost of every method is O(tree depth), never O(context), except `fork`, which copies.
    """

    @property
    def length(self) -> int:
        """Number of committed tokens."""
        ...

    @property
    def nbytes(self) -> int:
        """Bytes held, preallocated ones included."""
        ...

    def keep(self, rows: Sequence[int] | IntArray) -> None:
        """Commit a root path of the staged rows and drop the others.

        `rows`: row numbers within the segment, from row 0 down the tree, each the parent of the next (for a
        chain of n tokens: ``range(n)``). Adds ``len(rows)`` to `length`. An empty path drops all staged rows.
        Raises ValueError if the rows are not a root path of what is staged.
        """
        ...

    def truncate(self, n: int) -> None:
        """Keep the first n committed tokens; drops staged rows. Raises ValueError unless 0 <= n <= length."""
        ...

    def fork(self) -> Cache:
        """An independent copy of the committed part."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Segment:
    """One request's rows in one forward.

    `tokens` [n] ids; ``tokens[0]`` is the root (or the first prompt token).
    `parents` [n]: ``parents[0] == -1``, ``parents[i] < i``; siblings hold distinct tokens.
    `want` [n]: a `Want` per row.

    >>> Segment.chain(cache, [5, 6, 7]).parents        # doctest: +SKIP
    array([-1,  0,  1])
    """

    cache: Cache
    tokens: IntArray
    parents: IntArray
    want: IntArray

    @classmethod
    def chain(
        cls, cache: Cache, tokens: Sequence[int] | IntArray, want: Want = Want.ARGMAX, *, last_only: bool = False
    ) -> Segment:
        """Rows that follow one another. `last_only` asks for `want` on the last row alone (a prompt)."""
        ids = np.asarray(tokens, dtype=np.int64)
        n = len(ids)
        wants = np.full(n, want, dtype=np.int64)
        if last_only and n:
            wants[:-1] = Want.NONE
        return cls(cache, ids, np.arange(-1, n - 1, dtype=np.int64), wants)


@dataclass(frozen=True, slots=True, eq=False)
class SegmentRows:
    """The rows of one segment after a forward. Arrays are views, valid until the target's next forward.

    `argmax` [n] id per row, -1 where nothing was asked.
    `hidden` [n, hidden_size] float32: output of the final norm (the head's input).
    `logits_index` [n]: row of `logits` that holds this row's logits, or -1.
    `logits` [asked, vocab_size] float32.
    `topk_ids`, `topk_logits` [n, top_k]; undefined where fewer than TOPK was asked.
    """

    argmax: IntArray
    hidden: FloatArray
    logits_index: IntArray
    logits: FloatArray
    topk_ids: IntArray
    topk_logits: FloatArray

    def __len__(self) -> int:
        return len(self.argmax)

    def row_logits(self, row: int) -> FloatArray:
        """Logits [vocab_size] of one row. Raises ValueError if they were not asked for."""
        at = int(self.logits_index[row])
        if at < 0:
            raise ValueError(f"row {row} has no logits: ask with Want.LOGITS")
        logits: FloatArray = self.logits[at]
        return logits


class Target(Protocol):
    """A model that answers for rows. Not thread-safe: one forward at a time (the engine holds a lock)."""

    @property
    def vocab_size(self) -> int:
        """Number of valid ids; tokens outside 0..vocab_size-1 are refused with ValueError."""
        ...

    @property
    def max_length(self) -> int:
        """Longest context in tokens: no row may have a position at or beyond it."""
        ...

    @property
    def top_k(self) -> int:
        """How many ids `Want.TOPK` gives."""
        ...

    @property
    def identity(self) -> str:
        """What equal bits are promised for: weights hash, versions, CPU kind, cache dtype, accuracy mode."""
        ...

    @property
    def exact(self) -> bool:
        """True if a row's bits do not depend on the other rows; False: equal up to float near-ties."""
        ...

    def new_cache(self) -> Cache: ...

    def forward(self, segments: Sequence[Segment]) -> list[SegmentRows]:
        """One pass over all rows of all segments; result i belongs to segment i. Stages, commits nothing.

        A cache may occur once per call. Raises ValueError, before any work, on ids outside the vocabulary,
        positions at or past `max_length`, or a malformed tree.
        """
        ...


def check_cache(target: Target) -> None:
    """Raises ValueError if what the target keeps of a text lacks what rejected drafts and prefix reuse need, as the
    state of a recurrent model does: refused at the start, because a wrong answer would come without an error."""
    cache = target.new_cache()
    missing = [name for name in ("keep", "truncate", "fork") if not callable(getattr(cache, name, None))]
    if missing:
        raise ValueError(
            f"{type(cache).__name__} cannot be rewound: it lacks {', '.join(missing)}; see Cache in target/base.py"
        )
