"""Where did the end of this text occur before? Exact longest-suffix search in a text that grows and shrinks.

A *position* p of the index stands for the context ``tokens[:p]`` and its continuation ``tokens[p]``. Per last token
of the context, positions form a binary search tree: ordered by context read backwards, with every newer position
above all older ones. Three properties follow:

* the search path of a context meets, for every match length, the most recent position that has it, and meets
  longer matches later: one walk gives all answers;
* such a tree has one shape only, given its positions, so removing the newest position is the inverse of adding
  it: truncating leaves exactly what would be there had the later tokens never come;
* it is four int32 per token and nothing else.

This is the match finder of LZ77 compressors ("binary tree", as in LZMA), turned round: keys are the tokens before a
position instead of those behind it. Contexts are compared over at most `MAX_MATCH` tokens, so runs of one token
and texts repeated whole cost no more than others; contexts equal that far are one node, its newest position. The
order of two tokens is that of their scrambled ids: by plain ids a table of rising numbers would make a tree as deep
as it is long. A walk is a descent: about 2 ln(positions with that last token) comparisons on any text not made to
defeat the scrambling.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import numpy as np

from exactspec.target.base import IntArray

MAX_MATCH = 64
"""Longest match that is told from longer ones, in tokens. A power of two."""

_BULK = 256
"""From this many tokens on, filling an empty index by sorting is quicker than one by one."""

_SLICE = 12
"""Tokens compared at a time once several agreed."""

_FEW = 24
"""For fewer tokens plain Python is quicker than numpy."""


def _scramble(ids: array[int]) -> array[int]:
    """One-to-one on 32 bits (the finaliser of MurmurHash3), so equal keys mean equal tokens."""
    if len(ids) >= _FEW:
        many = np.frombuffer(ids, dtype=np.uint32).copy()
        many ^= many >> np.uint32(16)
        many *= np.uint32(0x85EBCA6B)
        many ^= many >> np.uint32(13)
        many *= np.uint32(0xC2B2AE35)
        many ^= many >> np.uint32(16)
        return array("I", many.tobytes())
    keys = array("I")
    for x in ids:
        x &= 0xFFFFFFFF
        x = ((x ^ (x >> 16)) * 0x85EBCA6B) & 0xFFFFFFFF
        x = ((x ^ (x >> 13)) * 0xC2B2AE35) & 0xFFFFFFFF
        keys.append(x ^ (x >> 16))
    return keys


def agreeing(text: array[int], at: int, other: array[int], there: int, k: int, most: int) -> int:
    """How many tokens agree, counted backwards from ``text[at]`` and ``other[there]``; the first k are known to.

    Never more than `most`, which neither side may run out before.
    """
    # Slices are compared in C; short agreements, the usual ones, end before the first.
    quick = min(k + 3, most)
    while k < quick:
        if text[at - k] != other[there - k]:
            return k
        k += 1
    while (
        k + _SLICE <= most and text[at - k - _SLICE + 1 : at - k + 1] == other[there - k - _SLICE + 1 : there - k + 1]
    ):
        k += _SLICE
    while k < most and text[at - k] == other[there - k]:
        k += 1
    return k


class SuffixIndex:
    """Tokens, and every earlier place that continues their end. Not thread-safe.

    >>> index = SuffixIndex([5, 6, 7, 9, 6, 7, 8, 5, 6, 7])
    >>> index.match()                    # "5 6 7" before position 3, "6 7" before position 6
    [(3, 3), (6, 2)]
    >>> index.truncate(9); index.match() # "5 6" before position 2, "6" before position 5
    [(2, 2), (5, 1)]
    """

    __slots__ = ("_keys", "_roots", "_same", "_sons", "_tokens")

    def __init__(self, tokens: Sequence[int] | IntArray = ()) -> None:
        self._tokens = array("i")
        self._keys = array("I")  # the same, scrambled: what is compared
        self._sons = array("i", (0, 0))  # of position p: [2p] smaller contexts, [2p + 1] larger ones; 0: none
        self._same = array("i", (0,))  # of position p: the next older position with an equal context; 0: none
        self._roots: dict[int, int] = {}  # key of the context's last token -> newest position
        self.append(tokens)

    def __len__(self) -> int:
        return len(self._tokens)

    @property
    def tokens(self) -> array[int]:
        """The text; to read, never to change."""
        return self._tokens

    @property
    def nbytes(self) -> int:
        """Bytes held, the dictionary of last tokens estimated at 100 a key."""
        return 4 * (2 * len(self._tokens) + len(self._sons) + len(self._same)) + 100 * len(self._roots)

    def append(self, tokens: Sequence[int] | IntArray) -> None:
        """Add tokens at the end. Ids must fit int32 (OverflowError otherwise, before anything is added)."""
        new = array("i", tokens.tolist() if isinstance(tokens, np.ndarray) else tokens)
        first = len(self._tokens)
        self._tokens.extend(new)
        self._keys.extend(_scramble(new))
        added = max(len(self._tokens) - len(self._same), 0)  # position 0 has its slots from the start
        self._sons.extend(array("i", bytes(8 * added)))
        self._same.extend(array("i", bytes(4 * added)))
        if first == 0 and len(new) >= _BULK:
            self._build()
            return
        for position in range(max(first, 1), len(self._tokens)):
            last = self._keys[position - 1]
            self._same[position] = self._split(position, self._roots.get(last, 0))
            self._roots[last] = position

    def truncate(self, n: int) -> None:
        """Keep the first n tokens, as if the others had never been seen. Cost grows with the tokens removed.

        Raises ValueError unless 0 <= n <= len(self).
        """
        if not 0 <= n <= len(self._tokens):
            raise ValueError(f"cannot truncate {len(self._tokens)} tokens to {n}")
        for position in range(len(self._tokens) - 1, max(n, 1) - 1, -1):
            self._remove(position)
        del self._tokens[n:], self._keys[n:], self._sons[2 * max(n, 1) :], self._same[max(n, 1) :]

    def fork(self) -> SuffixIndex:
        """An independent copy."""
        copy = SuffixIndex()
        copy._tokens, copy._keys, copy._roots = self._tokens[:], self._keys[:], self._roots.copy()
        copy._sons, copy._same = self._sons[:], self._same[:]
        return copy

    def match(self, of: SuffixIndex | None = None) -> list[tuple[int, int]]:
        """(position, length) of earlier places with the same tokens before them, longest first.

        For every length the most recent place that has it; shorter matches are given only where more recent than
        the longer ones. `length` is at least 1 and at most `MAX_MATCH`; ``tokens[position]`` is what came next.
        `of`: look up the end of that text in this one; by default this one's own end.
        """
        keys, sons = self._keys, self._sons
        text = keys if of is None else of._keys
        end = len(text) - 1
        if end < 0:
            return []
        node = self._roots.get(text[end], 0)
        longest = end + 1 if end < MAX_MATCH else MAX_MATCH
        found: list[tuple[int, int]] = []
        below = above = best = 0
        while node:
            k = below if below < above else above
            most = node if node < longest else longest
            last = node - 1
            if k < most and keys[last - k] == text[end - k]:
                k = agreeing(keys, last, text, end, k + 1, most)
            if k > best:
                found.append((node, k))
                best = k
            if k == longest:
                break
            if k == node or keys[last - k] < text[end - k]:
                below, node = k, sons[2 * node + 1]
            else:
                above, node = k, sons[2 * node]
        found.reverse()
        return found

    def _split(self, position: int, node: int) -> int:
        """Hang the tree `node` of older positions below `position`; the position with an equal context, or 0."""
        keys, sons = self._keys, self._sons
        low, high = 2 * position, 2 * position + 1  # where the next smaller and the next larger subtree go
        below = above = 1  # the last token is shared by all
        while node:
            k = below if below < above else above
            most = node if node < MAX_MATCH else MAX_MATCH
            if k < most and keys[node - 1 - k] == keys[position - 1 - k]:
                k = agreeing(keys, node - 1, keys, position - 1, k + 1, most)
            if k == MAX_MATCH:
                sons[low], sons[high] = sons[2 * node], sons[2 * node + 1]
                return node
            if k == node or keys[node - 1 - k] < keys[position - 1 - k]:
                sons[low] = node
                low = 2 * node + 1
                below, node = k, sons[low]
            else:
                sons[high] = node
                high = 2 * node
                above, node = k, sons[high]
        sons[low] = sons[high] = 0
        return 0

    def _remove(self, position: int) -> None:
        """Take out the newest position of all, which is the root of its tree."""
        sons, last = self._sons, self._keys[position - 1]
        small, large = sons[2 * position], sons[2 * position + 1]
        slot = 0  # position 0 has no context, so its first slot can hold the new root
        while small and large:
            if small > large:
                sons[slot] = small
                slot = 2 * small + 1
                small = sons[slot]
            else:
                sons[slot] = large
                slot = 2 * large
                large = sons[slot]
        sons[slot] = small or large
        if self._same[position]:
            self._restore(self._same[position])
        if sons[0]:
            self._roots[last] = sons[0]
        else:
            del self._roots[last]
        sons[0] = 0

    def _restore(self, position: int) -> None:
        """Put a position that an equal newer one had replaced back into the tree at slot 0."""
        keys, sons = self._keys, self._sons
        slot, node = 0, sons[0]
        below = above = 1
        most = position if position < MAX_MATCH else MAX_MATCH
        while node > position:
            k = below if below < above else above
            if k < most and keys[node - 1 - k] == keys[position - 1 - k]:
                k = agreeing(keys, node - 1, keys, position - 1, k + 1, most)
            if k < position and keys[node - 1 - k] < keys[position - 1 - k]:
                slot, below = 2 * node + 1, k
            else:
                slot, above = 2 * node, k
            node = sons[slot]
        self._split(position, node)
        sons[slot] = position

    def _build(self) -> None:
        """Index the whole text at once: sort the contexts, then build each tree from left to right."""
        text = np.array(self._keys, dtype=np.int64)[:-1]  # the context of position p ends at text[p - 1]
        rank = np.unique(text, return_inverse=True)[1]
        width = 1
        while width < MAX_MATCH and rank.max() + 1 < len(rank):  # rank by `width` tokens, then by twice as many
            before = np.zeros(len(rank), dtype=np.int64)
            before[width:] = rank[:-width] + 1  # a context that has ended is smaller than any that goes on
            rank = np.unique(rank * (len(rank) + 1) + before, return_inverse=True)[1]
            width *= 2
        order = np.argsort(rank, kind="stable")
        ranks, positions = rank[order], order + 1
        equal = ranks[1:] == ranks[:-1]
        same = np.array(self._same, dtype=np.int32)
        same[positions[1:][equal]] = positions[:-1][equal]
        self._same = array("i", same.tobytes())
        newest = positions[np.append(~equal, True)]
        sons = self._sons
        spine: list[int] = []  # from the root along larger contexts
        lasts = text[newest - 1].tolist()
        last = lasts[0]
        for position, its_last in zip(newest.tolist(), lasts, strict=True):
            if its_last != last:
                self._roots[last] = spine[0]
                spine, last = [], its_last
            smaller = 0
            while spine and spine[-1] < position:
                smaller = spine.pop()
            sons[2 * position] = smaller
            if spine:
                sons[2 * spine[-1] + 1] = position
            spine.append(position)
        self._roots[last] = spine[0]
