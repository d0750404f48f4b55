"""The exact target: a decoder on the CPU whose rows do not depend, to the bit, on how they are grouped.

int8 products summed in int32 (kernels.products), attention in fixed chunks by logical position
(kernels.attention), everything else row by row (kernels.rows). Equal bits are promised for one `identity`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from exactspec.target.base import FloatArray, Segment, SegmentRows, Want
from exactspec.target.cache import ExactCache, PageShape
from exactspec.target.cache_types import DEFAULT_CACHE_DTYPE, cache_type
from exactspec.target.calibrate import ROWS, calibrate, calibration_tokens
from exactspec.target.cpu import CpuInfo, describe_cpu
from exactspec.target.kept_flags import calibration_key, kept_flags
from exactspec.target.kernels.compile import load_kernels
from exactspec.target.kernels.float_tile import BLOCK
from exactspec.target.kernels.frame import CALL_FIELDS, FRAME, MODEL_FIELDS, SEGMENT_FIELDS, private_bytes
from exactspec.target.kernels.isa import SHAPES
from exactspec.target.kernels.nibbles import BLOCK as INPUTS
from exactspec.target.kernels.pages import CHUNK
from exactspec.target.kernels.sync import MAX_THREADS
from exactspec.target.model_frame import TOP_K, layer_table, set_flags, set_model
from exactspec.target.packed_source import load_packed
from exactspec.target.precision import ACCURACIES, NARROW_GROUP, WIDE_GROUP, Wide
from exactspec.target.rope import RopeTable
from exactspec.target.scratch import Scratch
from exactspec.target.segments import Layout, lay_out
from exactspec.target.tasks import cut, most_pairs
from exactspec.target.team import Team
from exactspec.target.weights import WeightSource

TOPK, LOGITS = int(Want.TOPK), int(Want.LOGITS)


class ExactTarget:
    """A `Target` with the exact promise. One forward at a time (it holds its own lock).

    `threads`: threads of a forward (default: all cores this process may use); they never change a bit.
    `context`: longest context in tokens (default: what the file states). `cache_dtype`: of keys and values,
    "bfloat16", "float32" or "int8" (see cache_types).
    `accuracy`: one of `precision.ACCURACIES` (default: what costs this CPU nothing, or little).
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
        cache_dtype: str = DEFAULT_CACHE_DTYPE,
        accuracy: str | None = None,
        progress: Callable[[str], None] | None = None,
        cpu: CpuInfo | None = None,
        home: Path | None = None,
    ) -> None:
        cache_type(cache_dtype)  # refused before anything is compiled
        if accuracy is not None and accuracy not in ACCURACIES:
            raise ValueError(f"accuracy must be one of {', '.join(ACCURACIES)}, got {accuracy!r}")
        config = source.config
        if threads is not None and not 1 <= threads <= MAX_THREADS:
            raise ValueError(f"threads must be in [1, {MAX_THREADS}], got {threads}")
        if context is not None and context < 1:
            raise ValueError(f"context must be at least 1 token, got {context}")
        self.config = config
        self.sha256 = source.sha256
        self.cpu = describe_cpu() if cpu is None else cpu
        self.max_length = config.max_position if context is None else min(context, config.max_position)
        self.threads = min(self.cpu.threads, MAX_THREADS) if threads is None else threads
        kernels = load_kernels(self.cpu, home=home, progress=progress)
        self.packing = kernels.packing
        self.packed = load_packed(source, kernels.packing, self.threads, progress=progress)
        self.accuracy = default_accuracy(self.cpu) if accuracy is None else accuracy
        self.wide = Wide.everywhere(config.num_layers, self.accuracy == "wide")
        self._lock = threading.Lock()
        self._rope = RopeTable(config, self.packed.sizes.half_pad)
        local = config.rope_tables is not None and any(config.rope_tables)
        self._local_rope = RopeTable(config, self.packed.sizes.half_pad, 1) if local else self._rope
        self._frames = np.zeros(1, dtype=FRAME)
        self._team = Team(kernels.serve, self._frames, self.threads)
        self._layer_table = layer_table(self.packed, self.wide)
        self._scratch = Scratch()
        self._page_shape = PageShape(config.num_layers, config.num_kv_heads, self.packed.sizes.head_pad, cache_dtype)
        sizes = self.packed.sizes
        self._widest = max(sizes.width_pad, sizes.inner_pad, config.num_heads * sizes.head_pad)
        self._groups, self._blocks = -(-self._widest // NARROW_GROUP), -(-self._widest // INPUTS)
        self._group = config.num_heads // config.num_kv_heads
        first = len(MODEL_FIELDS)
        self._call = self._frames.view(np.uint8)[8 * first : 8 * (first + len(CALL_FIELDS))].view(np.int64)
        set_model(self._frames, self.packed, self._layer_table, self._page_shape, self.wide, self._widest)
        if self.accuracy == "mixed":
            key = calibration_key(source.sha256, self.cpu, cache_dtype)
            self._set_wide(kept_flags(key, config.num_layers, self._calibrated, home=home, progress=progress))
        self.identity = identity_of(source.sha256, self.cpu, cache_dtype, self.accuracy, self.wide)

    @property
    def vocab_size(self) -> int:
        return self.config.vocab_size

    @property
    def weight_bytes(self) -> int:
        """Bytes of weights that a forward of one row reads: all matrices once, the embedding's one row aside."""
        return self.packed.nbytes - self.packed.embed_bytes

    @property
    def four_bit_shares(self) -> dict[int, float]:
        """See `PackedModel.four_bit_shares`."""
        return self.packed.four_bit_shares

    @property
    def page_shape(self) -> PageShape:
        """Size of a cache page (128 tokens)."""
        return self._page_shape

    def cache_bytes(self, tokens: int) -> int:
        """Bytes of a cache of that many tokens."""
        return -(-tokens // CHUNK) * self._page_shape.page_bytes

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

    def _set_wide(self, wide: Wide) -> None:
        self.wide = wide
        set_flags(self._frames, self._layer_table, wide)

    def _calibrated(self) -> Wide:
        tokens = calibration_tokens(self.vocab_size, min(ROWS, self.max_length))

        def logits(wide: Wide) -> FloatArray:
            self._set_wide(wide)
            (rows,) = self.forward([Segment.chain(self.new_cache(), tokens, Want.LOGITS)])
            return rows.logits

        return calibrate(self.config, logits)

    def forward(self, segments: Sequence[Segment]) -> list[SegmentRows]:
        """See `exactspec.target.base.Target.forward`."""
        if not segments:
            return []
        with self._lock:
            layouts = lay_out(segments, self.vocab_size, self.max_length, cache_type=ExactCache)
            return self._forward(layouts)

    def run_job(self, function: int, frame: np.ndarray[Any, Any]) -> None:
        """Run a compiled function (see `job` in kernels.frame) by this target's threads, between two forwards. `frame`
        [1]: its record, whose field `team` is set here. A drafter that is part of this target's step so needs no
        threads of its own, which would stand in the way of these."""
        with self._lock:
            frame["team"] = self._team.ready()
            self._frames["job"], self._frames["job_frame"] = function, frame.ctypes.data
            try:
                self._team.run()
            finally:
                self._frames["job"] = 0

    def last_rope(self, positions: int) -> tuple[int, int]:
        """Addresses of cos and sin, float32 [positions, half_pad], by which the last layer rotates; valid until the
        next forward."""
        tables = self.config.rope_tables
        return (self._local_rope if tables is not None and tables[-1] else self._rope).cover(positions)

    def _forward(self, layouts: list[Layout[ExactCache]]) -> list[SegmentRows]:
        """Write the frame, run it, read the results. In here every microsecond is paid at every step."""
        sizes, scratch = self.packed.sizes, self._scratch
        counts = [len(x.tokens) for x in layouts]
        rows = sum(counts)
        stride = len(SEGMENT_FIELDS)
        # All tables of this call in one block: tokens, depths, segment per row; asked rows, counts, slots; segments.
        ints = scratch.flat("ints", np.int64, 6 * rows + stride * len(layouts))
        at = scratch.address("ints", np.int64, 0)
        segments = 6 * rows
        start = 0
        tail = CHUNK
        wanted: list[int] = []
        lengths = [x.cache.length + x.depth + 1 for x in layouts]
        cuts, tasks, record_floats = cut(
            list(zip(counts, lengths, strict=True)),
            heads=self.config.num_heads,
            kv_heads=self.config.num_kv_heads,
            head_pad=sizes.head_pad,
            threads=self.threads,
        )
        records = scratch.address("records", np.float32, record_floats)
        for i, (x, n, part) in enumerate(zip(layouts, counts, cuts, strict=True)):
            end = start + n
            ints[start:end] = x.tokens
            ints[rows + start : rows + end] = x.depths
            ints[2 * rows + start : 2 * rows + end] = i
            wanted += x.want
            pages = x.cache.stage(x.parents)
            paths, path_stride = (0, 0) if x.paths is None else (_address(x.paths), x.paths.shape[1])
            entry = segments + stride * i
            shared = records + 4 * part.records if part.parts > 1 else 0
            ints[entry : entry + stride] = (
                pages, x.cache.length, start, n, paths, path_stride,
                part.first_task, part.blocks, part.parts, part.spans, shared,
            )  # fmt: skip
            if paths:
                tail = max(tail, (n + 2 * CHUNK - 2) // CHUNK * CHUNK)
            start = end
        cos, sin = self._rope.cover(max(lengths))
        local_cos, local_sin = self._local_rope.cover(max(lengths))
        asked = [(row, want) for row, want in enumerate(wanted) if want]
        slots = -1
        for i, (row, want) in enumerate(asked):
            full = want == LOGITS
            slots += full
            ints[3 * rows + i] = row
            ints[4 * rows + i] = TOP_K if want >= TOPK else 1
            ints[5 * rows + i] = slots if full else -1
        threads, count = self.threads, len(asked)
        private = private_bytes(rows, most_pairs(sizes.head_pad), sizes.head_pad, tail, BLOCK, CHUNK)
        attended = self.config.num_heads * sizes.head_pad
        int8 = self._page_shape.dtype == "int8"
        fresh = rows * 2 * self.config.num_kv_heads * sizes.head_pad if int8 else 0
        address = scratch.address
        self._call[:] = (
            rows,
            len(layouts),
            tasks,
            int(record_floats > 0),
            count,
            at,
            at + 8 * rows,
            at + 16 * rows,
            at + 8 * segments,
            at + 24 * rows,
            at + 32 * rows,
            at + 40 * rows,
            address("logits", np.float32, (slots + 1) * sizes.vocab_pad),
            address("best_value", np.float32, threads * count * TOP_K),
            address("best_id", np.int64, threads * count * TOP_K),
            cos,
            sin,
            local_cos,
            local_sin,
            address("x", np.float32, rows * sizes.width_pad),
            address("normed", np.float32, rows * sizes.width_pad),
            address("activations", np.int8, 2 * rows * self._widest),
            address("scale", np.float32, rows * self._groups),
            address("offset", np.int32, rows * self._groups),
            address("block_activations", np.int8, rows * self._blocks * INPUTS),
            address("block_scale", np.float32, rows * self._blocks),
            address("block_sum", np.float32, rows * self._blocks),
            address("queries", np.float32, rows * attended),
            address("attended", np.float32, rows * attended),
            address("fresh", np.float32, fresh),
            address("inner", np.float32, rows * sizes.inner_pad),
            address("private", np.uint8, threads * private),
            private,
            tail,
        )
        self._team.run()
        return self._results(counts, count, slots + 1)

    def _results(self, counts: list[int], asked: int, slots: int) -> list[SegmentRows]:
        sizes, scratch, rows = self.packed.sizes, self._scratch, sum(counts)
        ints = scratch.flat("ints", np.int64, 0)
        at = ints[3 * rows : 3 * rows + asked]
        best_id = scratch.flat("best_id", np.int64, 0)[: asked * TOP_K].reshape(asked, TOP_K)
        best_value = scratch.flat("best_value", np.float32, 0)[: asked * TOP_K].reshape(asked, TOP_K)
        hidden = scratch.flat("normed", np.float32, 0)[: rows * sizes.width_pad].reshape(rows, sizes.width_pad)
        hidden = hidden[:, : self.config.hidden_size]
        logits = scratch.flat("logits", np.float32, 0)[: slots * sizes.vocab_pad].reshape(slots, sizes.vocab_pad)
        logits = logits[:, : self.vocab_size]
        if asked == rows:
            ids, values, index = best_id, best_value, ints[5 * rows : 6 * rows]
        else:
            ids = np.full((rows, TOP_K), -1, dtype=np.int64)
            values = np.zeros((rows, TOP_K), dtype=np.float32)
            index = np.full(rows, -1, dtype=np.int64)
            ids[at], values[at], index[at] = best_id, best_value, ints[5 * rows : 5 * rows + asked]
        results, start = [], 0
        for n in counts:
            part = slice(start, start + n)
            results.append(SegmentRows(ids[part, 0], hidden[part], index[part], logits, ids[part], values[part]))
            start += n
        return results


def _address(array: np.ndarray[Any, Any]) -> int:
    return array.ctypes.data


def default_accuracy(cpu: CpuInfo) -> str:
    """Wide activations where they take one product; where they take two, only as many as the model needs."""
    return "wide" if SHAPES[cpu.instruction_set].planes == 1 else "mixed"


def identity_of(weights: str, cpu: CpuInfo, cache_dtype: str, accuracy: str, wide: Wide | None = None) -> str:
    """What equal bits are promised for. `weights`: SHA-256 of the weights file in hex, of which 16 digits are kept.
    `wide`: the flags in use, which the mode "mixed" alone does not tell."""
    import llvmlite
    import numba

    from exactspec import __version__

    chosen = f"-{wide.digest}" if accuracy == "mixed" and wide is not None else ""
    parts = (
        f"exactspec-{__version__}",
        f"numba-{numba.__version__}",
        f"llvmlite-{llvmlite.__version__}",
        f"numpy-{np.__version__}",  # sampling takes its exponentials
        f"{cpu.llvm_name}-{cpu.instruction_set}",
        f"cache-{cache_dtype}",
        f"{accuracy}{chosen}-groups-{INPUTS}-{NARROW_GROUP}-{WIDE_GROUP}",
        weights[:16],
    )
    return "/".join(parts)
