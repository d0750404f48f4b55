"""What a step teaches: how far probabilities came true, and what the target's rows say follows what.

Functions here are typed by numba; see layout for the arrays.
"""

from __future__ import annotations

import numba
import numpy as np

from exactspec.drafters.recycling.layout import R_BASE, R_BEFORE, R_LAST, R_LENGTH, R_SOUND
from exactspec.drafters.recycling.spread import S_BASE, S_CELL, S_MOOD, S_TOKEN, spread
from exactspec.drafters.recycling.table import note

KEEP = np.float32(0.985)
"""What is left of a cell's earlier observations each time it is observed again."""

LIKELY = np.float32(0.1)
"""Successors that are likelier than this tell how well the table does in this text; the others hardly matter."""


@numba.njit
def _observe(cell, seen, expected):
    cell[0] = cell[0] * KEEP + seen
    cell[1] = cell[1] * KEEP + expected


@numba.njit
def judge(
    keys, ids, odds, base_i, base_n, base_p, trusts, hopes, f_ids, f_odds, s_i, s_p, regs, tokens
):  # fmt: skip
    """Walk down what came: at each token, what the base and the table gave for it, verified or not."""
    base = np.int64(-2) if regs[R_BASE] == 0 else np.int64(-1)
    before, last = regs[R_BEFORE], regs[R_LAST]
    for t in range(len(tokens)):
        token = tokens[t]
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
            last,
            regs[R_SOUND],
            f_ids,
            f_odds,
            s_i,
            s_p,
        )
        base = np.int64(-2)
        for i in range(count):
            right = s_i[i, S_TOKEN] == token
            p = s_p[i, 1]
            if s_i[i, S_BASE] >= 0:
                missed = np.float32(0) if right else np.float32(1)
                _observe(trusts[s_i[i, S_CELL]], missed, np.float32(1) - p)
                if right:
                    base = s_i[i, S_BASE]
            else:
                hit = np.float32(1) if right else np.float32(0)
                _observe(hopes[s_i[i, S_CELL]], hit, p)
                if s_p[i, 3] > LIKELY:
                    _observe(hopes[s_i[i, S_MOOD]], hit, s_p[i, 3])
        before, last = last, token


@numba.njit
def take_in(
    keys, ids, odds, stamps, base_i, base_n, base_p, trusts, hopes, f_ids, f_odds, s_i, s_p, regs,
    row_tokens, row_parents, topk_ids, topk_logits, tokens,
):  # fmt: skip
    """A step: `row_tokens`, `row_parents` int64 [nodes] of what was verified, `topk_ids`, `topk_logits` [rows, k] of
    all its rows (row 0 the root, row i + 1 node i; none where the target did not run), `tokens` int64 what it appended.
    """
    rows = len(topk_ids)
    if rows:
        judge(keys, ids, odds, base_i, base_n, base_p, trusts, hopes, f_ids[0], f_odds[0], s_i, s_p, regs, tokens)
    for row in range(rows):
        node = row - 1
        token, before = regs[R_LAST], regs[R_BEFORE]
        if node >= 0:
            token, before = row_tokens[node], regs[R_LAST]
            if row_parents[node] >= 0:
                before = row_tokens[row_parents[node]]
        note(keys, ids, odds, stamps, before, token, topk_ids[row], topk_logits[row], regs[R_LENGTH], f_ids, f_odds)
    for t in range(len(tokens)):
        regs[R_BEFORE], regs[R_LAST] = regs[R_LAST], tokens[t]
    regs[R_LENGTH] += len(tokens)
    regs[R_BASE] = 0


@numba.njit
def drop(keys, stamps, length):
    """Forget what was written when the history held more than `length` tokens."""
    for i in range(len(keys)):
        if stamps[i] > length:
            keys[i] = 0
            stamps[i] = 0
