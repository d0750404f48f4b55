"""One tree from several drafters: their trees merged, corrected and grown by the table of recycled successors."""

from __future__ import annotations

from dataclasses import dataclass

from exactspec.budget import TABLE, Cost
from exactspec.drafters.base import Context, DraftBudget, Drafter, State, Verified, call_s, takes_late, wants_features
from exactspec.drafters.recycle import RecycleDrafter
from exactspec.drafters.worth import Worth
from exactspec.tree import DraftTree

ANY_ID = 2**31
"""Ids are held against the vocabulary by who asked for the tree; here they only have to be some."""


@dataclass(slots=True)
class _Union:
    free: list[State]
    costly: list[State]
    worths: list[Worth]
    recycled: State
    cost: Cost  # of the target's rows, in the step at hand


class UnionDrafter:
    """`free`: drafters that are asked in every step, and whose scores are honest. `recycle`: what corrects the others'
    scores and grows their tree. `costly`: drafters that are asked where that is expected to pay for their call
    (`worth`); where seconds of a plain step are unknown, always."""

    __slots__ = ("_costly", "_free", "_recycle")

    wants_topk = True

    @property
    def wants_features(self) -> int:
        return max(map(wants_features, (*self._free, *self._costly)), default=0)

    @property
    def takes_late(self) -> bool:
        return all(map(takes_late, (*self._free, self._recycle, *self._costly)))

    def __init__(self, free: tuple[Drafter, ...], recycle: RecycleDrafter, *, costly: tuple[Drafter, ...] = ()) -> None:
        self._free, self._recycle, self._costly = free, recycle, costly

    @property
    def name(self) -> str:
        return "+".join(drafter.name for drafter in (*self._free, self._recycle, *self._costly))

    @property
    def costly(self) -> tuple[Drafter, ...]:
        """Those that are asked where it pays."""
        return self._costly

    def begin(self, context: Context) -> State:
        return _Union(
            [drafter.begin(context) for drafter in self._free],
            [drafter.begin(context) for drafter in self._costly],
            [Worth() for _ in self._costly],
            self._recycle.begin(context),
            TABLE,
        )

    def propose(self, state: State, budget: DraftBudget) -> DraftTree:
        s: _Union = state
        base = DraftTree.empty()
        for drafter, its in zip(self._free, s.free, strict=True):
            base = base.merge(drafter.propose(its, budget))
        sound = len(base.sources)
        tree = self._recycle.extend(s.recycled, base, budget, sound=sound)
        if not self._costly:
            return tree
        s.cost = budget.cost
        scores = tree.score.tolist()
        asked = False
        for drafter, its, worth in zip(self._costly, s.costly, s.worths, strict=True):
            call = call_s(drafter, its, budget) / budget.plain_s if budget.plain_s > 0 else 0.0
            if worth.ask(scores, call=call, cost=budget.cost) or not budget.plain_s:
                its_tree = drafter.propose(its, budget).sanitise(ANY_ID, max_nodes=budget.max_nodes)
                asked = asked or bool(len(its_tree))
                base = base.merge(its_tree)
        return self._recycle.extend(s.recycled, base, budget, sound=sound) if asked else tree

    def commit(self, state: State, verified: Verified) -> None:
        s: _Union = state
        for drafter, its in zip(self._free, s.free, strict=True):
            drafter.commit(its, verified)
        for drafter, its, worth in zip(self._costly, s.costly, s.worths, strict=True):
            drafter.commit(its, verified)
            if len(verified.rows):
                worth.record(tokens=len(verified.tokens), cost=s.cost(len(verified.rows)))
        self._recycle.commit(s.recycled, verified)

    def truncate(self, state: State, n: int) -> None:
        s: _Union = state
        for drafter, its in zip((*self._free, *self._costly), (*s.free, *s.costly), strict=True):
            drafter.truncate(its, n)
        s.worths = [Worth() for _ in self._costly]
        self._recycle.truncate(s.recycled, n)

    def fork(self, state: State) -> State:
        s: _Union = state
        free = [drafter.fork(its) for drafter, its in zip(self._free, s.free, strict=True)]
        costly = [drafter.fork(its) for drafter, its in zip(self._costly, s.costly, strict=True)]
        return _Union(free, costly, [Worth() for _ in costly], self._recycle.fork(s.recycled), s.cost)

    def close(self, state: State) -> None:
        s: _Union = state
        for drafter, its in zip((*self._free, *self._costly), (*s.free, *s.costly), strict=True):
            drafter.close(its)
        self._recycle.close(s.recycled)
