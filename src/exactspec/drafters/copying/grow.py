"""From candidates to a tree: at every node the candidates still agreeing are grouped by what they say next.

The most trusted group comes first; its probability is learned for its kind, the agreement among candidates and the
match behind it. What it leaves over goes to the next group, with odds of its own, and so on: the probabilities of a
node's children add up to one at most. Functions here are typed by numba; see layout for the arrays.
"""

from __future__ import annotations

import numba
import numpy as np

from exactspec.drafters.copying.index import pair
from exactspec.drafters.copying.layout import (
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
    E_KEY,
    E_NEW,
    E_NEWS,
    E_SRC,
    E_SRCS,
    E_TEXT,
    EDITED,
    EDITS,
    HISTORY,
    INSERTED,
    PREDICTION,
    R_HISTORY,
    R_PREDICTION,
    R_ROOTS,
    R_STORE,
    REPLACED,
)

GROUPS = 4
"""Different tokens considered at one node."""

AGING = np.float32(0.8)
"""Weight of a match against the next more recent one of its length."""

STAY = np.float32(10)
"""A place counts that much more than a fresh match that says the same: a copy goes on where it is."""

SHORT = 8
"""Buckets of matches whose odds go up and down together."""

PRIOR = np.float32(2)
"""Observations that the prior counts as."""

FLOOR = np.float32(0.02)
"""A node less likely than this is not proposed."""


@numba.njit
def bucket(length):
    """Match lengths that share their odds: 0, 1, .. 6, 8, 12, 16, 24, 32, 48, 64, 128, 256 and more."""
    if length < 7:
        return length
    if length < 8:
        return 6
    if length < 12:
        return 7
    if length < 16:
        return 8
    if length < 24:
        return 9
    if length < 32:
        return 10
    if length < 48:
        return 11
    if length < 64:
        return 12
    if length < 128:
        return 13
    if length < 256:
        return 14
    return 15


@numba.njit
def rate(cell):
    """Probability of a cell (hits, seen, prior): the prior counts as PRIOR observations."""
    return (cell[0] + PRIOR * cell[2]) / (cell[1] + PRIOR)


@numba.njit
def edit_rate(odds):
    """Probability that a replacement seen before is made again; `odds` (made, offered) lately."""
    return (odds[0] + np.float32(1)) / (odds[1] + np.float32(2))


@numba.njit
def mood(edit_odds):
    """How this request's short matches do against what their odds promise: one number for all of them, since a text
    without repetition shows too few of each sort to learn from."""
    row = edit_odds[EDITS]
    return min(max((row[0] + np.float32(3)) / (row[1] + np.float32(3)), np.float32(0.3)), np.float32(1.2))


@numba.njit
def place_of(c, depth, n):
    """(text, index) of what candidate `c` says at `depth`: in the history while it replaces, in its own text after."""
    said = depth - c[C_DEPTH]
    if said < c[C_REPS]:
        return np.int64(HISTORY), np.int64(c[C_REP] + said)
    at = np.int64(c[C_POS] + said - c[C_REPS])
    if c[C_TEXT] == HISTORY and at >= n:
        # The copy runs into its own draft: a loop goes on. Only where the draft is all its own.
        if c[C_DEPTH] > 0 or c[C_REPS] > 0:
            return np.int64(HISTORY), np.int64(-1)
        at = c[C_POS] + (at - c[C_POS]) % (n - c[C_POS])
    return np.int64(c[C_TEXT]), at


@numba.njit
def token_at(history, prediction, store, regs, text, at):
    """-1 past a text's end."""
    if at < 0:
        return np.int64(-1)
    if text == HISTORY:
        return np.int64(history[at]) if at < regs[R_HISTORY] else np.int64(-1)
    if text == PREDICTION:
        return np.int64(prediction[at]) if at < regs[R_PREDICTION] else np.int64(-1)
    return np.int64(store[at]) if at < regs[R_STORE] else np.int64(-1)


@numba.njit
def bucket_of(c, depth):
    """Behind a lost place with nothing agreeing, how long it has been lost counts, from bucket 8 on."""
    said = depth - c[C_DEPTH]
    if said == 0 and c[C_LEN] == 0 and (c[C_KIND] == REPLACED or c[C_KIND] == INSERTED):
        lost = c[C_LOST]
        return 8 + (lost - 1 if lost < 4 else 3 if lost < 7 else 4 if lost < 13 else 5 if lost < 25 else 6)
    return bucket(c[C_LEN] + said)


