"""What the draft layer remembers of one request: own keys of a window in a ring, and the tokens not yet taken in.

All of it is allocated at the start, and its size does not depend on the context.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from exactspec.drafters.layer.kernels.frame import MOST_ROWS
from exactspec.drafters.layer.sight import Summaries
from exactspec.target.base import FloatArray
from exactspec.target.kernels.pages import CHUNK

ALIGNMENT = 64


@dataclass(frozen=True, slots=True)
class StateShape:
    """`ring`: slots, a multiple of 128 and at least 128 more than the window (see kernels.attend.ring_seen). `page`:
    bytes of 128 slots. `width`: of a feature; `width_pad`: its room. `summaries`: shape of those of the target's chunks
    (see `sight.Summaries`); no chunks where none are chosen."""

    ring: int
    page: int
    width: int
    width_pad: int
    summaries: tuple[int, int, int] = (0, 0, 0)

    @property
    def chunks(self) -> int:
        return self.ring // CHUNK


@dataclass(slots=True, eq=False)
class LayerState:
    """`length`: tokens of the history. The last `waiting` of them lie in `tokens` and `features` (row i: of position
    length - waiting + i), of which the first `done` are in the ring as well. The ring knows the positions from `low` on
    to those waiting. `recent`: ids by position, as the ring."""

    shape: StateShape
    pages: npt.NDArray[np.uint8]
    addresses: npt.NDArray[np.int64]
    tokens: npt.NDArray[np.int64]
    features: FloatArray
    recent: npt.NDArray[np.int64]
    summaries: Summaries
    length: int = 0
    waiting: int = 0
    done: int = 0
    low: int = 0
    high: int = field(default=0)
    """Length of the longest history there was: what may have been overwritten in the ring."""

    @classmethod
    def empty(cls, shape: StateShape) -> LayerState:
        pages, addresses = _pages(shape)
        return cls(
            shape,
            pages,
            addresses,
            np.zeros(MOST_ROWS, dtype=np.int64),
            np.zeros((MOST_ROWS, shape.width_pad), dtype=np.float32),
            np.zeros(shape.ring, dtype=np.int64),
            Summaries.empty(*shape.summaries),
        )

    @property
    def nbytes(self) -> int:
        arrays = (self.pages, self.addresses, self.tokens, self.features, self.recent, self.summaries.means)
        return sum(array.nbytes for array in arrays)

    @property
    def first(self) -> int:
        """Position of the first token waiting."""
        return self.length - self.waiting

    def room(self) -> int:
        """Tokens that can be appended; those that are in the ring make room."""
        return MOST_ROWS - (self.waiting - self.done)

    def append(self, token_ids: npt.NDArray[np.integer], features: FloatArray) -> None:
        """At most `room` tokens [n] behind the history, with their features [n, width]."""
        n, keep = len(token_ids), self.waiting - self.done
        if self.done:
            self.tokens[:keep] = self.tokens[self.done : self.waiting].copy()
            self.features[:keep] = self.features[self.done : self.waiting].copy()
        self.tokens[keep : keep + n] = token_ids
        self.features[keep : keep + n, : self.shape.width] = features
        self.recent[(self.length + np.arange(n)) % self.shape.ring] = token_ids
        self.waiting, self.done, self.length = keep + n, 0, self.length + n
        self.high = max(self.high, self.length)
        self.low = max(self.low, self.high - self.shape.ring)

    def skip(self, count: int) -> None:
        """`count` tokens are appended of which nothing will be known; so of nothing before them."""
        self.length += count
        self.high = max(self.high, self.length)
        self.low, self.waiting, self.done = self.length, 0, 0

    def taken(self) -> None:
        """All that was waiting is in the ring; the root stays at hand, for its pass."""
        last = self.waiting - 1
        self.tokens[0], self.features[0] = self.tokens[last], self.features[last]
        self.waiting = self.done = 1

    def truncate(self, n: int) -> None:
        """Forget all but the first n tokens. What the ring lost to later ones stays lost."""
        first = self.first
        self.waiting = max(0, n - first)
        self.done = min(self.done, self.waiting)
        self.length = n
        self.low = min(self.low, n)
        self.summaries.truncate(n)

    def recall(self) -> bool:
        """Bring the root back where a cut left nothing waiting; its feature is not known any more. False: neither is
        the root."""
        if self.waiting:
            return True
        at = self.length - 1
        if at < self.low:
            return False
        self.tokens[0], self.features[0] = self.recent[at % self.shape.ring], 0
        self.waiting, self.done = 1, 0
        return True

    def fork(self) -> LayerState:
        pages, addresses = _pages(self.shape)
        pages[:] = self.pages
        return LayerState(
            self.shape,
            pages,
            addresses,
            self.tokens.copy(),
            self.features.copy(),
            self.recent.copy(),
            self.summaries.fork(),
            self.length,
            self.waiting,
            self.done,
            self.low,
            self.high,
        )


def _pages(shape: StateShape) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """The ring's pages and one of a tree's, from zeros (a slot never written must be finite), and their addresses."""
    count = shape.chunks + 1
    raw = np.zeros(count * shape.page + ALIGNMENT, dtype=np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    pages = raw[start : start + count * shape.page]
    return pages, pages.ctypes.data + shape.page * np.arange(count, dtype=np.int64)
