"""Drafting with a trained layer (LongSpec, arXiv 2502.17421): one block that reads the target's last keys and values.

What it computes, and from what: docs/longspec.md. Its memory is a ring of its own keys over a window, allocated once;
its time does not depend on the context either, unless all of the target's keys are asked for. Scores are products of
probabilities by the trimmed head's softmax.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median

import numpy as np
import numpy.typing as npt

from exactspec.drafters.base import Context, DraftBudget, State, Verified
from exactspec.drafters.calls import Calls
from exactspec.drafters.layer.checkpoint import read_layer
from exactspec.drafters.layer.footprint import told
from exactspec.drafters.layer.kernels.frame import MOST_LEVELS
from exactspec.drafters.layer.kernels.load import compiled
from exactspec.drafters.layer.runner import Grown, LayerRunner, Shape
from exactspec.drafters.layer.sight import Sight
from exactspec.drafters.layer.state import LayerState
from exactspec.target.base import FloatArray, Target
from exactspec.target.cache import ExactCache
from exactspec.target.exact import ExactTarget
from exactspec.tree import DraftTree

SOURCE = "longspec"

RECENT = 1024
"""The target's last keys that a row sees by default, beside the first 4."""

PAPER_WIDTHS = (4, 16, 16, 16, 16)
"""Nodes kept at each depth, as in LongSpec."""

WIDTH = 6
CHILDREN = 6
LEAST = 0.01  # probability below which a candidate is not worth a row anywhere
_ROWS = 12  # the first ones of a step, among which the cheapest is looked for
_WINDOW = 15  # measurements a median is taken of


@dataclass(slots=True)
class _State:
    layer: LayerState
    cache: ExactCache
    calls: Calls


