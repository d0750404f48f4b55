"""What a step teaches: the odds of all that was on offer, the places to go on from, replacements to apply again.

Everything offered is judged by what the target said, verified or not, so odds recover without spending a row.
Functions here are typed by numba; see layout for the arrays.
"""

from __future__ import annotations

import numba
import numpy as np

from exactspec.drafters.copying.grow import SHORT, bucket_of, edit_key, edit_slot, place_of, rate, spread, token_at
from exactspec.drafters.copying.index import extend
from exactspec.drafters.copying.layout import (
    ALIGNED,
    C_DEPTH,
    C_EDIT,
    C_KIND,
    C_LEN,
    C_POS,
    C_REP,
    C_REPS,
    C_SLOT,
    C_TEXT,
    E_KEY,
    E_NEW,
    E_NEWS,
    E_SRC,
    E_SRCS,
    E_TEXT,
    EDIT_MOST,
    EDITS,
    HISTORY,
    INSERTED,
    P_KIND,
    P_LEN,
    P_LOST,
    P_NEW,
    P_NEW_END,
    P_POS,
    P_REP,
    P_REPS,
    P_SINCE,
    P_SRC,
    P_SRC_END,
    P_STAMP,
    P_TEXT,
    PREDICTION,
    R_HISTORY,
    R_ROOTS,
    R_STEP,
    REPLACED,
    SLOTS,
)

KEEP = np.float32(0.98)
"""What is left of a cell's earlier observations each time it is observed again: recent success counts most."""

EDIT_KEEP = np.float32(0.9)
"""The same for a replacement."""

PROVED = 2
"""Tokens behind an edit that must agree before the edit is believed."""

LONG = 12
"""A match of this many tokens is worth remembering even if it went wrong at once."""


@numba.njit
def _observe(cell, hit):
    cell[0] *= KEEP
    cell[1] = cell[1] * KEEP + np.float32(1)
    if hit:
        cell[0] += np.float32(1)


@numba.njit
def judge(
    history, prediction, store, regs, candidates, edits, edit_odds, base, rates, g_i, g_p, tokens
):  # fmt: skip
    """Walk down what came and note who was right. Returns (best survivor, tokens it was right about) or (-1, 0)."""
    n = regs[R_HISTORY]
    count = regs[R_ROOTS]
    mask = (np.int64(1) << count) - 1
    lead, agreed = np.int64(-1), np.int64(0)
    for depth in range(len(tokens)):
        if not mask:
            break
        token = tokens[depth]
        groups, count, mask = spread(
            history, prediction, store, regs, candidates, count, edits, edit_odds, base, rates, mask, depth, g_i, g_p
        )
        for i in range(count):
            if not (mask >> i) & 1:
                continue
            c = candidates[i]
            text, at = place_of(c, depth, n)
            right = token_at(history, prediction, store, regs, text, at) == token
            if c[C_EDIT] >= 0 and depth == c[C_DEPTH]:
                odds = edit_odds[c[C_EDIT]]
                odds[0] = odds[0] * EDIT_KEEP + (np.float32(1) if right else np.float32(0))
                odds[1] = odds[1] * EDIT_KEEP + np.float32(1)
            else:
                _observe(base[c[C_KIND], bucket_of(c, depth)], right)
        mask = np.int64(0)
        for g in range(groups):
            right = g_i[g, 0] == token
            if g_i[g, 5] >= 0:
                cell = rates[g_i[g, 5], candidates[g_i[g, 2], C_KIND], g_i[g, 3], g_i[g, 4]]
                if g_i[g, 4] < SHORT:
                    summed = edit_odds[EDITS]
                    summed[1] = summed[1] * KEEP + rate(cell)
                    summed[0] = summed[0] * KEEP + (np.float32(1) if right else np.float32(0))
                _observe(cell, right)
            if right:
                mask, lead, agreed = g_i[g, 1], g_i[g, 2], np.int64(depth + 1)
                break
    return lead, agreed


@numba.njit
def _free(slots):
    """The slot to use next: a free one, or the one that has agreed longest ago."""
    best = 0
    for number in range(SLOTS):
        if slots[number, P_TEXT] < 0:
            return number
        if slots[number, P_STAMP] < slots[best, P_STAMP]:
            best = number
    return best


@numba.njit
def adopt(slots, regs, c, agreed):
    """Make the candidate that was right about `agreed` tokens a place; the slot's number."""
    number = np.int64(c[C_SLOT])
    if number < 0:
        number = np.int64(_free(slots))
        slots[number, P_SRC] = -1
    slot = slots[number]
    said = agreed - c[C_DEPTH]
    if (c[C_KIND] == ALIGNED or c[C_KIND] == REPLACED or c[C_KIND] == INSERTED) and slot[P_LOST]:
        # What lies between the lost place and this one was replaced by what came instead.
        back = min(c[C_LEN], c[C_POS] - slot[P_POS], regs[R_HISTORY] - slot[P_SINCE])
        if back >= 0:
            slot[P_SRC], slot[P_SRC_END] = slot[P_POS], c[C_POS] - back
            slot[P_NEW], slot[P_NEW_END] = slot[P_SINCE], regs[R_HISTORY] - back
    slot[P_TEXT], slot[P_KIND] = c[C_TEXT], c[C_KIND]
    done = min(said, c[C_REPS])
    slot[P_REP], slot[P_REPS] = c[C_REP] + done, c[C_REPS] - done
    slot[P_POS], slot[P_LEN] = c[C_POS] + said - done, c[C_LEN] + said
    slot[P_LOST], slot[P_STAMP] = 0, regs[R_STEP]
    return number


