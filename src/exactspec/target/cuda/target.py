"""The exact target on a GPU: a row's bits do not depend on how rows are grouped.

int8 products summed exactly by groups of inputs (kernels.products), attention in fixed chunks by logical position
(kernels.attention), everything else row by row (kernels.rows). Equal bits are promised for one `identity`, which names
the GPU and the versions of torch and triton; equality with the CPU's bits is not promised.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import torch

from exactspec.target.base import FloatArray, Segment, SegmentRows, Want
from exactspec.target.cuda.cache import CHUNK, CudaCache, PageShape
from exactspec.target.cuda.device import identity_of, open_device, read_bandwidth
from exactspec.target.cuda.forward import run_layers
from exactspec.target.cuda.launch import Launcher
from exactspec.target.cuda.rope import DeviceRope
from exactspec.target.cuda.tables import row_tables
from exactspec.target.cuda.weights import ATTENDED_GROUP, INNER_GROUP, NORM_GROUP, load_weights
from exactspec.target.segments import Layout, lay_out
from exactspec.target.weights import WeightSource

TOP_K = 8


class CudaTarget:
    """A `Target` with the exact promise. One forward at a time (it holds its own lock).

    `device`: "cuda", "cuda:N", or "cpu" under Triton's interpreter. `context`: longest context in tokens (default:
    what the file states). `progress`: called with one line when something takes long.
    Raises ValueError on options out of range, a device that cannot be used, or a family that runs on the CPU only.
    """

    top_k = TOP_K
    exact = True
    threads = 1  # of the CPU: one thread launches everything

    def __init__(
        self,
        source: WeightSource,
        *,
        device: str = "cuda",
        context: int | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> None:
        if context is not None and context < 1:
            raise ValueError(f"context must be at least 1 token, got {context}")
        config = source.config
        self.config = config
        self.device = open_device(device)
        self.max_length = config.max_position if context is None else min(context, config.max_position)
        if progress is not None:
            progress(f"quantising the weights for {self.device.name}")
        self._launcher = Launcher(self.device)
        with self._launcher.guard():
            self.weights = load_weights(source, self.device, self.max_length)
        self.identity = identity_of(source.sha256, self.device, (NORM_GROUP, ATTENDED_GROUP, INNER_GROUP))
        self._page_shape = PageShape(config.num_layers, config.num_kv_heads, self.weights.sizes.head)
        self._rope = DeviceRope(config, self.weights.sizes.half, self.device)
        self._lock = threading.Lock()

    @property
    def vocab_size(self) -> int:
        return self.config.vocab_size

    @property
    def weight_bytes(self) -> int:
        """Bytes of weights that a forward of one row reads."""
        return self.weights.forward_bytes

    def read_bandwidth(self) -> float:
        """GB/s that the device reads from its memory, measured."""
        return read_bandwidth(self.device)

    def cache_bytes(self, tokens: int) -> int:
        """Bytes of a cache of that many tokens, on the device."""
        return -(-tokens // CHUNK) * self._page_shape.floats * 4

    def new_cache(self) -> CudaCache:
        return CudaCache(self._page_shape, self.device, self._launcher)

    def close(self) -> None:
        """Nothing to end; memory is given back when the target and its caches are gone."""

    def forward(self, segments: Sequence[Segment]) -> list[SegmentRows]:
        """See `exactspec.target.base.Target.forward`."""
        if not segments:
            return []
        with self._lock:
            layouts = lay_out(segments, self.vocab_size, self.max_length, cache_type=CudaCache)
            with self._launcher.guard(), torch.inference_mode():
                return self._forward(layouts)

    def _forward(self, layouts: Sequence[Layout[CudaCache]]) -> list[SegmentRows]:
        wanted = [want for layout in layouts for want in layout.want]
        at = row_tables(layouts, self.device)
        cos, sin = self._rope.cover(at.longest)
        quantised, normed = run_layers(self._launcher, self.weights, at, cos, sin)
        rows = len(wanted)
        ids = np.full((rows, TOP_K), -1, dtype=np.int64)
        values = np.zeros((rows, TOP_K), dtype=np.float32)
        index = np.full(rows, -1, dtype=np.int64)
        logits: FloatArray = np.zeros((0, self.vocab_size), dtype=np.float32)
        asked = [row for row, want in enumerate(wanted) if want]
        if asked:
            head_rows = quantised if len(asked) == rows else quantised.take(self._numbers(asked))
            found = self._launcher.product(head_rows, self.weights.head)
            best_ids, best_values = self._launcher.best(found, self.vocab_size, TOP_K)
            ids[asked], values[asked] = best_ids.cpu().numpy(), best_values.cpu().numpy()
            full = [i for i, row in enumerate(asked) if wanted[row] == Want.LOGITS]
            if full:
                index[[asked[i] for i in full]] = np.arange(len(full))
                chosen = found if len(full) == len(asked) else found.index_select(0, self._numbers(full))
                logits = chosen[:, : self.vocab_size].cpu().numpy()
        hidden = normed[:, : self.config.hidden_size].cpu().numpy()
        return _split(layouts, ids, values, index, logits, hidden)

    def _numbers(self, rows: list[int]) -> torch.Tensor:
        return torch.tensor(rows, dtype=torch.int64, device=self.device.torch_device)


def _split(
    layouts: Sequence[Layout[CudaCache]],
    ids: npt.NDArray[np.int64],
    values: FloatArray,
    index: npt.NDArray[np.int64],
    logits: FloatArray,
    hidden: FloatArray,
) -> list[SegmentRows]:
    results, start = [], 0
    for layout in layouts:
        part = slice(start, start + len(layout.tokens))
        results.append(SegmentRows(ids[part, 0], hidden[part], index[part], logits, ids[part], values[part]))
        start = part.stop
    return results
