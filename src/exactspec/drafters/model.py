"""Drafting with another model: a smaller one of the same family, as a rule, one forward a level of the tree.

The model has a cache of its own for every request. Before it proposes, the cache is cut to what it shares with the
history and fed what is missing, so a rejected draft costs no more than the tokens that came instead. What it proposes
are the likeliest continuations by its own probabilities: softmax over its best `Target.top_k` logits, multiplied
along the path.

A long prompt is read in chunks, one a step, while the target decodes plainly: a request can be cancelled between them.
It is left unread where reading would cost more than drafts can be expected to save.
This is counted in the decode time, as all preparation of drafters is. Past the model's own context nothing is
proposed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, field

from exactspec.budget import Cost
from exactspec.drafters.base import Context, DraftBudget, State, Verified
from exactspec.drafters.calls import Calls
from exactspec.drafters.growing import Growth, Row, Shape, probabilities
from exactspec.drafters.pays import ModelTimes
from exactspec.drafters.reading import SOURCE, Reading, SameTokens
from exactspec.drafters.reencoding import Reencoded, Translation
from exactspec.drafters.vocabularies import first_difference
from exactspec.target.base import Cache, Segment, Target, Want
from exactspec.target.tokenizer import Tokenizer
from exactspec.tree import DraftTree

CHUNK = 256
"""Most tokens of a history that are read in one step."""

WORTH_ASKING = 32
"""More tokens to read than this are read only where that can be expected to pay."""

WIDTH = 3
CHILDREN = 4
MOST_LEVELS = 16


@dataclass(slots=True)
class _State:
    """One request. `known`: what the model's cache holds; its first `agreed` tokens are those of ``reading.ids``."""

    cache: Cache
    reading: Reading
    calls: Calls
    known: list[int] = field(default_factory=list)
    agreed: int = 0