@numba.njit
def _note_edit(history, prediction, store, slot, edits, edit_odds):
    """Remember the edit a place has come through, if it is short enough to be one."""
    source, sources = slot[P_SRC], slot[P_SRC_END] - slot[P_SRC]
    new, news = slot[P_NEW], slot[P_NEW_END] - slot[P_NEW]
    slot[P_SRC] = -1
    if sources < 0 or news < 0 or sources + news == 0 or sources > EDIT_MOST or news > EDIT_MOST:
        return
    text = history if slot[P_TEXT] == HISTORY else prediction if slot[P_TEXT] == PREDICTION else store
    key = edit_key(text, source, sources == 0 or news == 0)
    number = edit_slot(key)
    edit = edits[number]
    same = edit[E_KEY] == key and edit[E_SRCS] == sources and edit[E_NEWS] == news
    for i in range(news):
        same = same and history[edit[E_NEW] + i] == history[new + i]
    if not same:
        edit_odds[number, 0] = edit_odds[number, 1] = 0
    edit[E_KEY], edit[E_TEXT], edit[E_SRC], edit[E_SRCS] = key, slot[P_TEXT], source, sources
    edit[E_NEW], edit[E_NEWS] = new, news


@numba.njit
def advance(history, prediction, store, regs, slot, edits, edit_odds, tokens, at):
    """Move a place along the tokens from `at` on, or note how long ago they left it. The history holds them already;
    R_HISTORY does not count them yet."""
    n = regs[R_HISTORY]
    end = n + len(tokens)
    for i in range(at, len(tokens)):
        if slot[P_LOST]:
            slot[P_LOST] += len(tokens) - i
            return
        if slot[P_REPS]:
            expected = np.int64(history[slot[P_REP]])
        elif slot[P_TEXT] == HISTORY:
            expected = np.int64(history[slot[P_POS]]) if slot[P_POS] < end else np.int64(-1)
        else:
            expected = token_at(history, prediction, store, regs, slot[P_TEXT], np.int64(slot[P_POS]))
        if expected != tokens[i]:
            slot[P_LOST], slot[P_SINCE], slot[P_LEN], slot[P_REPS] = 1, n + i, 0, 0
            if slot[P_SRC] >= 0:
                slot[P_SRC] = -1
            continue
        if slot[P_REPS]:
            slot[P_REP] += 1
            slot[P_REPS] -= 1
        else:
            slot[P_POS] += 1
        slot[P_LEN] += 1
        slot[P_STAMP] = regs[R_STEP]
        if slot[P_SRC] >= 0 and slot[P_POS] - slot[P_SRC_END] >= PROVED:
            _note_edit(history, prediction, store, slot, edits, edit_odds)


@numba.njit
def take_in(
    history, links, heads, prediction, store, regs, slots, candidates, edits, edit_odds, base, rates, g_i, g_p, tokens
):  # fmt: skip
    """A step's tokens: judge what was on offer, move the places, lengthen the history. Its arrays have room."""
    regs[R_STEP] += 1
    n = regs[R_HISTORY]
    lead, agreed = judge(
        history, prediction, store, regs, candidates, edits, edit_odds, base, rates, g_i, g_p, tokens
    )  # fmt: skip
    for i in range(len(tokens)):
        history[n + i] = tokens[i]
    if lead < 0:
        for i in range(regs[R_ROOTS]):  # a long match that ends here: the place behind it is worth looking for
            if candidates[i, C_SLOT] < 0 and candidates[i, C_LEN] >= LONG:
                lead = np.int64(i)
                break
    chosen = np.int64(-1)
    if lead >= 0:
        chosen = adopt(slots, regs, candidates[lead], agreed)
        slot = slots[chosen]
        if slot[P_SRC] >= 0 and slot[P_POS] - slot[P_SRC_END] >= PROVED:
            _note_edit(history, prediction, store, slot, edits, edit_odds)
    for number in range(SLOTS):
        if slots[number, P_TEXT] >= 0:
            advance(
                history, prediction, store, regs, slots[number], edits, edit_odds, tokens,
                agreed if number == chosen else 0,
            )  # fmt: skip
    for number in range(SLOTS):  # one place is enough where two have met
        for other in range(number):
            a, b = slots[number], slots[other]
            same = a[P_TEXT] == b[P_TEXT] and a[P_POS] == b[P_POS] and a[P_LOST] == b[P_LOST]
            if a[P_TEXT] >= 0 and same and a[P_REPS] == b[P_REPS]:
                a[P_TEXT] = -1
    extend(history, links, heads, n, n + len(tokens))
    regs[R_HISTORY] = n + len(tokens)
    regs[R_ROOTS] = 0
