"""Which continuations are on offer: places that go on, lost places nearby, and matches of the history's end.

Functions here are typed by numba; see layout for the arrays.
"""

from __future__ import annotations

import numba
import numpy as np

from exactspec.drafters.copying.index import MAX_MATCH, agreeing, find, pair
from exactspec.drafters.copying.layout import (
    ALIGNED,
    C_AGE,
    C_DEPTH,
    C_EDIT,
    C_KIND,
    C_LEN,
    C_LOST,
    C_POS,
    C_REP,
    C_REPS,
    C_SLOT,
    C_TEXT,
    CANDIDATES,
    FOLLOW,
    FORESEEN,
    HISTORY,
    INSERTED,
    MATCH,
    P_LEN,
    P_LOST,
    P_POS,
    P_REP,
    P_REPS,
    P_TEXT,
    PREDICTION,
    R_HISTORY,
    R_MIN_MATCH,
    R_PREDICTION,
    R_ROOTS,
    R_STORE,
    REPLACED,
    SLOTS,
    STORE,
    STORED,
)

BEFORE, BEHIND = 4, 48
"""After an edit, tokens before and behind the expected one among which the place is looked for again."""

LONGEST_LOST = 64
"""Tokens after which a lost place is no longer looked for."""

BLIND = 3
"""Tokens after which a lost place is offered only where something agrees."""

VISITS, RECENT = 32, 12
"""Places with the same last two tokens that are looked at, and kept."""


@numba.njit
def add(candidates, count, text, pos, length, kind, slot, lost, age):
    """Add a candidate unless its place is on offer already, or there is no room; the new count."""
    if count >= CANDIDATES:
        return count
    for i in range(count):
        c = candidates[i]
        if c[C_TEXT] == text and c[C_POS] == pos and c[C_REPS] == 0:
            return count
    c = candidates[count]
    c[C_TEXT], c[C_POS], c[C_LEN], c[C_KIND], c[C_DEPTH] = text, pos, length, kind, 0
    c[C_REP], c[C_REPS], c[C_SLOT], c[C_EDIT], c[C_LOST], c[C_AGE] = 0, 0, slot, -1, lost, age
    return count + 1


@numba.njit
def _aligned(text, size, history, n, slot, number, candidates, count):
    """Places near a lost one whose last tokens agree with the history's end: the three best."""
    last = history[n - 1]
    expected = slot[P_POS] + slot[P_LOST]
    begin = max(slot[P_POS] - BEFORE, 1)
    end = min(slot[P_POS] + BEHIND, size - 1)
    taken0 = taken1 = np.int64(-1)
    for _ in range(3):
        best, best_key = np.int64(-1), np.int64(-1)
        best_length = np.int64(0)
        for p in range(begin, end + 1):
            if text[p - 1] != last or p in (taken0, taken1):
                continue
            k = agreeing(text, p - 1, history, n - 1, 1, min(p, n, MAX_MATCH))
            key = k * 1024 - abs(p - expected)
            if key > best_key:
                best, best_key, best_length = np.int64(p), np.int64(key), np.int64(k)
        if best < 0:
            break
        count = add(candidates, count, slot[P_TEXT], best, best_length, ALIGNED, number, slot[P_LOST], 0)
        taken0, taken1 = taken1, best
    return count


@numba.njit
def _chained(tokens, links, heads, n, shortest, candidates, count):
    """The most recent places in the history with the same last two tokens."""
    buckets = len(heads) // 2
    p = np.int64(heads[buckets + (pair(tokens[n - 2], tokens[n - 1]) & (buckets - 1))])
    kept = 0
    for i in range(count):  # beside a long match short ones say nothing
        if candidates[i, C_KIND] == MATCH:
            shortest = max(shortest, candidates[i, C_LEN] // 4)
    for _ in range(VISITS):
        if p == 0 or kept == RECENT:
            break
        k = agreeing(tokens, p - 1, tokens, n - 1, 0, min(p, MAX_MATCH))
        if k >= 2 and k >= shortest:
            before = count
            count = add(candidates, count, HISTORY, p, k, MATCH, -1, 0, kept)
            kept += count - before
        p = np.int64(links[4 * p + 3])
    return count


@numba.njit
def _found(tokens, links, heads, history, n, shortest, text, kind, most, found, candidates, count):
    """The longest matches of the history's end in a text."""
    hits = find(tokens, links, heads, history, n, found)
    for i in range(hits - 1, max(-1, hits - 1 - most), -1):
        if found[i, 1] >= shortest:
            count = add(candidates, count, text, found[i, 0], found[i, 1], kind, -1, 0, 0)
    return count


@numba.njit
def gather(history, prediction, store, slots, candidates, found, regs):
    """Fill `candidates` with what may come next; each text is (tokens, links, heads). Sets R_ROOTS."""
    n = regs[R_HISTORY]
    tokens = history[0]
    shortest = regs[R_MIN_MATCH]
    count = 0
    for number in range(SLOTS):
        slot = slots[number]
        if slot[P_TEXT] < 0 or slot[P_LOST]:
            continue
        text = slot[P_TEXT]
        size = n if text == HISTORY else regs[R_PREDICTION] if text == PREDICTION else regs[R_STORE]
        if slot[P_POS] >= size and slot[P_REPS] == 0:
            continue
        kind = FORESEEN if text == PREDICTION else FOLLOW
        before = count
        count = add(candidates, count, text, slot[P_POS], slot[P_LEN], kind, number, 0, 0)
        if count > before:
            candidates[before, C_REP], candidates[before, C_REPS] = slot[P_REP], slot[P_REPS]
    if n == 0:
        regs[R_ROOTS] = count
        return
    # Near a lost place first: a match found there and by the search is one candidate, and shows what was edited.
    for number in range(SLOTS):
        slot = slots[number]
        if slot[P_TEXT] < 0 or slot[P_LOST] == 0 or slot[P_LOST] > LONGEST_LOST:
            continue
        text = slot[P_TEXT]
        if text == HISTORY:
            its, size = tokens, n
        elif text == PREDICTION:
            its, size = prediction[0], regs[R_PREDICTION]
        else:
            its, size = store[0], regs[R_STORE]
        count = _aligned(its, size, tokens, n, slot, number, candidates, count)
        lost = slot[P_LOST]
        if lost <= BLIND and slot[P_POS] + lost < size:
            count = add(candidates, count, text, slot[P_POS] + lost, 0, REPLACED, number, lost, 0)
        if lost <= BLIND and slot[P_POS] < size:
            count = add(candidates, count, text, slot[P_POS], 0, INSERTED, number, lost, 0)
    count = _found(
        prediction[0], prediction[1], prediction[2], tokens, n, shortest, PREDICTION, FORESEEN, 2,
        found, candidates, count,
    )  # fmt: skip
    count = _found(tokens, history[1], history[2], tokens, n, shortest, HISTORY, MATCH, 4, found, candidates, count)
    if n > 1:
        count = _chained(tokens, history[1], history[2], n, shortest, candidates, count)
    count = _found(
        store[0], store[1], store[2], tokens, n, max(shortest, 3), STORE, STORED, 2, found, candidates, count
    )
    regs[R_ROOTS] = count