class ModelDrafter:
    """A `Drafter` over any `Target`.

    `model`, `tokenizer`: the drafting model. `target_tokenizer`: that of the target it drafts for (None: the same).
    `length`: chains of that many tokens at every step, however likely, as published protocols draft; None: trees, as
    deep and as often as pays by measured times. `row_s`, `cost`: seconds of the model's forward of one row, and the
    cost of more relative to it; a first guess, for all times are measured while it runs. `clock`: for tests.

    Instances hold no request's data. Thread-safe as far as the model is: its forwards are made one at a time.
    `difference`: the first id that the two tokenizers name differently, if any; text is then encoded anew both ways
    (`reencoding`). Raises ValueError if `length` is below 1.
    """

    def __init__(
        self,
        model: Target,
        tokenizer: Tokenizer,
        *,
        target_tokenizer: Tokenizer | None = None,
        length: int | None = None,
        row_s: float | None = None,
        cost: Cost | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        if length is not None and length < 1:
            raise ValueError(f"length must be at least 1, got {length}")
        self.model = model
        self.tokenizer = tokenizer
        self.length = length
        self._target_tokenizer = tokenizer if target_tokenizer is None else target_tokenizer
        self.difference = None if target_tokenizer is None else first_difference(tokenizer, target_tokenizer)
        self._translation = None if self.difference is None else Translation.between(tokenizer, self._target_tokenizer)
        self._times = ModelTimes(row_s=row_s, cost=cost)
        self._clock = clock
        self._lock = threading.Lock()

    @property
    def name(self) -> str:
        return SOURCE

    def with_length(self, length: int | None) -> ModelDrafter:
        """The same model, drafting chains of that length (None: trees)."""
        if length == self.length:
            return self
        if length is not None and length < 1:
            raise ValueError(f"length must be at least 1, got {length}")
        twin = copy(self)  # times and lock are shared
        twin.length = length
        return twin

    # -- the seam --------------------------------------------------------------------------------------------------

    def begin(self, context: Context) -> State:
        state = _State(self.model.new_cache(), self._reading(), self._calls())
        state.reading.append(context.tokens.tolist())
        return state

    def propose(self, state: State, budget: DraftBudget) -> DraftTree:
        s: _State = state
        s.calls.start(budget)
        tree, levels = DraftTree.empty(), 0
        if s.reading.ready and (self.length is not None or s.calls.pays.call()):
            tree, levels = self._draft(s, budget)
        s.calls.hand_over(tree, levels)
        return tree

    def call_s(self, state: State, budget: DraftBudget) -> float:
        """Seconds that `propose` will probably take."""
        s: _State = state
        missing = min(CHUNK, max(1, len(s.reading.ids) - s.agreed))
        return self._times.call_s(min(self.length or s.calls.pays.levels, budget.max_depth), missing=missing)

    def commit(self, state: State, verified: Verified) -> None:
        s: _State = state
        s.calls.come_back(verified)
        s.agreed = min(s.agreed, s.reading.settled)
        s.reading.append(verified.tokens.tolist())

    def truncate(self, state: State, n: int) -> None:
        s: _State = state
        s.reading.truncate(n)
        s.agreed = min(s.agreed, s.reading.settled)
        s.calls.forget()

    def fork(self, state: State) -> State:
        s: _State = state
        return _State(s.cache.fork(), s.reading.fork(), self._calls(), s.known.copy(), s.agreed)

    def close(self, state: State) -> None:
        s: _State = state
        s.cache = self.model.new_cache()
        s.reading, s.known, s.agreed = self._reading(), [], 0
        s.calls.forget()

    def _calls(self) -> Calls:
        return Calls(SOURCE, self._clock)

    # -- a draft ---------------------------------------------------------------------------------------------------

    def _reading(self) -> Reading:
        if self._translation is not None:
            return Reencoded(self._translation)
        return SameTokens(known=self.model.vocab_size, offered=self._target_tokenizer.vocab_size)

    def _draft(self, s: _State, budget: DraftBudget) -> tuple[DraftTree, int]:
        """A tree, and the levels it took (0: the model was not asked)."""
        ids = s.reading.ids
        room = self.model.max_length - len(ids)  # nodes that may be asked below the root
        if not ids or room < 0:
            return DraftTree.empty(), 0
        missing = len(ids) - s.agreed
        if self.length is None and missing > WORTH_ASKING:
            read_s = self._times.forward_s(missing)
            if read_s is not None and not s.calls.pays.worth_reading(read_s, self._times.forward_s(1)):
                return DraftTree.empty(), 0
        root = self._catch_up(s)
        if root is None:
            return DraftTree.empty(), 0
        growth = Growth(s.cache, ids[-1], self._ask(level=1), self._shape(budget, room), self._worth(s))
        tree = s.reading.translate(growth.run(root))
        s.known[len(ids) - 1 :] = growth.spine_tokens
        s.agreed = len(ids) - 1 if not growth.spine_tokens else len(ids)
        return tree.prune(max_nodes=budget.max_nodes, max_depth=budget.max_depth), 1 + growth.levels

    def _shape(self, budget: DraftBudget, room: int) -> Shape:
        ends = self.tokenizer.eos_ids
        if self.length is not None:
            levels = min(self.length, budget.max_depth, budget.max_nodes) - 1
            return Shape(levels=min(levels, room), width=1, children=1, leaves=ends, fixed=True)
        levels = min(MOST_LEVELS, budget.max_depth - 1, room)
        return Shape(levels=levels, width=WIDTH, children=CHILDREN, leaves=ends)

    def _worth(self, s: _State) -> Callable[[float, int], bool]:
        return lambda mass, rows: s.calls.pays.another_level(mass, rows, self._times.forward_s(rows))

    def _catch_up(self, s: _State) -> Row | None:
        """Cut the cache to what agrees with the history and feed the rest, or a chunk of it. What follows the
        history; None while there is more to read."""
        ids, known = s.reading.ids, s.known
        common = s.agreed
        most = min(len(known), len(ids) - 1)  # the last one is read anew: its row is wanted
        common = min(common, most)
        while common < most and known[common] == ids[common]:
            common += 1
        s.cache.truncate(common)
        del known[common:]
        last = len(ids) - common <= CHUNK
        missing = ids[common:] if last else ids[common : common + CHUNK]
        segment = Segment.chain(s.cache, missing, Want.TOPK if last else Want.NONE, last_only=True)
        found = self._ask(level=0)(segment, [len(missing) - 1] if last else [])
        s.cache.keep(range(len(missing)))
        known += missing
        s.agreed = len(known)
        return found[0] if last else None

    def _ask(self, *, level: int) -> Callable[[Segment, Sequence[int]], list[Row]]:
        """Forwards of one call, the first of which is its `level`-th; times are recorded by level."""

        def forward(segment: Segment, asked: Sequence[int]) -> list[Row]:
            nonlocal level
            with self._lock:  # rows are views: valid until the model's next forward
                start = self._clock()
                (rows,) = self.model.forward([segment])
                if level or len(segment.tokens) <= 4:
                    self._times.record(level, len(segment.tokens), self._clock() - start)
                found = [(rows.topk_ids[row].tolist(), probabilities(rows.topk_logits[row])) for row in asked]
            level += 1
            return found

        return forward
