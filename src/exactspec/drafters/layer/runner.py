"""Runs jobs of one draft layer by its target's threads: taking in tokens, growing trees."""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from exactspec.drafters.layer.checkpoint import Layer
from exactspec.drafters.layer.footprint import ring_slots, state_bytes
from exactspec.drafters.layer.kernels import frame as fields
from exactspec.drafters.layer.kernels.attend import OWN_SPAN, RECORD_HEAD
from exactspec.drafters.layer.kernels.load import compiled
from exactspec.drafters.layer.packed import PackedLayer, pack_layer
from exactspec.drafters.layer.sight import Sight, pieces_at
from exactspec.drafters.layer.state import LayerState, StateShape
from exactspec.target.base import FloatArray
from exactspec.target.cache import ExactCache, PageShape
from exactspec.target.cache_types import cache_type
from exactspec.target.exact import ExactTarget
from exactspec.target.kernels.pages import CHUNK
from exactspec.target.kernels.products import UNIT
from exactspec.target.pack import padded
from exactspec.target.precision import NARROW_GROUP, WIDE_GROUP
from exactspec.target.scratch import Scratch

SPANS = 8
"""Most spans of the cross-attention: it bounds what they leave to be merged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Of a tree. `widths`: nodes passed on after each pass, so ``len(widths)`` passes and levels. `branch`: children of
    a node. `beam`: only nodes that are passed on are part of the tree (the paper's); else all children are, and passes
    end where the nodes at hand are likely in all with less than `floor`. `nodes`: how many are wanted; `least`: what a
    node's probability must exceed."""

    widths: tuple[int, ...]
    branch: int
    beam: bool
    nodes: int = fields.NODES
    least: float = fields.LEAST_PROBABILITY
    floor: float = 0.0

    def __post_init__(self) -> None:
        if not 1 <= len(self.widths) <= fields.MOST_LEVELS:
            raise ValueError(f"a tree has 1 to {fields.MOST_LEVELS} levels, got {len(self.widths)}")
        if not all(1 <= width <= fields.MOST_WIDTH for width in self.widths):
            raise ValueError(f"a level passes on 1 to {fields.MOST_WIDTH} nodes, got {self.widths}")
        if not 1 <= self.branch <= fields.MOST_BRANCH:
            raise ValueError(f"a node has 1 to {fields.MOST_BRANCH} children, got {self.branch}")


@dataclass(frozen=True, slots=True, eq=False)
class Grown:
    """`tokens`, `parents` int64 [n] (-1: the root, a parent before its children), `scores` float32 [n]: the product of
    the probabilities on the way. `passes` that it took."""

    tokens: npt.NDArray[np.int64]
    parents: npt.NDArray[np.int64]
    scores: FloatArray
    passes: int


