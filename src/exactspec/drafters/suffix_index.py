"""Where did the end of this text occur before? Exact longest-suffix search in a text that grows and shrinks.

A *position* p of the index stands for the context ``tokens[:p]`` and its continuation ``tokens[p]``. Per hash of the
last token of the context, positions form a binary search tree: ordered by context read backwards, with every newer
position above all older ones. Three properties follow:

* the search path of a context meets, for every match length, the most recent position that has it, and meets
  longer matches later: one walk gives all answers;
* such a tree has one shape only, given its positions, so removing the newest position is the inverse of adding
  it: truncating leaves exactly what would be there had the later tokens never come;
* it is three int32 per token and nothing else. A fourth chains positions with the same last two tokens, newest first:
  the occurrences among which continuations are counted.

This is the match finder of LZ77 compressors ("binary tree", as in LZMA), turned round: keys are the tokens before a
position instead of those behind it. Contexts are compared over at most `MAX_MATCH` tokens, so runs of one token
and texts repeated whole cost no more than others; contexts equal that far are one node, its newest position. A walk is
a descent: about 2 ln(positions with that last token) comparisons on any text not made to defeat the scrambled order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from exactspec.drafters.copying.load import compiled
from exactspec.target.base import IntArray

Int32Array: TypeAlias = npt.NDArray[np.int32]

MAX_MATCH = 64
"""Longest match that is told from longer ones, in tokens; the same as `copying.index.MAX_MATCH`."""

_BUCKETS = 8192
_LEAST = 256


class SuffixIndex:
    """Tokens, and every earlier place that continues their end. Not thread-safe.

    >>> index = SuffixIndex([5, 6, 7, 9, 6, 7, 8, 5, 6, 7])
    >>> index.match()                    # "5 6 7" before position 3, "6 7" before position 6
    [(3, 3), (6, 2)]
    >>> index.truncate(9); index.match() # "5 6" before position 2, "6" before position 5
    [(2, 2), (5, 1)]
    """

    __slots__ = ("_heads", "_links", "_n", "_run", "_tokens")

    def __init__(self, tokens: Sequence[int] | IntArray = ()) -> None:
        self._run = compiled()
        self._n = 0
        self._tokens = np.empty(0, dtype=np.int32)
        self._links = np.empty(0, dtype=np.int32)
        self._heads = np.zeros(2, dtype=np.int32)  # of an empty text: nothing is found in it
        self.append(tokens)

    def __len__(self) -> int:
        return self._n

    @property
    def tokens(self) -> Int32Array:
        """The text [n]; to read, never to change."""
        return self._tokens[: self._n]

    @property
    def arrays(self) -> tuple[Int32Array, Int32Array, Int32Array]:
        """(tokens, links, heads) as `copying.index` takes them, with room behind the text's end."""
        return self._tokens, self._links, self._heads

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self._tokens.nbytes + self._links.nbytes + self._heads.nbytes

    def reserve(self, more: int) -> None:
        """Make room for `more` tokens."""
        need = self._n + more
        if need <= len(self._tokens):
            return
        if len(self._heads) == 2:
            self._heads = np.zeros(2 * _BUCKETS, dtype=np.int32)
        room = max(_LEAST, need + need // 2)
        tokens, links = np.empty(room, dtype=np.int32), np.zeros(4 * room, dtype=np.int32)
        tokens[: self._n], links[: 4 * self._n] = self._tokens[: self._n], self._links[: 4 * self._n]
        self._tokens, self._links = tokens, links

    def append(self, tokens: Sequence[int] | IntArray) -> None:
        """Add tokens at the end. Ids must fit int32 (OverflowError otherwise, before anything is added)."""
        new = as_int32(tokens)
        if not len(new):
            return
        self.reserve(len(new))
        end = self._n + len(new)
        self._tokens[self._n : end] = new
        self._run.extend(self._tokens, self._links, self._heads, self._n, end)
        self._n = end

    def grown(self, n: int) -> None:
        """Say that compiled code has appended up to n tokens."""
        self._n = n

    def truncate(self, n: int) -> None:
        """Keep the first n tokens, as if the others had never been seen. Cost grows with the tokens removed.

        Raises ValueError unless 0 <= n <= len(self).
        """
        if not 0 <= n <= self._n:
            raise ValueError(f"cannot truncate {self._n} tokens to {n}")
        if self._n:
            self._run.cut(self._tokens, self._links, self._heads, self._n, n)
        self._n = n

    def fork(self) -> SuffixIndex:
        """An independent copy."""
        copy = SuffixIndex()
        copy._tokens, copy._links, copy._heads = self._tokens.copy(), self._links.copy(), self._heads.copy()
        copy._n = self._n
        return copy

    def match(self, of: SuffixIndex | None = None) -> list[tuple[int, int]]:
        """(position, length) of earlier places with the same tokens before them, longest first.

        For every length the most recent place that has it; shorter matches are given only where more recent than
        the longer ones. `length` is at least 1 and at most `MAX_MATCH`; ``tokens[position]`` is what came next.
        `of`: look up the end of that text in this one; by default this one's own end.
        """
        other = self if of is None else of
        found = np.empty((MAX_MATCH, 2), dtype=np.int64)
        count = self._run.find(self._tokens, self._links, self._heads, other._tokens, len(other), found)
        return [(int(position), int(length)) for position, length in found[:count][::-1]]


def as_int32(tokens: Sequence[int] | IntArray) -> Int32Array:
    """The ids as int32. Raises OverflowError if one does not fit."""
    wide = np.asarray(tokens, dtype=np.int64)
    if len(wide):
        _check_int32(int(wide.min()), int(wide.max()))
    return wide.astype(np.int32)


def check_int32(tokens: IntArray) -> None:
    """Of a few ids: raises OverflowError if one does not fit. Looked at one by one, which takes a tenth of the time of
    array operations whose code is not in the cache."""
    for token in tokens.tolist():
        _check_int32(token, token)


def _check_int32(least: int, most: int) -> None:
    if not -(2**31) <= least <= most < 2**31:
        raise OverflowError("token ids must fit 32 bits")
