"""Token recycling: what the target found likely after a token is proposed where the token comes again.

After Token Recycling (arXiv 2408.08696): every verified row, on the accepted path or not, leaves the target's best
successors in a table; a tree of them is grown below the root, or below and beside the nodes of another drafter's tree.
No training, and a table of fixed size (under 4 MB a request, whose pages are taken as they are written).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from exactspec.drafters.base import Context, DraftBudget, State, Verified
from exactspec.drafters.recycling import layout as at
from exactspec.drafters.recycling.load import compiled
from exactspec.drafters.recycling.prior import fresh_ratios
from exactspec.drafters.recycling.spread import MOST, S_COLUMNS
from exactspec.target.base import FloatArray, IntArray
from exactspec.target.mapped_memory import zeros
from exactspec.tree import DraftTree

SOURCE = "recycle"

_I32, _I64, _F32 = np.int32, np.int64, np.float32


@dataclass(slots=True)
class _Recycling:
    """What the drafter knows of one request. `arrays`: what all compiled functions begin with, as `recycling.layout`
    describes them: table (4), base (3), ratios (2), room (6), regs."""

    arrays: tuple[Any, ...]
    history: list[int]
    out_i: IntArray
    out_p: FloatArray

    def place(self) -> None:
        """Set the root's context from the history."""
        regs, n = self.arrays[-1], len(self.history)
        regs[at.R_LENGTH], regs[at.R_BASE] = n, 0
        regs[at.R_LAST] = self.history[-1] if n else 0
        regs[at.R_BEFORE] = self.history[-2] if n > 1 else -1


class RecycleDrafter:
    """Proposes the successors that the target's own rows showed for the last one and two tokens.

    `extend` grows a given tree instead of an empty one: it corrects the tree's scores by what the table says of its
    nodes, and adds successors beside and below them. Constant work per token.
    """

    __slots__ = ()

    wants_topk = takes_late = True

    @property
    def name(self) -> str:
        return SOURCE

    def begin(self, context: Context) -> State:
        trusts, hopes = fresh_ratios()
        arrays = (
            np.zeros(at.ENTRIES, dtype=_I64),
            zeros(4 * at.ENTRIES * at.WAYS).view(_I32).reshape(at.ENTRIES, at.WAYS),
            zeros(4 * at.ENTRIES * at.WAYS).view(_F32).reshape(at.ENTRIES, at.WAYS),
            np.zeros(at.ENTRIES, dtype=_I32),
            np.zeros((5, at.NODES), dtype=_I64),
            np.zeros(at.NODES + 1, dtype=_I64),
            np.zeros(at.NODES, dtype=_F32),
            trusts,
            hopes,
            np.zeros((2, at.WAYS), dtype=_I32),
            np.zeros((2, at.WAYS), dtype=_F32),
            np.zeros((MOST, S_COLUMNS), dtype=_I64),
            np.zeros((MOST, 4), dtype=_F32),
            np.zeros((at.ROOM, at.OPEN_COLUMNS), dtype=_I64),
            np.zeros(at.ROOM, dtype=_F32),
            np.zeros(at.REGS, dtype=_I64),
        )
        out_i, out_p = np.zeros((at.TREE_COLUMNS, at.NODES), dtype=_I64), np.zeros(at.NODES, dtype=_F32)
        state = _Recycling(arrays, context.tokens.tolist(), out_i, out_p)
        state.place()
        return state

    def propose(self, state: State, budget: DraftBudget) -> DraftTree:
        return self.extend(state, DraftTree.empty(), budget)

    def extend(self, state: State, base: DraftTree, budget: DraftBudget, *, sound: int = 0) -> DraftTree:
        """The likeliest nodes of `base` and of the table, as one tree. `base`: well-formed, as `DraftTree` says.
        `sound`: its first sources whose scores are held against what comes by their own drafter; how far those of the
        others can be believed is learned apart."""
        s: _Recycling = state
        n = min(len(base), at.NODES)
        if n:
            base_i, base_p = s.arrays[4], s.arrays[6]
            base_i[at.B_TOKEN, :n], base_i[at.B_PARENT, :n] = base.tokens[:n], base.parents[:n]
            base_i[at.B_SOURCE, :n], base_i[at.B_ORIGIN, :n] = base.source[:n], base.origin[:n]
            base_p[:n] = base.score[:n]
        regs = s.arrays[-1]
        regs[at.R_BASE], regs[at.R_SOUND] = n, sound
        own = len(base.sources)
        most, deepest = min(budget.max_nodes, at.NODES), budget.max_depth
        n = compiled().propose(*s.arrays, most, deepest, own, s.out_i, s.out_p)
        if not n:
            return DraftTree.empty()
        tokens, parents, source, origin = s.out_i[:, :n].copy()
        return DraftTree(tokens, parents, source, s.out_p[:n].copy(), origin, (*base.sources, SOURCE))

    def commit(self, state: State, verified: Verified) -> None:
        s: _Recycling = state
        tree, rows = verified.tree, verified.rows
        tokens = np.ascontiguousarray(verified.tokens, dtype=_I64)
        compiled().take_in(
            *s.arrays,
            np.ascontiguousarray(tree.tokens, dtype=_I64),
            np.ascontiguousarray(tree.parents, dtype=_I64),
            rows.topk_ids,
            rows.topk_logits,
            tokens,
        )
        s.history += tokens.tolist()

    def truncate(self, state: State, n: int) -> None:
        """What rows behind the first n tokens said is forgotten, and so is how far probabilities came true."""
        s: _Recycling = state
        del s.history[n:]
        compiled().drop(s.arrays[0], s.arrays[3], n)
        for kept, fresh in zip(s.arrays[7:9], fresh_ratios(), strict=True):
            kept[:] = fresh
        s.place()

    def fork(self, state: State) -> State:
        s: _Recycling = state
        arrays = tuple(array.copy() for array in s.arrays)
        return _Recycling(arrays, list(s.history), s.out_i.copy(), s.out_p.copy())

    def close(self, state: State) -> None:
        s: _Recycling = state
        s.arrays, s.history = (), []
