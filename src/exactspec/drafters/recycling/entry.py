"""The compiled entry points: what Python calls, a few microseconds each. See layout for the arrays."""

from __future__ import annotations

from exactspec.drafters.recycling import grow as _grow
from exactspec.drafters.recycling import learn as _learn


def propose(
    keys, ids, odds, stamps, base_i, base_n, base_p, trusts, hopes, f_ids, f_odds, s_i, s_p, open_i, open_p, regs,
    most, deepest, own, out_i, out_p,
):  # fmt: skip
    _grow.lay(base_i, base_n, regs[3])
    return _grow.grow(
        keys, ids, odds, base_i, base_n, base_p, trusts, hopes, f_ids[0], f_odds[0], s_i, s_p, open_i, open_p, regs,
        most, deepest, own, out_i, out_p,
    )  # fmt: skip


def take_in(
    keys, ids, odds, stamps, base_i, base_n, base_p, trusts, hopes, f_ids, f_odds, s_i, s_p, open_i, open_p, regs,
    row_tokens, row_parents, topk_ids, topk_logits, tokens,
):  # fmt: skip
    _learn.take_in(
        keys, ids, odds, stamps, base_i, base_n, base_p, trusts, hopes, f_ids, f_odds, s_i, s_p, regs,
        row_tokens, row_parents, topk_ids, topk_logits, tokens,
    )  # fmt: skip


def drop(keys, stamps, length):
    _learn.drop(keys, stamps, length)
