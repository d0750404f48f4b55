"""What may follow a context: the base's own children and the table's successors, with a probability each.

The base's probabilities are corrected by what the table says of them, the table's by how they have come true; both by
ratios learned from a prior and this request's steps. What the base leaves over is shared among the successors that it
does not offer, so that the probabilities of a node's children add up to one at most.
Functions here are typed by numba; see layout for the arrays.
"""

from __future__ import annotations

import numba
import numpy as np

from exactspec.drafters.recycling.layout import (
    ABSENT,
    B_CHILD,
    B_SOURCE,
    B_TOKEN,
    CHANCES,
    HOPES,
    LISTED,
    NODES,
    RANKS,
    SILENT,
    TRUSTS,
    VIEWS,
    WAYS,
)
from exactspec.drafters.recycling.table import look_up

MOST = 64
"""Children of one node that are looked at."""

PRIOR = np.float32(2)
"""Expected hits of successors that the prior ratio counts as."""

SURE_PRIOR = np.float32(6)
"""The same for misses of the base: its makers know their odds, so what the table adds is learned slowly."""

S_TOKEN, S_BASE, S_CELL, S_RANK, S_MOOD = range(5)
S_COLUMNS = 5
"""Columns of `s_i` int64 [MOST, 5]: token, node of the base or -1, cell of its ratio, place among the successors or -1,
cell of the ratio of all its like. `s_p` float32 [MOST, 4]: probability, the one before its ratios, what the table gives
it by itself (0 where it says nothing), the one between the ratios."""


@numba.njit
def chance(p):
    """Bucket of a probability of a successor."""
    if p < np.float32(0.08):
        return 0 if p < np.float32(0.01) else 1 if p < np.float32(0.03) else 2
    if p < np.float32(0.5):
        return 3 if p < np.float32(0.15) else 4 if p < np.float32(0.3) else 5
    return 6 if p < np.float32(0.7) else 7 if p < np.float32(0.9) else 8


@numba.njit
def trust(p):
    """Bucket of a probability of the base."""
    if p < np.float32(0.7):
        return 0 if p < np.float32(0.1) else 1 if p < np.float32(0.25) else 2 if p < np.float32(0.5) else 3
    return 4 if p < np.float32(0.85) else 5 if p < np.float32(0.95) else 6 if p < np.float32(0.98) else 7


@numba.njit
def view(p):
    """What the table says of a token that it lists."""
    if p < np.float32(0.2):
        return LISTED if p < np.float32(0.05) else LISTED + 1
    return LISTED + 2 if p < np.float32(0.5) else LISTED + 3 if p < np.float32(0.8) else LISTED + 4


@numba.njit
def ratio(cell, prior):
    """Events seen to events expected; `cell` (seen, expected, prior ratio), which counts as `prior` events."""
    return (cell[0] + prior * cell[2]) / (cell[1] + prior)


@numba.njit
def spread(keys, ids, odds, base_i, base_n, base_p, trusts, hopes, node, before, token, sound, f_ids, f_odds, s_i, s_p):
    """The children of a context in `s_i`, `s_p`: how many. `node`: the base's node there (-1: the root, -2: none).
    `sound`: sources of the base that know their odds. `trusts` float32 [MAKERS * TRUSTS * VIEWS, 3], `hopes` float32
    [HOPES + ORDERS * BESIDE, 3]: cells of the ratios.
    `f_ids`, `f_odds` [WAYS]: room."""
    found, order = look_up(keys, ids, odds, before, token, f_ids, f_odds)
    count = 0
    offered = matched = np.float32(0)
    if node >= -1:
        reach = base_p[node] if node >= 0 else np.float32(1)
        child = base_i[B_CHILD, node] if node >= 0 else base_n[NODES]
        while child >= 0 and count < MOST - WAYS:
            p = min(base_p[child] / max(reach, np.float32(1e-6)), np.float32(0.9995))
            said, rank = SILENT if found < WAYS else ABSENT, -1  # a short list leaves nothing out
            listed = np.float32(0)
            for j in range(found):
                if f_ids[j] == base_i[B_TOKEN, child]:
                    said, rank = view(f_odds[j]), j
                    matched += f_odds[j]
                    own = ((order - 1) * 3 * RANKS + min(j, RANKS - 1)) * CHANCES + chance(f_odds[j])
                    listed = f_odds[j] * ratio(hopes[own], PRIOR)
                    break
            maker = 0 if base_i[B_SOURCE, child] < sound else 1
            cell = (maker * TRUSTS + trust(p)) * VIEWS + said
            missed = np.float32(1) - p
            if said != SILENT or maker == 1:
                missed *= ratio(trusts[cell], SURE_PRIOR)
            s_i[count, 0], s_i[count, 1], s_i[count, 2], s_i[count, 3] = base_i[B_TOKEN, child], child, cell, rank
            s_p[count, 0], s_p[count, 1], s_p[count, 2] = max(np.float32(1) - missed, np.float32(0.001)), p, listed
            offered += s_p[count, 0]
            count += 1
            child = base_n[child]
    if offered > np.float32(0.999):
        for i in range(count):
            s_p[i, 0] *= np.float32(0.999) / offered
        offered = np.float32(0.999)
    left = np.float32(1) - offered
    bases = count
    beside = 0 if bases == 0 else 1 if offered < np.float32(0.5) else 2
    mood = HOPES + (order - 1) * 3 + beside
    general = min(ratio(hopes[mood], PRIOR), np.float32(1.3)) if found else np.float32(1)
    scale = left / max(np.float32(1) - matched, np.float32(0.02))
    for j in range(found):
        taken = False
        for i in range(bases):
            if s_i[i, 3] == j:
                taken = True
                break
        if taken or f_odds[j] <= 0:
            continue
        p = min(scale * f_odds[j], left)
        cell = (((order - 1) * 3 + beside) * RANKS + min(j, RANKS - 1)) * CHANCES + chance(f_odds[j])
        s_i[count, 0], s_i[count, 1], s_i[count, 2], s_i[count, 3], s_i[count, 4] = f_ids[j], -1, cell, j, mood
        s_p[count, 1], s_p[count, 2], s_p[count, 3] = p, f_odds[j], p * ratio(hopes[cell], PRIOR)
        s_p[count, 0] = min(s_p[count, 3] * general, left)
        left -= s_p[count, 0]
        count += 1
    return count
