"""Which documents each step trains on: a function of the seed and of how far the run has come, so that a run that was
stopped goes on with the very sample it would have taken."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from exactspec.training.config import TrainConfig
from exactspec.training.model import DraftLayer, Sample
from exactspec.training.samples import Prepared, slice_of, to_sample

_UNSHIFTED = 0.5  # of samples, with anchor offsets: most texts are short, and drafting them must not suffer


@dataclass(slots=True)
class Place:
    """How far a run has come. `taken`: documents taken of each stream; `rows`: trained rows of each. Plain numbers,
    kept in checkpoints."""

    step: int = 0
    taken: list[int] = field(default_factory=lambda: [0, 0])
    rows: list[int] = field(default_factory=lambda: [0, 0])


@dataclass(frozen=True, slots=True, eq=False)
class Drawn:
    """One sample of a step, not yet made: what was drawn for it."""

    prepared: Prepared
    lag: int
    offset: int
    hidden_before: int

    def sample(self, layer: DraftLayer) -> Sample:
        return to_sample(self.prepared, layer, lag=self.lag, offset=self.offset, hidden_before=self.hidden_before)


class Batches:
    """`own`: documents that the target wrote, `corpus`: others; one of the two may be empty. Each is gone through in a
    new order every time. `longest`: positions that the target allows."""

    def __init__(
        self, own: Sequence[Prepared], corpus: Sequence[Prepared], config: TrainConfig, *, longest: int
    ) -> None:
        self._streams = [[p for p in own if p.rows], [p for p in corpus if p.rows]]
        if not any(self._streams):
            raise ValueError("no document has a row to train on")
        self._config, self._longest = config, longest
        self._orders: dict[tuple[int, int], np.ndarray] = {}

    def draw(self, place: Place) -> list[Drawn]:
        """The samples of step ``place.step``; moves `place` on to the next."""
        c = self._config
        rng = np.random.default_rng([c.seed, 1, place.step])
        shares = np.cumsum(c.lags) / sum(c.lags)
        drawn: list[Drawn] = []
        rows = 0
        while rows < c.batch:
            stream = self._next_stream(place)
            prepared = slice_of(self._document(stream, place.taken[stream]), rng, c.length)
            place.taken[stream] += 1
            place.rows[stream] += prepared.rows
            rows += prepared.rows
            n = len(prepared.document.tokens)
            lag = 1 + min(int(np.searchsorted(shares, rng.random(), side="right")), len(c.lags) - 1)
            shifted = c.anchor_offset and rng.random() >= _UNSHIFTED and self._longest > n
            offset = int(rng.integers(0, self._longest - n)) if shifted else 0
            hidden = int(rng.integers(1, n)) if rng.random() < c.feature_dropout else 0
            drawn.append(Drawn(prepared, lag, offset, hidden))
        place.step += 1
        return drawn

    def _next_stream(self, place: Place) -> int:
        own, corpus = self._streams
        if not own or not corpus:
            return 0 if own else 1
        return 0 if place.rows[0] <= self._config.self_share * sum(place.rows) else 1

    def _document(self, stream: int, number: int) -> Prepared:
        documents = self._streams[stream]
        epoch, at = divmod(number, len(documents))
        if (stream, epoch) not in self._orders:
            self._orders = {key: order for key, order in self._orders.items() if key[0] != stream}
            rng = np.random.default_rng([self._config.seed, 2, stream, epoch])
            self._orders[stream, epoch] = rng.permutation(len(documents))
        return documents[int(self._orders[stream, epoch][at])]
