"""The exact target: a decoder on the CPU whose rows do not depend, to the bit, on how they are grouped.

int8 products summed in int32 (kernels.products), attention in fixed chunks by logical position
(kernels.attention), everything else row by row (kernels.rows). Equal bits are promised for one `identity`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from exactspec.target.base import Segment, SegmentRows, Want
from exactspec.target.cache import ExactCache, PageShape
from exactspec.target.cpu import CpuInfo, describe_cpu
from exactspec.target.kernels.attention import BLOCK, CHUNK
from exactspec.target.kernels.compile import load_kernels
from exactspec.target.kernels.frame import FRAME, LAYER_FIELDS, SEGMENT_FIELDS, private_bytes
from exactspec.target.pack import PackedModel, pack_model
from exactspec.target.rope import RopeTable
from exactspec.target.segments import Layout, lay_out
from exactspec.target.team import Team
from exactspec.target.weights import WeightSource

TOP_K = 8
# Inputs that share an activation scale. Small groups keep outliers apart; normed rows have the worst ones.
NORM_GROUP = 64
ATTENDED_GROUP = 64
INNER_GROUP = 128


class ExactTarget:
    """A `Target` with the exact promise. One forward at a time (it holds its own lock).

    `threads`: threads of a forward (default: all cores this process may use); they never change a bit.
    `context`: longest context in tokens (default: what the file states). `cache_dtype`: "float32".
    `progress`: called with one line when something takes long (compiling, packing).
    Raises ValueError on options out of range.
    """

    top_k = TOP_K
    exact = True

    def __init__(
        self,
        source: WeightSource,
        *,
        threads: int | None = None,
        context: int | None = None,
        cache_dtype: str = "float32",
        progress: Callable[[str], None] | None = None,
        cpu: CpuInfo | None = None,
        home: Path | None = None,
    ) -> None:
        if cache_dtype != "float32":
            raise ValueError(f"cache_dtype must be float32, got {cache_dtype!r}")
        config = source.config
        if context is not None and context < 1:
            raise ValueError(f"context must be at least 1 token, got {context}")
        self.config = config
        self.cpu = describe_cpu() if cpu is None else cpu
        self.max_length = config.max_position if context is None else min(context, config.max_position)
        self.threads = self.cpu.threads if threads is None else threads
        kernels = load_kernels(self.cpu, home=home, progress=progress)
        self.packed = pack_model(source, kernels.pack_rows, self.threads)
        self.identity = identity_of(source.sha256, self.cpu, cache_dtype)
        self._lock = threading.Lock()
        self._rope = RopeTable(config, self.packed.sizes.half_pad)
        self._frames = np.zeros(1, dtype=FRAME)
        self._team = Team(kernels.serve, self._frames, self.threads)
        self._layer_table = _layer_table(self.packed)
        self._scratch = Scratch()
        self._page_shape = PageShape(config.num_layers, config.num_kv_heads, self.packed.sizes.head_pad)
        sizes = self.packed.sizes
        self._groups = max(
            -(-width // group)
            for width, group in (
                (sizes.width_pad, NORM_GROUP),
                (config.num_heads * sizes.head_pad, ATTENDED_GROUP),
                (sizes.inner_pad, INNER_GROUP),
            )
        )
        self._set_model()

    @property
    def vocab_size(self) -> int:
        return self.config.vocab_size

    @property
    def page_shape(self) -> PageShape:
        """Size of a cache page (128 tokens)."""
        return self._page_shape

    def new_cache(self) -> ExactCache:
        return ExactCache(self._page_shape)

    def close(self) -> None:
        """End the helper threads. The target cannot be used afterwards."""
        with self._lock:
            self._team.close()

    def __del__(self) -> None:
        team = getattr(self, "_team", None)
        if team is not None:
            team.close()

    def _set_model(self) -> None:
        c, p, f = self.config, self.packed, self._frames
        s = p.sizes
        for name, value in {
            "layers": c.num_layers,
            "layer_table": _address(self._layer_table),
            "width": c.hidden_size,
            "width_pad": s.width_pad,
            "heads": c.num_heads,
            "kv_heads": c.num_kv_heads,
            "head_pad": s.head_pad,
            "half_pad": s.half_pad,
            "inner_pad": s.inner_pad,
            "vocab": c.vocab_size,
            "vocab_pad": s.vocab_pad,
            "embed": _address(p.embed.stored),
            "embed_scale": _address(p.embed.scale),
            "final_norm": _address(p.final_norm),
            "head": _address(p.head.stored),
            "head_scale": _address(p.head.scale),
            "layer_bytes": self._page_shape.layer_bytes,
            "head_bytes": self._page_shape.head_bytes,
            "top_k": TOP_K,
            "norm_group": NORM_GROUP,
            "attended_group": ATTENDED_GROUP,
            "inner_group": INNER_GROUP,
            "groups": self._groups,
            "q8_stride": max(s.width_pad, s.inner_pad, c.num_heads * s.head_pad),
            "eps": c.rms_norm_eps,
            # log2(e): the kernels use powers of two
            "query_scale": np.log2(np.e) / np.sqrt(c.head_dim),
        }.items():
            f[name] = value

    def forward(self, segments: Sequence[Segment]) -> list[SegmentRows]:
        """See `exactspec.target.base.Target.forward`."""
        if not segments:
            return []
        with self._lock:
            layouts = lay_out(segments, self.vocab_size, self.max_length)
            return self._forward(layouts)

    def _forward(self, layouts: list[Layout]) -> list[SegmentRows]:
        c, f, sizes, scratch = self.config, self._frames, self.packed.sizes, self._scratch
        starts = np.cumsum([0] + [len(x.tokens) for x in layouts])
        rows = int(starts[-1])
        tokens = np.concatenate([x.tokens for x in layouts])
        depths = np.concatenate([x.depths for x in layouts])
        want = np.concatenate([x.want for x in layouts])
        row_segment = np.repeat(np.arange(len(layouts)), np.diff(starts))
        group = c.num_heads // c.num_kv_heads
        table = np.zeros((len(layouts), len(SEGMENT_FIELDS)), dtype=np.int64)
        tasks, tail = 0, CHUNK
        longest = 0
        for i, x in enumerate(layouts):
            n = len(x.tokens)
            pages = x.cache.stage(x.parents)
            blocks = -(-n * group // BLOCK)
            paths = (_address(x.paths), x.paths.shape[1]) if x.paths is not None else (0, 0)
            table[i] = (_address(pages), x.cache.length, starts[i], n, *paths, tasks, blocks)
            tasks += c.num_kv_heads * blocks
            longest = max(longest, x.cache.length + int(x.depths.max()) + 1)
            if x.paths is not None:
                tail = max(tail, (n + 2 * CHUNK - 2) // CHUNK * CHUNK)
        self._rope.cover(longest)
        asked_rows = np.flatnonzero(want > Want.NONE)
        asked = len(asked_rows)
        asked_count = np.where(want[asked_rows] >= Want.TOPK, TOP_K, 1)
        full = want[asked_rows] >= Want.LOGITS
        logits_slot = np.where(full, np.cumsum(full) - 1, -1)
        logits = scratch.get("logits", np.float32, (int(full.sum()), sizes.vocab_pad))
        threads = self.threads
        private = private_bytes(rows, sizes.head_pad, tail, BLOCK, CHUNK)
        best_value = scratch.get("best_value", np.float32, (threads, asked, TOP_K))
        best_id = scratch.get("best_id", np.int64, (threads, asked, TOP_K))
        normed = scratch.get("normed", np.float32, (rows, sizes.width_pad))
        attended = c.num_heads * sizes.head_pad
        for name, value in {
            "rows": rows,
            "tokens": _address(tokens),
            "depths": _address(depths),
            "row_segment": _address(row_segment),
            "segments": len(layouts),
            "segment_table": _address(table),
            "tasks": tasks,
            "asked": asked,
            "asked_rows": _address(asked_rows),
            "asked_count": _address(asked_count),
            "logits_slot": _address(logits_slot),
            "logits": _address(logits),
            "cos": _address(self._rope.cos),
            "sin": _address(self._rope.sin),
            "x": _address(scratch.get("x", np.float32, (rows, sizes.width_pad))),
            "normed": _address(normed),
            "q8": _address(scratch.get("q8", np.int8, (rows, int(f["q8_stride"][0])))),
            "scale": _address(scratch.get("scale", np.float32, (rows, self._groups))),
            "offset": _address(scratch.get("offset", np.int32, (rows, self._groups))),
            "queries": _address(scratch.get("queries", np.float32, (rows, attended))),
            "attended": _address(scratch.get("attended", np.float32, (rows, attended))),
            "inner": _address(scratch.get("inner", np.float32, (rows, sizes.inner_pad))),
            "private": _address(scratch.get("private", np.uint8, (threads, private))),
            "private_bytes": private,
            "tail_slots": tail,
            "best_value": _address(best_value),
            "best_id": _address(best_id),
        }.items():
            f[name] = value
        self._team.run()
        return self._results(layouts, starts, asked_rows, asked_count, logits_slot, logits, best_value, best_id, normed)

    def _results(
        self,
        layouts: list[Layout],
        starts: Any,
        asked_rows: Any,
        asked_count: Any,
        logits_slot: Any,
        logits: Any,
        best_value: Any,
        best_id: Any,
        normed: Any,
    ) -> list[SegmentRows]:
        rows = int(starts[-1])
        argmax = np.full(rows, -1, dtype=np.int64)
        argmax[asked_rows] = best_id[0, :, 0]
        topk_ids = np.zeros((rows, TOP_K), dtype=np.int64)
        topk_logits = np.zeros((rows, TOP_K), dtype=np.float32)
        topk_ids[asked_rows] = best_id[0]
        topk_logits[asked_rows] = best_value[0]
        slots = np.full(rows, -1, dtype=np.int64)
        slots[asked_rows] = logits_slot
        hidden = normed[:, : self.config.hidden_size]
        plain = logits[:, : self.vocab_size]
        return [
            SegmentRows(argmax[a:b], hidden[a:b], slots[a:b], plain, topk_ids[a:b], topk_logits[a:b])
            for a, b in pairwise(starts)
        ]


class Scratch:
    """Buffers that only grow; a view of the asked shape is handed out."""

    def __init__(self) -> None:
        self._buffers: dict[str, np.ndarray[Any, Any]] = {}

    def get(self, name: str, dtype: Any, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
        count = int(np.prod(shape))
        buffer = self._buffers.get(name)
        if buffer is None or len(buffer) < count:
            buffer = self._buffers[name] = np.zeros(max(count, 16), dtype=dtype)
        return buffer[:count].reshape(shape)

    @property
    def nbytes(self) -> int:
        return sum(b.nbytes for b in self._buffers.values())


def _address(array: np.ndarray[Any, Any]) -> int:
    return array.ctypes.data


def _layer_table(model: PackedModel) -> np.ndarray[Any, Any]:
    table = np.zeros((len(model.layers), len(LAYER_FIELDS)), dtype=np.int64)
    for i, x in enumerate(model.layers):
        arrays = (
            x.attn_norm, x.qkv.stored, x.qkv.scale, x.qkv_bias, x.o.stored, x.o.scale,
            x.mlp_norm, x.gate_up.stored, x.gate_up.scale, x.down.stored, x.down.scale,
        )  # fmt: skip
        table[i] = [_address(a) for a in arrays]
    return table


def identity_of(weights: str, cpu: CpuInfo, cache_dtype: str) -> str:
    """What equal bits are promised for. `weights`: SHA-256 of the weights file in hex, of which 16 digits are kept."""
    import llvmlite
    import numba

    from exactspec import __version__

    parts = (
        f"exactspec-{__version__}",
        f"numba-{numba.__version__}",
        f"llvmlite-{llvmlite.__version__}",
        f"numpy-{np.__version__}",  # sampling takes its exponentials
        f"{cpu.llvm_name}-{cpu.instruction_set}",
        f"cache-{cache_dtype}",
        f"int8-groups-{NORM_GROUP}-{ATTENDED_GROUP}-{INNER_GROUP}",
        weights[:16],
    )
    return "/".join(parts)
