"""What a draft layer costs: bytes and time of a pass by the context, beside a plain step of its target.

The weights do not matter for the time: without a layer at hand one of random weights is measured. Trees are taken in
turn with plain steps, context by context, round by round, so that drift falls on all of them; medians count.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from time import perf_counter

import numpy as np

from exactspec.bench.report import markdown
from exactspec.drafters.layer.card import Card, CardSizes, CardTarget
from exactspec.drafters.layer.checkpoint import NORMS, Layer, matrix_shapes
from exactspec.drafters.layer.kernels.frame import NODES
from exactspec.drafters.layer.runner import LayerRunner, Shape
from exactspec.drafters.layer.state import LayerState
from exactspec.drafters.longspec import CHILDREN, PAPER_WIDTHS, WIDTH
from exactspec.target.base import FloatArray, Segment, Want
from exactspec.target.cache import ExactCache
from exactspec.target.exact import ExactTarget

_FILL_ROWS = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerCell:
    """`request_bytes`: of the layer's state behind `context` tokens. Milliseconds of a plain step; of a pass over one
    node, the mean over the passes of a chain; of a pass of the default tree, and of the paper's beam."""

    context: int
    request_bytes: int
    plain_ms: float
    node_ms: float
    tree_ms: float
    beam_ms: float

    @property
    def node_ratio(self) -> float:
        return self.node_ms / self.plain_ms


def random_layer(target: ExactTarget, *, name: str, seed: int = 0) -> Layer:
    """A layer of the default sizes with random weights; what it drafts is worth nothing."""
    c = target.config
    inner = -(-8 * c.hidden_size // 3 // 32) * 32
    sizes = CardSizes(
        heads=c.num_heads,
        kv_heads=c.num_kv_heads,
        head_dim=c.head_dim,
        cross_heads=c.num_heads,
        inner=inner,
        head=min(8192, c.vocab_size),
    )
    card = Card(
        target=CardTarget.of(c, sha256=target.sha256, name=name),
        sizes=sizes,
        window=512,
        anchors=4,
        depth=5,
        rope_theta=10000.0,
        eps=1e-5,
        embed_gain=1.0,
        feature_gain=1.0,
        draft_feature="own",
        precision="int8",
    )
    rng = np.random.default_rng(seed)
    matrices: dict[str, FloatArray] = {
        key: (rng.standard_normal(shape) / np.sqrt(shape[1])).astype(np.float32)
        for key, shape in matrix_shapes(card).items()
    }
    norms: dict[str, FloatArray] = {key: np.ones(c.hidden_size, dtype=np.float32) for key in NORMS}
    ids = np.sort(rng.choice(c.vocab_size, size=sizes.head, replace=False)).astype(np.int64)
    return Layer(card, matrices, norms, ids)


def measure_layer(
    target: ExactTarget,
    runner: LayerRunner,
    *,
    contexts: Sequence[int],
    repeats: int,
    clock: Callable[[], float] = perf_counter,
) -> list[LayerCell]:
    """One cell a context. Raises ValueError if one does not fit the target's."""
    if max(contexts) + 1 > target.max_length:
        raise ValueError(f"{max(contexts)} tokens do not fit the model's context of {target.max_length}")
    levels = min(runner.card.depth, len(PAPER_WIDTHS))
    shapes = (
        Shape(widths=(1,) * levels, branch=1, beam=True),
        Shape(widths=(WIDTH,) * levels, branch=CHILDREN, beam=False, nodes=NODES),
        Shape(widths=PAPER_WIDTHS[:levels], branch=16, beam=True),
    )
    places = {context: _filled(target, runner, context) for context in contexts}
    times: dict[int, list[list[float]]] = {context: [[] for _ in range(4)] for context in contexts}
    for _ in range(repeats + 1):
        for context, (cache, state) in places.items():
            for at, shape in enumerate((None, *shapes)):
                start = clock()
                if shape is None:
                    target.forward([Segment.chain(cache, state.tokens[:1], Want.ARGMAX)])
                    passes = 1
                else:
                    passes = runner.grow(state, cache, shape).passes
                times[context][at].append((clock() - start) / passes)
    cells = []
    for context, (_, state) in places.items():
        plain, node, tree, beam = (1e3 * median(found[1:]) for found in times[context])  # the first round warms up
        cells.append(
            LayerCell(
                context=context,
                request_bytes=state.nbytes,
                plain_ms=plain,
                node_ms=node,
                tree_ms=tree,
                beam_ms=beam,
            )
        )
    return cells


def _filled(target: ExactTarget, runner: LayerRunner, context: int) -> tuple[ExactCache, LayerState]:
    """A cache of random tokens, and the layer's state with a root behind them."""
    tokens = np.random.default_rng(0).integers(0, target.vocab_size, context + 1)
    cache, state = target.new_cache(), runner.new_state()
    state.skip(max(0, context + 1 - state.shape.ring))
    for start in range(0, context, _FILL_ROWS):
        part = tokens[start : min(start + _FILL_ROWS, context)]
        target.forward([Segment.chain(cache, part, Want.NONE)])
        cache.keep(range(len(part)))
    while state.length <= context:
        if not state.room():
            runner.take_in(state)
        ids = tokens[state.length : state.length + state.room()]
        state.append(ids, np.zeros((len(ids), target.config.hidden_size), dtype=np.float32))
    return cache, state


def layer_table(cells: Sequence[LayerCell], runner: LayerRunner) -> str:
    """For people. "to the first": a pass of one node to that at the first context."""
    rows = [
        (
            str(cell.context),
            f"{runner.packed.nbytes / 1e6:.2f} MB",
            f"{cell.request_bytes / 1e6:.3f} MB",
            f"{cell.plain_ms:.2f}",
            f"{cell.node_ms:.3f}",
            f"{cell.node_ratio:.3f}",
            f"{cell.node_ms / cells[0].node_ms:.2f}",
            f"{cell.tree_ms:.3f}",
            f"{cell.beam_ms:.3f}",
        )
        for cell in cells
    ]
    head = ("context", "layer", "a request", "plain ms", "node ms", "to plain", "to the first", "tree ms", "beam ms")
    return markdown(head, rows)
