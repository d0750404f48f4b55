"""The tree: the base's nodes and the table's successors below the root and below one another, likeliest first.

Functions here are typed by numba; see layout for the arrays.
"""

from __future__ import annotations

import numba
import numpy as np

from exactspec.drafters.recycling.layout import (
    B_CHILD,
    B_ORIGIN,
    B_PARENT,
    B_SOURCE,
    NODES,
    O_BASE,
    O_DEPTH,
    O_ORIGIN,
    O_PARENT,
    O_SOURCE,
    O_TOKEN,
    OPEN_COLUMNS,
    R_BASE,
    R_BEFORE,
    R_LAST,
    R_SOUND,
    TREE_COLUMNS,
)
from exactspec.drafters.recycling.spread import S_BASE, S_TOKEN, spread

FLOOR = np.float32(0.01)
"""A node less likely than this is not proposed."""


@numba.njit
def lay(base_i, base_n, count):
    """Link each node of the base to its first child and its next sibling."""
    base_n[NODES] = -1
    for i in range(count):
        base_i[B_CHILD, i] = -1
    for i in range(count - 1, -1, -1):
        parent = base_i[B_PARENT, i]
        if parent < 0:
            base_n[i] = base_n[NODES]
            base_n[NODES] = i
        else:
            base_n[i] = base_i[B_CHILD, parent]
            base_i[B_CHILD, parent] = i


@numba.njit
def grow(
    keys, ids, odds, base_i, base_n, base_p, trusts, hopes, f_ids, f_odds, s_i, s_p, open_i, open_p, regs,
    most, deepest, own, out_i, out_p,
):  # fmt: skip
    """At most `most` nodes in `out_i` int64 [TREE_COLUMNS, NODES] and `out_p` float32 [NODES]: how many. `own`: the
    source of the table's nodes. `open_i` int64 [ROOM, OPEN_COLUMNS], `open_p` float32 [ROOM]: nodes known, not taken.
    """
    nodes = waiting = 0
    parent, depth, base = np.int64(-1), np.int64(0), np.int64(-1)
    before, token = regs[R_BEFORE], regs[R_LAST]
    if regs[R_BASE] == 0:
        base = np.int64(-2)
    reached = np.float32(1)
    while True:
        if depth < deepest:
            count = spread(
                keys,
                ids,
                odds,
                base_i,
                base_n,
                base_p,
                trusts,
                hopes,
                base,
                before,
                token,
                regs[R_SOUND],
                f_ids,
                f_odds,
                s_i,
                s_p,
            )
            for i in range(count):
                p = reached * s_p[i, 0]
                if p < FLOOR or waiting == len(open_p):
                    continue
                o = open_i[waiting]
                child = s_i[i, S_BASE]
                o[O_TOKEN], o[O_PARENT], o[O_DEPTH] = s_i[i, S_TOKEN], parent, depth + 1
                if child >= 0:
                    o[O_BASE] = child
                else:
                    o[O_BASE] = -2
                if child >= 0 and s_p[i, 1] >= s_p[i, 2]:
                    o[O_SOURCE], o[O_ORIGIN] = base_i[B_SOURCE, child], base_i[B_ORIGIN, child]
                else:
                    o[O_SOURCE], o[O_ORIGIN] = own, -1
                open_p[waiting] = p
                waiting += 1
        if waiting == 0 or nodes == most:
            return nodes
        best = 0
        for i in range(1, waiting):
            if open_p[i] > open_p[best]:
                best = i
        o = open_i[best]
        for k in range(TREE_COLUMNS):
            out_i[k, nodes] = o[k]
        out_p[nodes] = open_p[best]
        before = out_i[O_TOKEN, o[O_PARENT]] if o[O_PARENT] >= 0 else regs[R_LAST]
        parent, depth, base, token, reached = np.int64(nodes), o[O_DEPTH], o[O_BASE], o[O_TOKEN], open_p[best]
        nodes += 1
        waiting -= 1
        open_p[best] = open_p[waiting]
        for k in range(OPEN_COLUMNS):
            open_i[best, k] = open_i[waiting, k]