@numba.njit
def edit_key(text, at, pure):
    """What a replacement is known by: the first token replaced; for insertions and deletions also the one before."""
    if not pure:
        return np.int64(text[at]) & np.int64(0x3FFFFFFF)
    before = text[at - 1] if at > 0 else -1
    return (pair(before, text[at]) & np.int64(0x3FFFFFFF)) | np.int64(0x40000000)


@numba.njit
def edit_slot(key):
    return pair(key, 5) & (EDITS - 1)


@numba.njit
def _doubled(candidates, i, mask, depth, text, at):
    """Whether an earlier candidate of the set expects the same place: its replacement stands for both."""
    for j in range(i):
        if (mask >> j) & 1:
            c = candidates[j]
            said = depth - c[C_DEPTH]
            if c[C_TEXT] == text and said >= c[C_REPS] and c[C_POS] + said - c[C_REPS] == at:
                return True
    return False


@numba.njit
def _spawn(history, prediction, store, regs, candidates, count, edit, number, c, at):
    """Add the candidate that applies a replacement seen before, if `c` has at `at` all that was replaced; the new
    count. The caller says where it begins."""
    text = history if c[C_TEXT] == HISTORY else prediction if c[C_TEXT] == PREDICTION else store
    size = regs[R_HISTORY] if c[C_TEXT] == HISTORY else regs[R_PREDICTION] if c[C_TEXT] == PREDICTION else regs[R_STORE]
    if at + edit[E_SRCS] >= size:
        return count
    for i in range(edit[E_SRCS]):
        if token_at(history, prediction, store, regs, edit[E_TEXT], np.int64(edit[E_SRC] + i)) != text[at + i]:
            return count
    new = candidates[count]
    new[C_TEXT], new[C_POS], new[C_KIND] = c[C_TEXT], at + edit[E_SRCS], EDITED
    new[C_REP], new[C_REPS], new[C_SLOT] = edit[E_NEW], edit[E_NEWS], c[C_SLOT]
    new[C_EDIT], new[C_LOST], new[C_AGE] = number, 0, 0
    return count + 1


