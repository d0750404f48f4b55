"""Launches of the kernels: block sizes, grids, outputs. Every option that could touch a bit is fixed here.

Multiply-adds are fused only where a kernel says so (``enable_fp_fusion=False``), so the compiler's choices cannot
differ between two tiles. Block sizes of kernels that sum floats depend on the model alone.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from exactspec.target.cuda.device import Device
from exactspec.target.cuda.kernels.attention import attend_span, merge_spans
from exactspec.target.cuda.kernels.best import best_of_block
from exactspec.target.cuda.kernels.place import move_slots, place_rows
from exactspec.target.cuda.kernels.products import grouped_product
from exactspec.target.cuda.kernels.rows import gate_quantise, norm_quantise, quantise
from exactspec.target.cuda.weights import Matrix

STEP = 32  # keys of one update of the softmax
SLICE = 16  # dimensions of a head added to the scores at a time
SPAN_CHUNKS = 4  # chunks of 128 keys whose sums are made apart from the others
PART_BYTES = 64 * 2**20  # of unmerged spans: bounds the rows that one launch of attention takes
# Work of one program where no sum depends on it:
VOCAB_BLOCK, VOCAB_ROWS = 1024, 4  # logits of a block, rows
GROUPS_AT_ONCE = 8  # groups of inputs
PLACED_AT_ONCE = 2048  # numbers of queries, keys and values


@dataclass(frozen=True, slots=True, eq=False)
class Quantised:
    """`q` int8 [rows, width], `scale` float32 [rows, width / group]."""

    q: Any
    scale: Any

    def take(self, rows: Any) -> Quantised:
        """The rows of these numbers (int64 [n], on the device)."""
        return Quantised(self.q.index_select(0, rows), self.scale.index_select(0, rows))


@dataclass(frozen=True, slots=True, eq=False)
class RowTables:
    """Where the rows of a forward stand; int64 tensors on the device, one entry a row unless stated.

    `tokens`. `positions`, `bases`: of the row and of its segment's root. `slots`: of its cache. `page_of_row`: address
    of the page of its slot. `pages`: addresses of all pages, a row's cache's from `page_at` on. `paths`: ancestors by
    depth, as row numbers of the segment, a row's from `path_at` on. `longest`: positions in use.
    """

    tokens: Any
    positions: Any
    bases: Any
    slots: Any
    page_of_row: Any
    page_at: Any
    path_at: Any
    pages: Any
    paths: Any
    longest: int


def next_power(n: int) -> int:
    return 1 << (n - 1).bit_length()


class Launcher:
    """Kernel launches on one device."""

    def __init__(self, device: Device) -> None:
        self._device = device

    def guard(self) -> AbstractContextManager[Any]:
        """The device as torch's and triton's current one."""
        return nullcontext() if self._device.interpreted else torch.cuda.device(self._device.torch_device)

    def empty(self, *shape: int, dtype: Any = torch.float32) -> Any:
        return torch.empty(shape, dtype=dtype, device=self._device.torch_device)

    def _quantised(self, rows: int, width: int, group: int) -> Quantised:
        return Quantised(self.empty(rows, width, dtype=torch.int8), self.empty(rows, width // group))

    def product(self, x: Quantised, matrix: Matrix, *, bias: Any = None, add_to: Any = None) -> Any:
        """float32 [rows, channels]: x times the matrix, with its bias, or added to `add_to` in place."""
        channels, width = matrix.q.shape
        rows = x.q.shape[0]
        out = self.empty(rows, channels) if add_to is None else add_to
        mode = 2 if add_to is not None else 0 if bias is None else 1
        # Integer sums are exact and each output is rounded on its own, so the tile may follow the number of rows. Small
        # ones spread few rows over many processors.
        high, wide = (16, 32) if rows <= 16 else (32, 64) if rows <= 32 else (64, 64)
        grid = (channels // wide, -(-rows // high))
        grouped_product[grid](
            x.q, x.scale, matrix.q, matrix.scale, matrix.scale if bias is None else bias, out, rows,
            WIDTH=width, CHANNELS=channels, GROUP=matrix.group, MODE=mode, TILE_ROWS=high, TILE_CHANNELS=wide,
            num_warps=4, num_stages=4, enable_fp_fusion=False,
        )  # fmt: skip
        return out

    def norm(self, x: Any, weight: Any, *, count: int, group: int, eps: float, keep: bool = False) -> tuple[Any, Any]:
        """RMS norm of rows [n, width] with `count` real values each: quantised, and as floats if `keep`."""
        rows, width = x.shape
        out = self._quantised(rows, width, group)
        normed = self.empty(rows, width) if keep else x
        norm_quantise[(rows,)](
            x, weight, normed, out.q, out.scale, eps,
            COUNT=count, WIDTH=width, GROUP=group, BLOCK=next_power(width), KEEP=keep,
            num_warps=4, enable_fp_fusion=False,
        )  # fmt: skip
        return out, normed

    def quantised(self, x: Any, width: int, group: int) -> Quantised:
        """Rows [n, count], padded with zeros to `width`."""
        rows, count = x.shape
        out, groups = self._quantised(rows, width, group), rows * width // group
        quantise[(-(-groups // GROUPS_AT_ONCE),)](
            x, out.q, out.scale, groups,
            COUNT=count, WIDTH=width, GROUP=group, TILE=GROUPS_AT_ONCE, num_warps=4, enable_fp_fusion=False,
        )  # fmt: skip
        return out

    def gate(self, gate_up: Any, group: int) -> Quantised:
        """silu(gate) * up of rows [n, 2 * width], quantised."""
        rows, width = gate_up.shape[0], gate_up.shape[1] // 2
        out, groups = self._quantised(rows, width, group), rows * width // group
        gate_quantise[(-(-groups // GROUPS_AT_ONCE),)](
            gate_up, out.q, out.scale, groups,
            WIDTH=width, GROUP=group, TILE=GROUPS_AT_ONCE, num_warps=4, enable_fp_fusion=False,
        )  # fmt: skip
        return out

    def place(
        self, qkv: Any, cos: Any, sin: Any, at: RowTables, *, layer: int, heads: int, kv_heads: int, head: int,
        chunk: int, query_scale: float,
    ) -> Any:  # fmt: skip
        """Rotate, store keys and values into the caches; queries float32 [rows, heads, head]."""
        rows, stride = qkv.shape
        queries = self.empty(rows, heads, head)
        tile = min(next_power(heads + 2 * kv_heads), PLACED_AT_ONCE // head)
        place_rows[(rows, -(-(heads + 2 * kv_heads) // tile))](
            qkv, cos, sin, at.positions, at.slots, at.page_of_row, queries, layer, query_scale,
            HEADS=heads, KV_HEADS=kv_heads, TILE=tile, HALF=head // 2, STRIDE=stride, CHUNK=chunk,
            num_warps=4, enable_fp_fusion=False,
        )  # fmt: skip
        return queries

    def attend(self, queries: Any, at: RowTables, *, layer: int, kv_heads: int, share: int, chunk: int) -> Any:
        """float32 [rows, heads * head]: every row over its own keys."""
        rows, heads, head = queries.shape
        spans = -(-at.longest // (SPAN_CHUNKS * chunk))
        slab = max(1, min(rows, PART_BYTES // (4 * kv_heads * spans * share * head)))
        part = self.empty(slab * kv_heads * spans * share * head)
        most, total = self.empty(slab * kv_heads * spans * share), self.empty(slab * kv_heads * spans * share)
        attended = self.empty(rows, heads * head)
        sizes = {
            "HEADS": heads, "KV_HEADS": kv_heads, "HEAD": head, "CHUNK": chunk, "SPAN_CHUNKS": SPAN_CHUNKS,
            "SHARE": share, "num_warps": 8, "num_stages": 1, "enable_fp_fusion": False,
        }  # fmt: skip
        for first in range(0, rows, slab):
            n = min(slab, rows - first)
            attend_span[(n, kv_heads, spans)](
                queries, at.positions, at.bases, at.path_at, at.paths, at.page_at, at.pages, part, most, total,
                first, layer, spans, STEP=STEP, SLICE=SLICE, **sizes,
            )  # fmt: skip
            merge_spans[(n, kv_heads)](part, most, total, at.positions, attended, first, spans, **sizes)
        return attended

    def best(self, logits: Any, vocab: int, top: int) -> tuple[Any, Any]:
        """The `top` best ids int64 [rows, top] of each row, highest first, and their logits."""
        rows, stride = logits.shape
        values, ids, count, named = logits, logits, vocab, False
        while True:
            blocks = -(-count // VOCAB_BLOCK)
            its_values = self.empty(rows, blocks * top)
            its_ids = self.empty(rows, blocks * top, dtype=torch.int64)
            best_of_block[(-(-rows // VOCAB_ROWS), blocks)](
                values, ids, its_values, its_ids, rows, stride, count,
                BLOCKS=blocks, TOP=top, NO_ID=vocab, NAMED=named, TILE_ROWS=VOCAB_ROWS, BLOCK=VOCAB_BLOCK, num_warps=4,
            )  # fmt: skip
            values, ids, count, stride, named = its_values, its_ids, blocks * top, blocks * top, True
            if blocks == 1:
                return ids, values

    def move_slots(self, table: Any, blocks: int, head: int, chunk: int) -> None:
        """Copy cache slots in order: see `kernels.place.move_slots`."""
        with self.guard():
            move_slots[(blocks,)](table, table.shape[0], HEAD=head, CHUNK=chunk, num_warps=1)


def reference_product(x: Quantised, matrix: Matrix) -> Any:
    """`Launcher.product` without bias by ``torch._int_mm``, a group at a time: what the kernel is tested against.

    The product wants more than 16 rows and sizes divisible by 8: rows are padded. The groups' sums are added as
    float64 products rounded to float32, which is what a fused multiply-add does but for double rounding.
    """
    rows, width = x.q.shape
    high = -(-max(rows, 17) // 8) * 8
    a = torch.zeros((high, width), dtype=torch.int8, device=x.q.device)
    a[:rows] = x.q
    total = torch.zeros((rows, matrix.q.shape[0]), dtype=torch.float32, device=x.q.device)
    for g in range(width // matrix.group):
        part = slice(g * matrix.group, (g + 1) * matrix.group)
        whole = torch._int_mm(a[:, part].contiguous(), matrix.q[:, part].t().contiguous())[:rows]
        total = (whole.double() * x.scale[:, g : g + 1].double() + total.double()).float()
    return total * matrix.scale
