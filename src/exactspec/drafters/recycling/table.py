"""The table of successors: what the target found likely after one token and after two, and how that is put together.

Token Recycling (arXiv 2408.08696) keeps the last best tokens of each token. Here they come with their probabilities,
those of two tokens' contexts come first, and earlier ones are not forgotten at once.
Functions here are typed by numba; see layout for the arrays.
"""

from __future__ import annotations

import numba
import numpy as np

from exactspec.drafters.recycling.layout import PAIRS, SINGLES, WAYS

SINGLE_NEW = np.float32(0.5)
PAIR_NEW = np.float32(0.6)
"""Weight of what a row says against what an entry held before."""

TRUST = np.float32(0.8)
"""Weight of two tokens' successors against one token's."""

TAIL = np.float32(4)
"""Tokens as likely as the last one of a full row that are counted with it, for all that it does not list."""


@numba.njit
def key_of(before, token):
    """Of a context of two tokens; of one where `before` is -1."""
    return ((np.int64(before) + 1) << 32) | (np.int64(token) + 1)


@numba.njit
def slot_of(key):
    x = np.uint64(key) * np.uint64(0x9E3779B97F4A7C15)
    x ^= x >> np.uint64(29)
    x *= np.uint64(0xBF58476D1CE4E5B9)
    x ^= x >> np.uint64(32)
    if key >> 32:
        return SINGLES + np.int64(x & np.uint64(PAIRS - 1))
    return np.int64(x & np.uint64(SINGLES - 1))


@numba.njit
def _rank_in(ids, odds, count, token, p):
    """Put (token, p) into a list kept likeliest first; the new count, at most WAYS. The token is not in it."""
    if count == WAYS:
        if odds[count - 1] >= p:
            return count
        count -= 1
    i = count
    while i > 0 and odds[i - 1] < p:
        ids[i] = ids[i - 1]
        odds[i] = odds[i - 1]
        i -= 1
    ids[i] = token
    odds[i] = p
    return count + 1


@numba.njit
def mix(ids, odds, other_ids, other_odds, weight, out_ids, out_odds):
    """The WAYS likeliest of (1 - weight) x the first and weight x the other list; how many. `out` is neither."""
    count = 0
    for i in range(WAYS):
        if odds[i] <= 0:
            break
        p = (np.float32(1) - weight) * odds[i]
        for j in range(WAYS):
            if other_odds[j] > 0 and other_ids[j] == ids[i]:
                p += weight * other_odds[j]
                break
        count = _rank_in(out_ids, out_odds, count, ids[i], p)
    for j in range(WAYS):
        if other_odds[j] <= 0:
            break
        known = False
        for i in range(WAYS):
            if odds[i] > 0 and ids[i] == other_ids[j]:
                known = True
                break
        if not known:
            count = _rank_in(out_ids, out_odds, count, other_ids[j], weight * other_odds[j])
    for i in range(count, WAYS):
        out_ids[i], out_odds[i] = -1, 0
    return count


@numba.njit
def write(keys, ids, odds, stamps, key, new_ids, new_odds, weight, length, held_ids, held_odds):
    slot = slot_of(key)
    if keys[slot] == key and weight < 1:
        mix(ids[slot], odds[slot], new_ids, new_odds, weight, held_ids, held_odds)
        ids[slot], odds[slot] = held_ids, held_odds
    else:
        keys[slot] = key
        ids[slot], odds[slot] = new_ids, new_odds
    stamps[slot] = length


@numba.njit
def probabilities(logits, count, out):
    """Of the best `count` logits, best first, with a guess of what the others hold."""
    total = np.float32(0)
    for i in range(count):
        out[i] = np.exp(logits[i] - logits[0])
        total += out[i]
    total += TAIL * np.float32(count) / np.float32(WAYS) * out[count - 1]
    for i in range(count):
        out[i] /= total


@numba.njit
def note(keys, ids, odds, stamps, before, token, topk_ids, topk_logits, length, held_ids, held_odds):
    """Take in one row of the target: its best ids after `token`, which follows `before` (-1: none)."""
    count = 0
    row_ids, row_odds = held_ids[1], held_odds[1]
    while count < min(WAYS, len(topk_ids)) and topk_ids[count] >= 0:
        row_ids[count] = topk_ids[count]
        count += 1
    if count == 0:
        return
    probabilities(topk_logits, count, row_odds)
    for i in range(count, WAYS):
        row_ids[i], row_odds[i] = -1, 0
    write(keys, ids, odds, stamps, key_of(-1, token), row_ids, row_odds, SINGLE_NEW, length, held_ids[0], held_odds[0])
    if before >= 0:
        key = key_of(before, token)
        write(keys, ids, odds, stamps, key, row_ids, row_odds, PAIR_NEW, length, held_ids[0], held_odds[0])


@numba.njit
def look_up(keys, ids, odds, before, token, out_ids, out_odds):
    """(successors, length of the context they are of): likeliest first in `out_ids`, `out_odds` [WAYS]; (0, 0) where
    neither context is known."""
    single, pair = key_of(-1, token), key_of(before, token)
    s, p = slot_of(single), slot_of(pair)
    has_single, has_pair = keys[s] == single, before >= 0 and keys[p] == pair
    if has_single and has_pair:
        return mix(ids[s], odds[s], ids[p], odds[p], TRUST, out_ids, out_odds), 2
    if not has_single and not has_pair:
        return 0, 0
    at = p if has_pair else s
    count = 0
    for i in range(WAYS):
        out_ids[i], out_odds[i] = ids[at, i], odds[at, i]
        if odds[at, i] > 0:
            count = i + 1
    return count, 2 if has_pair else 1