class LongSpecDrafter:
    """A `Drafter` over an exact target on the CPU.

    What rows see of the target's keys is its runner's `sight`. `widths`: a beam that keeps so many nodes at each depth
    (`PAPER_WIDTHS`); None: a tree of the likeliest nodes, as deep as pays. `always`: at every step, whether it pays or
    not. `clock`: seconds, for tests and replays. Instances hold no request's data.
    Thread-safe: jobs run one at a time.
    Raises ValueError if the layer belongs to another target, or the target is not the exact one on the CPU.
    """

    def __init__(
        self,
        runner: LayerRunner,
        *,
        widths: tuple[int, ...] | None = None,
        always: bool = False,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.runner = runner
        self.widths = widths
        self.always = always
        self._clock = clock
        self._pass_s: deque[float] = deque(maxlen=_WINDOW)
        self._passes: deque[int] = deque(maxlen=_WINDOW)
        self._typical_s = 0.0  # medians of the two: asked for in every step
        self._typical_passes = 0.0

    @classmethod
    def open(
        cls,
        folder: Path,
        target: Target,
        *,
        sight: Sight | None = None,
        widths: tuple[int, ...] | None = None,
        progress: Callable[[str], None] | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> LongSpecDrafter:
        """The layer in a folder (see `layer.checkpoint`), timed once. `sight`: None, the first keys, the `RECENT` ones,
        and as many top chunks as the card says. ValueError, one line, if it cannot be used."""
        if not isinstance(target, ExactTarget):
            raise ValueError("longspec drafts for models run by the exact runtime on the CPU: leave out hf: and device")
        layer = read_layer(folder)
        layer.card.check_target(target.config, target.sha256)
        compiled(target.cpu.instruction_set, progress=progress)  # now, so that no request waits
        sight = sight or Sight(RECENT, layer.card.top_chunks)
        drafter = cls(LayerRunner(target, layer, sight=sight), widths=widths, clock=clock)
        drafter.measure()
        if progress is not None:
            progress(f"draft layer of {layer.card.target.name}: {told(layer.card)}")
        return drafter

    @property
    def name(self) -> str:
        return SOURCE

    @property
    def wants_features(self) -> int:
        return self.runner.state_shape.ring

    def measure(self) -> None:
        """Time trees of an empty context, so that the first request knows what one costs."""
        target = self.runner.target
        for _ in range(3):
            state, cache = self.runner.new_state(), target.new_cache()
            state.append(np.zeros(1, dtype=np.int64), np.zeros((1, target.config.hidden_size), dtype=np.float32))
            start = self._clock()
            grown = self.runner.grow(state, cache, self._shape(DraftBudget(16, MOST_LEVELS), floor=0.0))
            self._record(grown, self._clock() - start)

    # -- the seam --------------------------------------------------------------------------------------------------

    def begin(self, context: Context) -> State:
        assert isinstance(context.cache, ExactCache)
        state = _State(self.runner.new_state(), context.cache, self._calls())
        self._append(state.layer, context.tokens, context.features)
        return state

    def propose(self, state: State, budget: DraftBudget) -> DraftTree:
        s: _State = state
        s.calls.start(budget)
        tree, passes = DraftTree.empty(), 0
        in_step = s.cache.length == s.layer.length - 1
        if in_step and (self.always or s.calls.pays.call()) and s.layer.recall():
            start = self._clock()
            grown = self.runner.grow(s.layer, s.cache, self._shape(budget, floor=self._floor(budget)))
            self._record(grown, self._clock() - start)
            tree, passes = _tree(grown, budget), grown.passes
        s.calls.hand_over(tree, passes)
        return tree

    def call_s(self, state: State, budget: DraftBudget) -> float:
        """Seconds that `propose` will probably take."""
        return self._typical_s * min(self._typical_passes, budget.max_depth)

    def commit(self, state: State, verified: Verified) -> None:
        s: _State = state
        assert isinstance(verified.cache, ExactCache)
        s.cache = verified.cache
        s.calls.come_back(verified)
        if len(verified.rows):
            rows = [0, *(verified.path + 1).tolist()][: len(verified.tokens)]
            self._append(s.layer, verified.tokens, verified.rows.hidden[rows])
        else:
            self._append(s.layer, verified.tokens, verified.features)

    def truncate(self, state: State, n: int) -> None:
        s: _State = state
        s.layer.truncate(n)
        s.calls.forget()

    def fork(self, state: State) -> State:
        s: _State = state
        return _State(s.layer.fork(), s.cache, self._calls())

    def close(self, state: State) -> None:
        s: _State = state
        s.layer, s.cache = LayerState.empty(self.runner.state_shape), self.runner.target.new_cache()

    def _calls(self) -> Calls:
        return Calls(SOURCE, self._clock)

    # -- in step ---------------------------------------------------------------------------------------------------

    def _append(self, layer: LayerState, tokens: npt.NDArray[np.integer], features: FloatArray | None) -> None:
        """Tokens behind the history. `features` [m]: of the m positions before the last token; that of a token is the
        one of the position before it, zeros where it is not known."""
        n = len(tokens)
        if features is not None and len(features) == n <= layer.room():  # after an ordinary step
            layer.append(tokens, features)
            return
        fed = np.zeros((n, self.runner.target.config.hidden_size), dtype=np.float32)
        if features is not None and len(features):
            known = min(n, len(features))
            fed[n - known :] = features[len(features) - known :]
        at = max(0, n - layer.shape.ring)  # more than the window: a later cut may need what lies before it
        if at:
            layer.skip(at)
        while at < n:
            if not layer.room():
                self.runner.take_in(layer)
            part = slice(at, at + layer.room())
            layer.append(np.asarray(tokens[part], dtype=np.int64), fed[part])
            at = part.stop

    # -- a draft ---------------------------------------------------------------------------------------------------

    def _shape(self, budget: DraftBudget, *, floor: float) -> Shape:
        if self.widths is not None:
            return Shape(widths=self.widths[: max(1, budget.max_depth)], branch=16, beam=True)
        levels = min(self.runner.card.depth, budget.max_depth, MOST_LEVELS)
        children = min(CHILDREN, budget.max_nodes)
        return Shape(
            widths=(WIDTH,) * levels,
            branch=children,
            beam=False,
            nodes=budget.max_nodes,
            least=self._least(budget),
            floor=floor,
        )

    def _least(self, budget: DraftBudget) -> float:
        """Probability below which a node cannot pay for its row, nor what comes below it: what the cheapest further row
        costs, since a step is worth at least the token that a plain one gives."""
        if self.always:
            return LEAST
        costs = [budget.cost(rows) for rows in range(1, min(budget.max_nodes, _ROWS) + 2)]
        return max(LEAST, min(b - a for a, b in pairwise(costs)))

    def _floor(self, budget: DraftBudget) -> float:
        """Probability in all that the nodes of a pass must have: each gives about one candidate half as likely as
        itself, which must pay for the pass and for its row."""
        if budget.plain_s <= 0 or not self._typical_s:
            return 0.1
        row = 0.0 if self.always else (budget.cost(4) - budget.cost(1)) / 3
        return (self._typical_s / budget.plain_s + row) / 0.5

    def _record(self, grown: Grown, seconds: float) -> None:
        self._pass_s.append(seconds / grown.passes)
        self._passes.append(grown.passes)
        self._typical_s, self._typical_passes = median(self._pass_s), median(self._passes)


def _tree(grown: Grown, budget: DraftBudget) -> DraftTree:
    n = len(grown.tokens)
    source, origin = np.zeros(n, dtype=np.int64), np.full(n, -1, dtype=np.int64)
    tree = DraftTree(grown.tokens, grown.parents, source, np.minimum(grown.scores, 1), origin, (SOURCE,))
    return tree.prune(max_nodes=budget.max_nodes, max_depth=budget.max_depth)