class LayerRunner:
    """One layer over one target. `sight`: what rows see of the target's keys. Jobs run one at a time. Raises ValueError
    if the card is of another target."""

    def __init__(self, target: ExactTarget, layer: Layer, *, sight: Sight) -> None:
        layer.card.check_target(target.config, target.sha256)
        self.target, self.card = target, layer.card
        self.packed: PackedLayer = pack_layer(layer, target)
        self._lock = threading.Lock()
        self._function: int = compiled(target.cpu.instruction_set).address
        self._scratch = Scratch()
        self._frame = np.zeros(1, dtype=fields.FRAME)
        sizes, s = self.packed.sizes, self.card.sizes
        own = PageShape(1, s.kv_heads, sizes.head_pad, "bfloat16")
        self._bare = StateShape(ring_slots(self.card), own.page_bytes, target.config.hidden_size, sizes.width_pad)
        self.see(sight)
        exponent = np.arange(s.head_dim // 2, dtype=np.float64) * 2 / s.head_dim
        self._frequency = np.zeros(sizes.half_pad)
        self._frequency[: s.head_dim // 2] = 1.0 / self.card.rope_theta**exponent
        self._set(own)

    def see(self, sight: Sight) -> None:
        """What rows see from now on; of requests that begin now."""
        its = self.target.page_shape
        most = self.target.max_length // CHUNK if sight.top else 0
        self.sight = sight
        self.state_shape = replace(self._bare, summaries=(most, its.kv_heads, its.head_pad))

    @property
    def nbytes(self) -> int:
        """Bytes of the layer's weights and of its scratch, which all requests share."""
        return self.packed.nbytes + self._scratch.nbytes

    @property
    def state_bytes(self) -> int:
        """Bytes of one request, whatever its context."""
        return state_bytes(self.card, summarised=self.state_shape.summaries[0])

    def new_state(self) -> LayerState:
        return LayerState.empty(self.state_shape)

    # -- jobs ------------------------------------------------------------------------------------------------------

    def take_in(self, state: LayerState) -> None:
        """Own keys of all that is waiting."""
        with self._lock:
            self._call(state, levels=0)
            self._run()
        state.taken()

    def grow(self, state: LayerState, cache: ExactCache, shape: Shape) -> Grown:
        """A tree below the root, which must be waiting; `cache` holds all tokens but the root."""
        with self._lock:
            f, levels = self._frame, len(shape.widths)
            self._call(state, levels=levels)
            widths = self._scratch.flat("widths", np.int64, fields.MOST_LEVELS)
            widths[:levels] = shape.widths
            f["branch"], f["beam"], f["most"] = shape.branch, int(shape.beam), max(1, min(shape.nodes, fields.NODES))
            f["least"], f["floor"] = shape.least, shape.floor
            self._see(state, cache)
            self._run()
            nodes, passes = (
                int(self._scratch.flat("state", np.int64, 0)[i]) for i in (fields.S_NODES, fields.S_PASSES)
            )
            tokens, parents = (self._scratch.flat(x, np.int64, 0)[:nodes].copy() for x in ("node_token", "node_parent"))
            scores = self._scratch.flat("node_score", np.float32, 0)[:nodes].copy()
        state.taken()
        return Grown(tokens, parents, scores, passes)

    def _run(self) -> None:
        self.target.run_job(self._function, self._frame)

    def _call(self, state: LayerState, *, levels: int) -> None:
        f, take = self._frame, state.waiting
        f["pages"], f["low"] = state.addresses.ctypes.data, state.low
        f["take"], f["take_first"], f["levels"] = take, state.first, levels
        f["take_tokens"], f["take_features"] = state.tokens.ctypes.data, state.features.ctypes.data
        angle = (state.first + np.arange(take + levels))[:, None] * self._frequency
        half = self.packed.sizes.half_pad
        most = (fields.MOST_ROWS + fields.MOST_LEVELS) * half
        for name, values in (("cos", np.cos(angle)), ("sin", np.sin(angle))):
            self._scratch.flat(name, np.float32, most)[: values.size] = values.reshape(-1)

    def _see(self, state: LayerState, cache: ExactCache) -> None:
        """The chunks of the target's last layer that rows see, and those from which more are chosen: int64 [., 3]."""
        f, n, sight = self._frame, cache.length, self.sight
        inside = (self.target.config.num_layers - 1) * self.target.page_shape.layer_bytes
        seen = pieces_at(sight.fixed(n), cache.addresses, inside)
        among = sight.between(n) if state.summaries.means.size else []  # none: the request began with another sight
        if among:
            state.summaries.take_in(cache)
            self._put("among", pieces_at(among, cache.addresses, inside))
        f["among_count"], f["top"] = len(among), min(sight.top, len(among))
        f["summaries"] = state.summaries.means.ctypes.data
        f["cross_count"] = len(seen) + int(f["top"][0])
        self._put("cross", seen, room=sight.top)
        f["cross_chunks"] = max(1, -(-int(f["cross_count"][0]) // SPANS))
        position = cache.length + fields.MOST_LEVELS + 1
        f["cross_cos"], f["cross_sin"] = self.target.last_rope(position)

    def _put(self, name: str, rows: npt.NDArray[np.int64], *, room: int = 0) -> None:
        """A table of the frame, with room for more rows behind it."""
        size = rows.size + 3 * room
        self._scratch.flat(name, np.int64, size)[: rows.size] = rows.reshape(-1)
        self._frame[name] = self._scratch.address(name, np.int64, size)

    # -- once ------------------------------------------------------------------------------------------------------

    def _set(self, own: PageShape) -> None:
        f, target, card = self._frame, self.target, self.card
        config, its, s, sizes = target.config, target.packed.sizes, card.sizes, self.packed.sizes
        matrices, rows, threads = self.packed.matrices, fields.MOST_ROWS, target.threads
        widest = max(sizes.width_pad, sizes.inner_pad, s.heads * sizes.head_pad, s.cross_heads * its.head_pad)
        groups = -(-widest // NARROW_GROUP)
        heads, pad = max(s.heads, s.cross_heads), max(sizes.head_pad, its.head_pad)
        spans = max(SPANS, -(-(self.state_shape.chunks) // OWN_SPAN) + 1)
        head_units = padded(padded(s.head, UNIT) // UNIT, 16)
        chunks = padded(target.max_length // CHUNK + 1, 16)
        private = max(1 << 16, rows * 128, 4 * pad * (8 + 6) + 4 * 6 * (CHUNK + 32) + 4 * CHUNK)
        values: dict[str, Any] = {
            "width": config.hidden_size,
            "width_pad": sizes.width_pad,
            "heads": s.heads,
            "kv_heads": s.kv_heads,
            "head_pad": sizes.head_pad,
            "half_pad": sizes.half_pad,
            "own_head_bytes": own.head_bytes,
            "cross_heads": s.cross_heads,
            "cross_kv": config.num_kv_heads,
            "cross_pad": its.head_pad,
            "cross_half": its.half_pad,
            "cross_head_bytes": target.page_shape.head_bytes,
            "cross_kind": cache_type(target.page_shape.dtype).kind,
            "inner_pad": sizes.inner_pad,
            "head_ids": self.packed.head_ids.ctypes.data,
            "head_count": s.head,
            "head_units": head_units,
            "embed": target.packed.embed.stored.ctypes.data,
            "embed_scale": target.packed.embed.scale.ctypes.data,
            "ring": self.state_shape.ring,
            "window": card.window,
            "own_feature": int(card.draft_feature == "own"),
            "narrow_group": NARROW_GROUP,
            "wide_group": WIDE_GROUP,
            "groups": groups,
            "activation_stride": 2 * widest,
            "plane": widest,
            "private_bytes": private,
            "eps": card.eps,
            "embed_gain": card.embed_gain,
            "query_scale": np.log2(np.e) / np.sqrt(s.head_dim),
            "cross_scale": np.log2(np.e) / np.sqrt(config.head_dim),
        }
        for name in fields.MATRICES:
            values[name] = matrices[name].stored.ctypes.data
            values[f"{name}_scale"] = matrices[name].scale.ctypes.data
        values |= {name: norm.ctypes.data for name, norm in self.packed.norms.items()}
        f32, i64, wide = np.float32, np.int64, rows * sizes.width_pad
        buffers: dict[str, tuple[Any, int]] = {
            **dict.fromkeys(("x", "fed", "added", "normed", "out"), (f32, wide)),
            "root_fed": (f32, sizes.width_pad),
            "activations": (np.int8, rows * 2 * widest),
            "scale": (f32, rows * groups),
            "offset": (np.int32, rows * groups),
            "queries": (f32, rows * heads * pad),
            "attended": (f32, rows * heads * pad),
            "inner": (f32, rows * sizes.inner_pad),
            "partials": (f32, fields.MOST_WIDTH * heads * spans * (RECORD_HEAD + pad)),
            "best": (f32, threads * fields.MOST_WIDTH * fields.MOST_BRANCH),
            "best_at": (i64, threads * fields.MOST_WIDTH * fields.MOST_BRANCH),
            "peaks": (f32, fields.MOST_WIDTH * head_units),
            "sums": (f32, fields.MOST_WIDTH * head_units),
            "private": (np.uint8, threads * private),
            **{f"row_{name}": (i64, rows) for name in ("token", "position", "slot", "node", "above", "depth")},
            **dict.fromkeys(("path", "path_before"), (i64, rows * (fields.MOST_LEVELS + 1))),
            "state": (i64, fields.STATE),
            "node_token": (i64, fields.NODES),
            "node_parent": (i64, fields.NODES),
            "node_score": (f32, fields.NODES),
            # Room for the longest context at once: what a runner takes does not depend on those at hand.
            "cross": (i64, 3 * (chunks + 1 + fields.MOST_TOP)),
            "among": (i64, 3 * chunks),
            "masses": (f32, 2 * chunks),
            "best_chunks": (i64, 2 * fields.MOST_TOP),
            "widths": (i64, fields.MOST_LEVELS),
            "cos": (f32, (rows + fields.MOST_LEVELS) * sizes.half_pad),
            "sin": (f32, (rows + fields.MOST_LEVELS) * sizes.half_pad),
        }
        values |= {name: self._scratch.address(name, dtype, count) for name, (dtype, count) in buffers.items()}
        for name, value in values.items():
            f[name] = value
