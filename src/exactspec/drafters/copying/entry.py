"""The compiled entry points: what Python calls, a few microseconds each. See layout for the arrays."""

from __future__ import annotations

import numpy as np

from exactspec.drafters.copying import candidates as _candidates
from exactspec.drafters.copying import grow as _grow
from exactspec.drafters.copying import index as _index
from exactspec.drafters.copying import learn as _learn


def extend(tokens, links, heads, n, end):
    _index.extend(tokens, links, heads, n, end)


def cut(tokens, links, heads, end, n):
    _index.cut(tokens, links, heads, end, n)


def find(tokens, links, heads, other, end, found):
    return _index.find(tokens, links, heads, other, end, found)


def propose(
    h_tokens, h_links, h_heads, p_tokens, p_links, p_heads, s_tokens, s_links, s_heads,
    regs, slots, candidates, edits, edit_odds, base, rates, scratch_i, scratch_p, out_i, out_p, most, deepest,
):  # fmt: skip
    """Nodes of the tree in `out_i`, `out_p`: how many. `scratch_i` int64 [rows, 6], `scratch_p` float32 [rows, 2]."""
    _candidates.gather(
        (h_tokens, h_links, h_heads), (p_tokens, p_links, p_heads), (s_tokens, s_links, s_heads),
        slots, candidates, scratch_i[:64], regs,
    )  # fmt: skip
    if regs[3] == 0:
        return np.int64(0)
    return _grow.grow(
        h_tokens, p_tokens, s_tokens, regs, candidates, edits, edit_odds, base, rates, scratch_i[:4], scratch_p[:4],
        most, deepest, out_i, out_p, scratch_i[4:], scratch_p[4:, 0],
    )  # fmt: skip


def take_in(
    h_tokens, h_links, h_heads, p_tokens, s_tokens,
    regs, slots, candidates, edits, edit_odds, base, rates, scratch_i, scratch_p, tokens,
):  # fmt: skip
    _learn.take_in(
        h_tokens, h_links, h_heads, p_tokens, s_tokens, regs, slots, candidates, edits, edit_odds, base, rates,
        scratch_i[:4], scratch_p[:4], tokens,
    )  # fmt: skip
