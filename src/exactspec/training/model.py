"""The draft layer in torch, over packed documents: no padding, all rows of a batch in one matrix.

Training imitates drafting at every row at once. Row q with lag l is a node l - 1 below the root, which is row
q - l + 1: it sees the target's keys up to q - l, the layer's keys of committed rows up to the root, and those of its
own ancestors, each computed with the lag that it had. Pass l works on all rows that can have lag l; see
docs/longspec.md for what one row computes, docs/training.md for the passes; `drafters.layer.reference` is the oracle.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from exactspec.drafters.layer.card import Card
from exactspec.drafters.layer.checkpoint import NORMS, Layer, matrix_shapes
from exactspec.target.rope import frequencies
from exactspec.target.weights import ModelConfig

_SMALL_OUTPUT = 0.1  # of an output projection's usual spread at the start


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """One document as the layer sees it, N rows in order, of which R are trained.

    `tokens` [N]; `features` [N, W]: the target's hidden state of each row; `keys`, `values` [Kt, N, Dt]: its last
    layer's, rotated to `positions` [N]. `trained` [R]: row numbers, ascending. `run` [R]: how many rows just before
    it are trained too, without a gap: a row can have lag l if run >= l - 1. `lag`: the passes that it takes part in.
    `ids` [R, k]: the target's best ids as places in the trimmed head, -1 for those outside; `weights` [R, k]: their
    probabilities, 0 for those outside. `best` [R]: place of its best id, or -1.
    """

    tokens: Tensor
    features: Tensor
    keys: Tensor
    values: Tensor
    positions: Tensor
    trained: Tensor
    run: Tensor
    lag: int
    ids: Tensor
    weights: Tensor
    best: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Pass:
    """What a pass gave: `lag`, `rows` [n]: which trained rows of all samples together, `logits` [n, H]."""

    lag: int
    rows: Tensor
    logits: Tensor


class DraftLayer(nn.Module):
    """`embed` [vocab, W], `head` [H, W]: of the target, with their factors; not trained. Parameters are named as the
    tensors of the file."""

    embed: Tensor
    head: Tensor
    feature: Tensor
    self_q: Tensor
    self_k: Tensor
    self_v: Tensor
    self_o: Tensor
    cross_q: Tensor
    cross_o: Tensor
    gate: Tensor
    up: Tensor
    down: Tensor
    self_norm: Tensor
    cross_norm: Tensor
    mlp_norm: Tensor
    final_norm: Tensor

    def __init__(self, card: Card, config: ModelConfig, embed: Tensor, head: Tensor, *, seed: int = 0) -> None:
        super().__init__()
        self.card = card
        generator = torch.Generator().manual_seed(seed)
        for name, shape in matrix_shapes(card).items():
            if name == "feature":
                matrix = torch.eye(shape[0])
            else:
                matrix = torch.randn(shape, generator=generator) / shape[1] ** 0.5
            if name in ("self_o", "cross_o", "down"):
                matrix = matrix * _SMALL_OUTPUT
            self.register_parameter(name, nn.Parameter(matrix))
        for name in NORMS:
            self.register_parameter(name, nn.Parameter(torch.ones(card.target.hidden_size)))
        self.register_buffer("embed", embed, persistent=False)
        self.register_buffer("head", head, persistent=False)
        size = card.sizes.head_dim
        own = 1.0 / card.rope_theta ** (np.arange(size // 2, dtype=np.float64) * 2 / size)
        last = 0 if config.rope_tables is None else config.rope_tables[-1]
        self._own_frequency = own
        self.cross_frequency = frequencies(config, last)
        self._cross_factor = config.rope_factor if last == 0 else 1.0

    def load(self, layer: Layer) -> None:
        with torch.no_grad():
            for name, values in (*layer.matrices.items(), *layer.norms.items()):
                self.get_parameter(name).copy_(torch.from_numpy(values))

    def to_layer(self, head_ids: np.ndarray) -> Layer:
        def array(name: str) -> np.ndarray:
            values: np.ndarray = self.get_parameter(name).detach().cpu().float().numpy()
            return values.copy()

        matrices = {name: array(name) for name in matrix_shapes(self.card)}
        return Layer(self.card, matrices, {name: array(name) for name in NORMS}, head_ids)

    # -- the passes -------------------------------------------------------------------------------------------------

    def forward(self, samples: Sequence[Sample], *, all_lags: bool = False) -> list[Pass]:
        """Logits of the passes. With "own" features a sample of lag j takes part in passes 1 .. j, with "verified" ones
        in pass j alone, or in all up to j with `all_lags`."""
        card = self.card
        own = card.draft_feature == "own"
        batch = _Batch.of(samples)
        e = card.embed_gain * functional.embedding(batch.tokens, self.embed)
        given = functional.linear(card.feature_gain * batch.features, self.feature)
        x = e + _shifted(given, batch.starts, 1)
        keys, values = self._own(x, batch.positions)
        passes: list[Pass] = []
        ancestors: list[tuple[Tensor, Tensor, Tensor]] = []  # per earlier lag from 2: keys, values, place of each row
        out = x[:0]
        place = batch.tokens  # of each row among those of the pass before
        for lag in range(1, max(batch.lags) + 1):
            trained = batch.with_lag(lag)  # places among the trained rows
            rows = batch.trained[trained]
            if lag == 1:
                inputs = x[rows]
            elif own:
                inputs = e[rows] + functional.linear(card.feature_gain * out[place[rows - 1]], self.feature)
            else:
                inputs = e[rows] + given[rows - lag]
            if lag > 1:
                k, v = self._own(inputs, batch.positions[rows])
                ancestors.append((k, v, _places(rows, len(batch.tokens))))
            asked = own or all_lags or any(sample.lag == lag for sample in samples)
            place = _places(rows, len(batch.tokens))
            if not asked:
                continue
            if not (own or all_lags):
                keep = batch.lag_of_row[rows] == lag
                trained, rows, inputs = trained[keep], rows[keep], inputs[keep]
            out = self._block(batch, inputs, rows, lag, keys, values, ancestors)
            passes.append(Pass(lag, trained, functional.linear(out, self.head)))
        return passes

    def _own(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values [n, Ks, D] of the layer's own attention."""
        a, s = self._norm(x, self.self_norm), self.card.sizes
        k = functional.linear(a, self.self_k).view(-1, s.kv_heads, s.head_dim)
        v = functional.linear(a, self.self_v).view(-1, s.kv_heads, s.head_dim)
        return rotate(k, positions, self._own_frequency), v

    def _block(
        self,
        batch: _Batch,
        x: Tensor,
        rows: Tensor,
        lag: int,
        keys: Tensor,
        values: Tensor,
        ancestors: Sequence[tuple[Tensor, Tensor, Tensor]],
    ) -> Tensor:
        """Outputs [n, W] of `rows` at one lag, after the final norm."""
        s, t = self.card.sizes, self.card.target
        positions = batch.positions[rows]
        q = functional.linear(self._norm(x, self.self_norm), self.self_q).view(-1, s.heads, s.head_dim)
        q = rotate(q, positions, self._own_frequency)
        near = [(k[at[rows - (lag - m)]], v[at[rows - (lag - m)]]) for m, (k, v, at) in enumerate(ancestors, 2)]
        seen = []
        for sample, (first, _), span in batch.by_sample(rows):
            local = rows[span] - first
            n = len(sample.tokens)
            at = torch.arange(n, device=x.device)
            newest = (local - (lag - 1))[:, None]
            # by position, so that shifted rows do not see the anchors through the window
            mask = (at <= newest) & (sample.positions > positions[span][:, None] - self.card.window)
            some = [(k[span], v[span]) for k, v in near]
            k1, v1 = keys[first : first + n], values[first : first + n]
            seen.append(_attend(q[span], k1.transpose(0, 1), v1.transpose(0, 1), mask, some))
        added = functional.linear(torch.cat(seen), self.self_o)
        q = functional.linear(self._norm(x + added, self.cross_norm), self.cross_q).view(-1, s.cross_heads, t.head_dim)
        q = rotate(q, positions, self.cross_frequency) * self._cross_factor
        seen = []
        for sample, (first, _), span in batch.by_sample(rows):
            local = rows[span] - first
            mask = torch.arange(len(sample.tokens), device=x.device) <= (local - lag)[:, None]
            seen.append(_attend(q[span], sample.keys, sample.values, mask, ()))
        added = added + functional.linear(torch.cat(seen), self.cross_o)
        d = self._norm(x + added, self.mlp_norm)
        inner = functional.silu(functional.linear(d, self.gate)) * functional.linear(d, self.up)
        return self._norm(added + functional.linear(inner, self.down), self.final_norm)

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return functional.rms_norm(x, (x.shape[-1],), weight, self.card.eps)


