"""Copying from the history, a predicted text and a shared store: what followed the likeliest places, as one tree."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from exactspec.drafters.base import Context, DraftBudget, State, Verified
from exactspec.drafters.copying import layout as at
from exactspec.drafters.copying.load import compiled
from exactspec.drafters.odds import fresh_odds
from exactspec.drafters.store import TextStore
from exactspec.drafters.suffix_index import Int32Array, SuffixIndex, check_int32
from exactspec.target.base import FloatArray, IntArray
from exactspec.tree import DraftTree

SOURCES = ("copy", "prediction", "store")
"""Names of the sources, in the order of `layout.HISTORY`, `PREDICTION`, `STORE`."""

MOST_NODES = 256
_ROOM = 768  # nodes known but not taken


@dataclass(slots=True)
class _Copying:
    """What the drafter knows of one request; the arrays are described in `copying.layout`."""

    history: SuffixIndex
    prediction: SuffixIndex
    store: SuffixIndex
    shared: TextStore | None
    regs: IntArray
    slots: Int32Array
    candidates: Int32Array
    edits: Int32Array
    edit_odds: FloatArray
    base: FloatArray
    rates: FloatArray
    scratch_i: IntArray
    scratch_p: FloatArray
    out_i: IntArray
    out_p: FloatArray

    def restart(self) -> None:
        """Nothing was copied yet; a predicted text is expected from its beginning."""
        self.regs[at.R_HISTORY] = len(self.history)
        self.regs[at.R_ROOTS] = self.regs[at.R_STEP] = 0
        self.slots[:] = 0
        self.slots[:, (at.P_TEXT, at.P_SRC)] = -1
        if len(self.prediction):
            self.slots[0, at.P_TEXT] = at.PREDICTION
        self.edits[:, at.E_KEY] = -1
        self.edit_odds[:] = 0
        self.base, self.rates = fresh_odds()

    def tail(self) -> tuple[Any, ...]:
        """The arguments that `propose` and `take_in` share."""
        return (
            self.regs,
            self.slots,
            self.candidates,
            self.edits,
            self.edit_odds,
            self.base,
            self.rates,
            self.scratch_i,
            self.scratch_p,
        )


class CopyDrafter:
    """Copies what followed the likeliest places, several of them in one tree.

    `min_match`: shortest match to copy from, in tokens. `store`: texts of other requests to copy from as well, to which
    a request adds its own when it ends. See docs/drafting.md for the rules. Constant work per token: no
    step looks at more than the end of the history. Raises ValueError if min_match < 1.
    """

    __slots__ = ("_min_match", "_store")

    takes_late = True

    def __init__(self, *, min_match: int = 2, store: TextStore | None = None) -> None:
        if min_match < 1:
            raise ValueError(f"min_match must be >= 1, got {min_match}")
        self._min_match = min_match
        self._store = store

    @property
    def name(self) -> str:
        return SOURCES[at.HISTORY]

    def begin(self, context: Context) -> State:
        regs = np.zeros(at.REGS, dtype=np.int64)
        prediction = SuffixIndex(context.prediction)
        store = SuffixIndex() if self._store is None else self._store.index
        regs[at.R_PREDICTION], regs[at.R_STORE] = len(prediction), len(store)
        regs[at.R_MIN_MATCH] = self._min_match
        base, rates = fresh_odds()
        state = _Copying(
            SuffixIndex(context.tokens),
            prediction,
            store,
            self._store,
            regs,
            np.empty((at.SLOTS, at.SLOT_COLUMNS), dtype=np.int32),
            np.zeros((at.CANDIDATES, at.CANDIDATE_COLUMNS), dtype=np.int32),
            np.zeros((at.EDITS, at.EDIT_COLUMNS), dtype=np.int32),
            np.zeros((at.EDITS + 1, 2), dtype=np.float32),
            base,
            rates,
            np.empty((_ROOM, 6), dtype=np.int64),
            np.empty((_ROOM, 2), dtype=np.float32),
            np.empty((5, MOST_NODES), dtype=np.int64),
            np.empty(MOST_NODES, dtype=np.float32),
        )
        state.restart()
        return state

    def propose(self, state: State, budget: DraftBudget) -> DraftTree:
        s: _Copying = state
        if s.shared is None:
            return self._propose(s, budget)
        with s.shared.lock:
            s.regs[at.R_STORE] = len(s.store)
            return self._propose(s, budget)

    def _propose(self, s: _Copying, budget: DraftBudget) -> DraftTree:
        n = compiled().propose(
            *s.history.arrays,
            *s.prediction.arrays,
            *s.store.arrays,
            *s.tail(),
            s.out_i,
            s.out_p,
            min(budget.max_nodes, MOST_NODES),
            budget.max_depth,
        )
        if not n:
            return DraftTree.empty()
        tokens, parents, source, origin, _ = s.out_i[:, :n].copy()
        origin[source == at.STORE] = -1  # an index into other requests' texts means nothing to a caller
        used = sorted(set(source.tolist()))
        if used[-1] >= len(used):
            source = np.searchsorted(used, source)
        return DraftTree(tokens, parents, source, s.out_p[:n].copy(), origin, tuple(SOURCES[i] for i in used))

    def commit(self, state: State, verified: Verified) -> None:
        s: _Copying = state
        tokens = np.ascontiguousarray(verified.tokens, dtype=np.int64)
        check_int32(tokens)
        s.history.reserve(len(tokens))
        # The store may grow meanwhile: of its arrays, what R_STORE counts stays as it is.
        compiled().take_in(*s.history.arrays, s.prediction.arrays[0], s.store.arrays[0], *s.tail(), tokens)
        s.history.grown(len(s.history) + len(tokens))

    def truncate(self, state: State, n: int) -> None:
        """As if begun over the first n tokens: what was learned from the others goes too."""
        s: _Copying = state
        s.history.truncate(n)
        s.restart()

    def fork(self, state: State) -> State:
        s: _Copying = state
        # The prediction and the store never change, so both may read the same ones.
        arrays = (array.copy() for array in (*s.tail(), s.out_i, s.out_p))
        return _Copying(s.history.fork(), s.prediction, s.store, s.shared, *arrays)

    def close(self, state: State) -> None:
        s: _Copying = state
        if s.shared is not None and len(s.history):
            copied = s.slots[s.slots[:, at.P_TEXT] == at.STORE, at.P_POS]
            s.shared.touch(s.store, copied.tolist())
            s.shared.add(s.history.tokens)
        s.shared = None
        s.history, s.prediction, s.store = SuffixIndex(), SuffixIndex(), SuffixIndex()
        s.regs[at.R_PREDICTION] = s.regs[at.R_STORE] = 0
        s.restart()
