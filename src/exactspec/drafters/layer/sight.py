"""What a row sees of the target's keys: all of them, or the first ones, the recent ones, and of the chunks between them
those that weigh most.

A chunk is 128 positions, a page of the cache. Its *summary* is the mean of its keys, so a query's product with it is
the mean of the query's scores over the chunk. The root's queries choose the chunks, anew at every tree: see
docs/longspec.md.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from exactspec.drafters.layer.kernels.frame import MOST_TOP
from exactspec.target.base import FloatArray
from exactspec.target.cache import ExactCache
from exactspec.target.kernels.pages import CHUNK

SINKS = 4
"""First keys of the target that every row sees, whatever lies between them and the recent ones."""


@dataclass(frozen=True, slots=True)
class Sight:
    """`recent`: how many of the target's last keys a row sees beside the first `SINKS`; None: all keys, as the paper
    does. `top`: how many chunks between them, those that weigh most. Raises ValueError where that is no sight."""

    recent: int | None
    top: int = 0

    def __post_init__(self) -> None:
        if self.recent is not None and self.recent < 1:
            raise ValueError(f"a layer sees at least 1 recent key of the target (or all: 0), got {self.recent}")
        if not 0 <= self.top <= MOST_TOP:
            raise ValueError(f"a layer sees 0 to {MOST_TOP} top chunks, got {self.top}")
        if self.top and self.recent is None:
            raise ValueError("top chunks are chosen from what is not seen: a layer that sees all keys has none")

    def fixed(self, n: int) -> list[tuple[int, int, int]]:
        """(chunk, first, end) of what is always seen of n keys: slots first .. end - 1 of each chunk.

        >>> Sight(130).fixed(400)
        [(0, 0, 4), (2, 14, 128), (3, 0, 16)]
        """
        if self.recent is None or n <= SINKS + self.recent:
            return _chunks(0, n)
        return _chunks(0, SINKS) + _chunks(n - self.recent, n)

    def between(self, n: int) -> list[tuple[int, int, int]]:
        """The same of what is not, as far as its chunks are full: what the top ones are chosen from.

        >>> Sight(130, top=1).between(400)
        [(0, 4, 128), (1, 0, 128), (2, 0, 14)]
        """
        if not self.top or self.recent is None or n <= SINKS + self.recent:
            return []
        return [piece for piece in _chunks(SINKS, n - self.recent) if piece[0] < n // CHUNK]


def _chunks(start: int, stop: int) -> list[tuple[int, int, int]]:
    """(chunk, first, end) of the positions start .. stop - 1."""
    return [
        (chunk, max(0, start - chunk * CHUNK), min(CHUNK, stop - chunk * CHUNK))
        for chunk in range(start // CHUNK, -(-stop // CHUNK))
    ]


@dataclass(slots=True, eq=False)
class Summaries:
    """Of one request's full chunks, the first ones `known`: float32 [most, kv_heads, head_pad], allocated once. A row
    depends on its chunk's keys alone, so it is what a request that begins anew would make."""

    means: FloatArray
    known: int = 0

    @classmethod
    def empty(cls, most: int, kv_heads: int, head_pad: int) -> Summaries:
        return cls(np.zeros((most, kv_heads, head_pad), dtype=np.float32))

    def take_in(self, cache: ExactCache) -> None:
        """Those of chunks that became full. The first chunk's leaves out the keys that are seen anyway."""
        for at in range(self.known, cache.length // CHUNK):
            keys = cache.last_keys(at)
            self.means[at] = (keys if at else keys[:, SINKS:]).mean(axis=1)
        self.known = max(self.known, cache.length // CHUNK)

    def truncate(self, n: int) -> None:
        """Only the first n tokens stay what they were."""
        self.known = min(self.known, n // CHUNK)

    def fork(self) -> Summaries:
        return Summaries(self.means.copy(), self.known)


def pieces_at(
    pieces: list[tuple[int, int, int]], addresses: npt.NDArray[np.int64], inside: int
) -> npt.NDArray[np.int64]:
    """Pieces as the kernels read them, int64 [n, 3]: the address `inside` a chunk's page in place of its number."""
    rows = np.array(pieces, dtype=np.int64).reshape(-1, 3)
    rows[:, 0] = addresses[rows[:, 0]] + inside
    return rows