@dataclass(frozen=True, slots=True, eq=False)
class _Batch:
    """Rows of all samples one after another. `starts`: first row of each sample, and the end. `trained`: rows."""

    samples: Sequence[Sample]
    starts: list[int]
    tokens: Tensor
    features: Tensor
    positions: Tensor
    trained: Tensor
    run: Tensor
    lags: list[int]
    lag_of_row: Tensor

    @classmethod
    def of(cls, samples: Sequence[Sample]) -> _Batch:
        sizes = [len(sample.tokens) for sample in samples]
        starts = [0, *np.cumsum(sizes).tolist()]
        lags = [sample.lag for sample in samples]
        return cls(
            samples,
            starts,
            torch.cat([s.tokens for s in samples]),
            torch.cat([s.features for s in samples]),
            torch.cat([s.positions for s in samples]),
            torch.cat([s.trained + at for s, at in zip(samples, starts, strict=False)]),
            torch.cat([s.run for s in samples]),
            lags,
            torch.cat([torch.full_like(s.tokens, s.lag) for s in samples]),
        )

    def with_lag(self, lag: int) -> Tensor:
        """Places among the trained rows of those that can have a lag and are to have it."""
        return torch.nonzero((self.run >= lag - 1) & (self.lag_of_row[self.trained] >= lag)).flatten()

    def by_sample(self, rows: Tensor) -> list[tuple[Sample, tuple[int, int], slice]]:
        """Each sample that has some of `rows` (ascending), its first and last row, and which of `rows` are its own."""
        borders = torch.searchsorted(rows, torch.tensor(self.starts, device=rows.device)).tolist()
        return [
            (sample, (self.starts[i], self.starts[i + 1]), slice(borders[i], borders[i + 1]))
            for i, sample in enumerate(self.samples)
            if borders[i + 1] > borders[i]
        ]


