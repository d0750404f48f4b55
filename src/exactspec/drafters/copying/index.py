"""Where did the end of a text occur before? Compiled search in a text that grows and shrinks.

Functions here are typed by numba; `suffix_index.SuffixIndex` owns the arrays and says what they mean together.

`tokens` int32 [capacity]. `links` int32 [4 * capacity], four per position p: smaller and larger contexts in p's search
tree, the next older position with an equal context, the next older position whose last two tokens hash alike.
`heads` int32 [2 * buckets]: newest position per hash of the last token, then per hash of the last two. 0: none.
"""

from __future__ import annotations

import numba
import numpy as np

MAX_MATCH = 64
"""Longest match that is told from longer ones, in tokens."""


@numba.njit
def scramble(x):
    """One-to-one on 32 bits (the finaliser of MurmurHash3). Contexts are ordered by scrambled ids: by plain ids a table
    of rising numbers would make a tree as deep as it is long."""
    y = np.uint64(x) & np.uint64(0xFFFFFFFF)
    y = ((y ^ (y >> np.uint64(16))) * np.uint64(0x85EBCA6B)) & np.uint64(0xFFFFFFFF)
    y = ((y ^ (y >> np.uint64(13))) * np.uint64(0xC2B2AE35)) & np.uint64(0xFFFFFFFF)
    return np.int64(y ^ (y >> np.uint64(16)))


@numba.njit
def pair(before, last):
    """A hash of two tokens in order."""
    return scramble(scramble(before) * np.int64(31) + np.int64(last) + np.int64(7))


@numba.njit
def agreeing(text, at, other, there, k, most):
    """Tokens that agree, counted backwards from ``text[at]`` and ``other[there]``; the first k are known to. Never more
    than `most`, which neither side may run out before."""
    while k < most and text[at - k] == other[there - k]:
        k += 1
    return k


@numba.njit
def find(tokens, links, heads, other, end, found):
    """Places with the context ``other[:end]``, longer matches later: rows (position, length) of `found` int64
    [MAX_MATCH, 2]; how many. For every length the most recent place, where more recent than all longer ones."""
    count = 0
    if end < 1:
        return count
    last = end - 1
    node = np.int64(heads[scramble(other[last]) & (len(heads) // 2 - 1)])
    below = above = best = 0
    longest = min(end, MAX_MATCH)
    while node:
        k = agreeing(tokens, node - 1, other, last, min(below, above), min(node, longest))
        if k > best:
            found[count, 0], found[count, 1] = node, k
            count += 1
            best = k
        if k == longest:
            break
        if k == node or scramble(tokens[node - 1 - k]) < scramble(other[last - k]):
            below, node = k, np.int64(links[4 * node + 1])
        else:
            above, node = k, np.int64(links[4 * node])
    return count


@numba.njit
def _split(tokens, links, position, node):
    """Hang the tree `node` of older positions below `position`; the position with an equal context, or 0."""
    low, high = 4 * position, 4 * position + 1  # where the next smaller and the next larger subtree go
    below = above = 0
    while node:
        k = agreeing(tokens, node - 1, tokens, position - 1, min(below, above), min(node, MAX_MATCH))
        if k == MAX_MATCH:
            links[low], links[high] = links[4 * node], links[4 * node + 1]
            return node
        if k == node or scramble(tokens[node - 1 - k]) < scramble(tokens[position - 1 - k]):
            links[low] = node
            low = 4 * node + 1
            below, node = k, np.int64(links[low])
        else:
            links[high] = node
            high = 4 * node
            above, node = k, np.int64(links[high])
    links[low] = links[high] = 0
    return np.int64(0)


@numba.njit
def extend(tokens, links, heads, n, end):
    """Index the tokens n..end-1, which are there already. A position counts from the moment its own token is there:
    the text's end is no match of itself."""
    buckets = len(heads) // 2
    for position in range(max(n, 1), end):
        tree = scramble(tokens[position - 1]) & (buckets - 1)
        links[4 * position + 2] = _split(tokens, links, position, np.int64(heads[tree]))
        heads[tree] = position
        if position > 1:
            chain = buckets + (pair(tokens[position - 2], tokens[position - 1]) & (buckets - 1))
            links[4 * position + 3] = heads[chain]
            heads[chain] = position


@numba.njit
def _restore(tokens, links, position):
    """Put a position that an equal newer one had replaced back into the tree at slot 0."""
    slot, node = np.int64(0), np.int64(links[0])
    below = above = 0
    while node > position:
        k = agreeing(tokens, node - 1, tokens, position - 1, min(below, above), min(position, MAX_MATCH))
        if k < position and scramble(tokens[node - 1 - k]) < scramble(tokens[position - 1 - k]):
            slot, below = 4 * node + 1, k
        else:
            slot, above = 4 * node, k
        node = np.int64(links[slot])
    _split(tokens, links, position, node)
    links[slot] = position


@numba.njit
def cut(tokens, links, heads, end, n):
    """Forget the tokens n..end-1: what is left is what would be there had they never come. Newest positions first:
    each is the root of its tree, and a tree has one shape only, given its positions."""
    buckets = len(heads) // 2
    for position in range(end - 1, max(n, 1) - 1, -1):
        if position > 1:
            chain = buckets + (pair(tokens[position - 2], tokens[position - 1]) & (buckets - 1))
            heads[chain] = links[4 * position + 3]
        small, large = np.int64(links[4 * position]), np.int64(links[4 * position + 1])
        slot = np.int64(0)  # position 0 has no context, so its first slot can hold the new root
        while small and large:
            if small > large:
                links[slot] = small
                slot = 4 * small + 1
                small = np.int64(links[slot])
            else:
                links[slot] = large
                slot = 4 * large
                large = np.int64(links[slot])
        links[slot] = small if small else large
        if links[4 * position + 2]:
            _restore(tokens, links, np.int64(links[4 * position + 2]))
        heads[scramble(tokens[position - 1]) & (buckets - 1)] = links[0]
        links[0] = 0