@numba.njit
def spread(history, prediction, store, regs, candidates, count, edits, edit_odds, base, rates, mask, depth, g_i, g_p):
    """Group the candidates of the set `mask` by their token at `depth`.

    Returns (groups, candidates in all, set with the spawned ones). Group g: `g_i` int64 [GROUPS, 6] holds its token,
    its set, its most trusted member, and agreement, bucket and rank, which its odds are kept under (rank -1: a
    replacement, with odds of its own); `g_p` float32 [GROUPS, 2] its weight, and the probability that it says what
    comes and none before it does.
    """
    n = regs[R_HISTORY]
    # Replacements first, so that they are candidates like the others. Only of those there were before.
    for i in range(count):
        if not (mask >> i) & 1 or count >= CANDIDATES - 1:
            continue
        c = candidates[i]
        said = depth - c[C_DEPTH]
        if said < c[C_REPS]:
            continue
        at = np.int64(c[C_POS] + said - c[C_REPS])
        text = history if c[C_TEXT] == HISTORY else prediction if c[C_TEXT] == PREDICTION else store
        if token_at(history, prediction, store, regs, c[C_TEXT], at) < 0:
            continue
        for pure in range(2):
            key = edit_key(text, at, pure == 1)
            number = edit_slot(key)
            if edits[number, E_KEY] != key or (c[C_EDIT] == number and said == c[C_REPS]):
                continue
            if not _doubled(candidates, i, mask, depth, c[C_TEXT], at):
                before = count
                count = _spawn(history, prediction, store, regs, candidates, count, edits[number], number, c, at)
                if count > before:
                    candidates[before, C_DEPTH], candidates[before, C_LEN] = depth, c[C_LEN] + said
                    mask |= np.int64(1) << before
    groups = 0
    total = np.float32(0)
    for later in range(2):  # replacements are weighed against all the others
        others = total
        for i in range(count):
            if not (mask >> i) & 1:
                continue
            c = candidates[i]
            begins = c[C_EDIT] >= 0 and c[C_DEPTH] == depth
            if begins != (later == 1):
                continue
            text, at = place_of(c, depth, n)
            token = token_at(history, prediction, store, regs, text, at)
            if token < 0:
                mask &= ~(np.int64(1) << i)
                continue
            if begins:
                p = edit_rate(edit_odds[c[C_EDIT]])
                weight = max(others, np.float32(1)) * p / (np.float32(1) - p)
            else:
                p = rate(base[c[C_KIND], bucket_of(c, depth)])
                weight = p / max(np.float32(1) - p, np.float32(0.002))
                for _ in range(c[C_AGE]):
                    weight *= AGING
            g = 0
            while g < groups and g_i[g, 0] != token:
                g += 1
            if g == GROUPS:
                continue
            total += weight
            if g == groups:
                groups += 1
                g_i[g, 0], g_i[g, 1], g_i[g, 2], g_i[g, 3] = token, 0, i, 0
                g_p[g, 0], g_p[g, 1] = 0, 0
            g_i[g, 1] |= np.int64(1) << i
            g_p[g, 0] += weight
            g_i[g, 3] = g_i[g, 3] + 1
            if c[C_SLOT] >= 0:
                weight *= STAY
            if weight > g_p[g, 1]:
                g_i[g, 2], g_p[g, 1] = i, weight
    # Heaviest first.
    for a in range(1, groups):
        b = a
        while b > 0 and g_p[b, 0] > g_p[b - 1, 0]:
            for k in range(4):
                held = g_i[b, k]
                g_i[b, k] = g_i[b - 1, k]
                g_i[b - 1, k] = held
            weight = g_p[b, 0]
            g_p[b, 0] = g_p[b - 1, 0]
            g_p[b - 1, 0] = weight
            b -= 1
    left = np.float32(1)
    rank = 0
    for g in range(groups):
        c = candidates[g_i[g, 2]]
        share = g_p[g, 0] / total
        if c[C_EDIT] >= 0 and depth == c[C_DEPTH]:
            total -= g_p[g, 0]  # if it is not replaced, the others divide the rest as if it could not be
            p = edit_rate(edit_odds[c[C_EDIT]])
            g_i[g, 3], g_i[g, 4], g_i[g, 5] = 0, 0, -1
        else:
            agreement = 0 if share > np.float32(0.999) and g_i[g, 3] == 1 else 1 if share > np.float32(0.97) else 2
            if share < np.float32(0.75):
                agreement = 3
            g_i[g, 3], g_i[g, 4], g_i[g, 5] = agreement, bucket_of(c, depth), rank
            p = rate(rates[rank, c[C_KIND], agreement, g_i[g, 4]])
            if g_i[g, 4] < SHORT:
                p = min(p * mood(edit_odds), np.float32(0.99))
            rank = 1
        g_p[g, 1] = left * p
        left -= g_p[g, 1]
    return groups, count, mask


@numba.njit
def grow(
    history, prediction, store, regs, candidates, edits, edit_odds, base, rates, g_i, g_p, most, deepest, out_i, out_p,
    open_i, open_p,
):  # fmt: skip
    """The tree of at most `most` nodes, likeliest first: nodes in `out_i` int64 [5, nodes] (token, parent, text,
    origin, depth) and `out_p` float32 [nodes]. `open_i` int64 [room, 6] and `open_p` float32 [room] hold nodes that
    are known but not taken. Returns the number of nodes."""
    n = regs[R_HISTORY]
    count = regs[R_ROOTS]
    nodes = waiting = 0
    mask = (np.int64(1) << count) - 1
    parent, depth = np.int64(-1), np.int64(0)
    reached = np.float32(1)
    while True:
        if depth < deepest and mask:
            groups, count, _ = spread(
                history, prediction, store, regs, candidates, count, edits, edit_odds, base, rates, mask, depth,
                g_i, g_p,
            )  # fmt: skip
            for g in range(groups):
                p = reached * g_p[g, 1]
                if p >= FLOOR and waiting < len(open_p):
                    text, at = place_of(candidates[g_i[g, 2]], depth, n)
                    o = open_i[waiting]
                    o[0], o[1], o[2], o[3], o[4], o[5] = g_i[g, 0], parent, text, at, depth + 1, g_i[g, 1]
                    open_p[waiting] = p
                    waiting += 1
        if waiting == 0 or nodes == most:
            return nodes
        best = 0
        for i in range(1, waiting):
            if open_p[i] > open_p[best]:
                best = i
        for k in range(5):
            out_i[k, nodes] = open_i[best, k]
        out_p[nodes] = open_p[best]
        parent, depth, mask, reached = np.int64(nodes), open_i[best, 4], open_i[best, 5], open_p[best]
        nodes += 1
        waiting -= 1
        open_p[best] = open_p[waiting]
        for k in range(6):
            open_i[best, k] = open_i[waiting, k]