def _shifted(x: Tensor, starts: Sequence[int], by: int) -> Tensor:
    """Row i of each sample takes row i - by of x; the first `by` rows are zeros."""
    moved = torch.roll(x, by, dims=0)
    fresh = torch.ones(len(x), 1, device=x.device, dtype=x.dtype)
    for start in starts[:-1]:
        fresh[start : start + by] = 0
    return moved * fresh


def _places(rows: Tensor, total: int) -> Tensor:
    """Place of each row number in `rows`; of others it is meaningless."""
    places = torch.zeros(total, dtype=torch.long, device=rows.device)
    places[rows] = torch.arange(len(rows), device=rows.device)
    return places


def rotate(x: Tensor, positions: Tensor, frequency: np.ndarray) -> Tensor:
    """x [n, heads, size] turned to its positions [n]; dimension d pairs with d + size / 2. Angles in float64: a late
    position times a frequency has more digits than float32."""
    angle = positions.double()[:, None] * torch.from_numpy(frequency).to(x.device)
    cos, sin = torch.cos(angle).to(x.dtype)[:, None], torch.sin(angle).to(x.dtype)[:, None]
    low, high = x.chunk(2, dim=-1)
    return torch.cat([low * cos - high * sin, high * cos + low * sin], dim=-1)


def _attend(q: Tensor, keys: Tensor, values: Tensor, mask: Tensor, others: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
    """q [n, heads, size] over keys [kv heads, m, size] where `mask` [n, m] allows, and over one key of its own for each
    entry of `others` [n, kv heads, size]. Rows that see nothing give zeros. Returns [n, heads * size]."""
    n, heads, size = q.shape
    kv = keys.shape[0]
    group = heads // kv
    q = q.view(n, kv, group, size).permute(1, 2, 0, 3) * size**-0.5  # [kv, group, n, size]
    scores = torch.matmul(q, keys[:, None].transpose(-1, -2)).masked_fill(~mask, -torch.inf)
    m = scores.shape[-1]
    if others:
        near = [(q * k.transpose(0, 1)[:, None]).sum(-1, keepdim=True) for k, _ in others]
        scores = torch.cat([scores, *near], dim=-1)
    else:
        nothing = ~mask.any(-1)
        if bool(nothing.any()):
            scores = scores.masked_fill(nothing[:, None], 0.0)
            weights = torch.softmax(scores, dim=-1).masked_fill(nothing[:, None], 0.0)
            return torch.matmul(weights, values[:, None]).permute(2, 0, 1, 3).reshape(n, heads * size)
    weights = torch.softmax(scores, dim=-1)
    seen = torch.matmul(weights[..., :m], values[:, None])
    for i, (_, v) in enumerate(others):
        seen = seen + weights[..., m + i : m + i + 1] * v.transpose(0, 1)[:, None]
    return seen.permute(2, 0, 1, 3).reshape(n, heads * size)


def draft_loss(passes: Sequence[Pass], samples: Sequence[Sample], *, soft: float) -> tuple[Tensor, int]:
    """Mean over all rows of all passes of ``soft`` times the cross entropy with the target's distribution plus the rest
    times that with its best id; ids outside the trimmed head add nothing. Also the number of rows."""
    ids, weights = torch.cat([s.ids for s in samples]), torch.cat([s.weights for s in samples])
    best = torch.cat([s.best for s in samples])
    total: Tensor | None = None
    count = 0
    for one in passes:
        if not len(one.rows):
            continue
        logs = torch.log_softmax(one.logits, dim=-1)
        picked = logs.gather(1, ids[one.rows].clamp(min=0))
        loss = -soft * (picked * weights[one.rows]).sum()
        hard = best[one.rows]
        loss = loss - (1 - soft) * (logs.gather(1, hard.clamp(min=0)[:, None])[:, 0] * (hard >= 0)).sum()
        total = loss if total is None else total + loss
        count += len(one.rows)
    if total is None:
        raise ValueError("no row of this batch is trained")
    return total / count, count
