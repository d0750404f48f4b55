"""Acceptance on held-out text that the target wrote greedily, by depth and by kind of prompt.

Chain drafts: the layer's first choice at each depth. A draft along the text's own tokens is the draft itself as long
as it is right, so the passes of training give every step that could have been at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from exactspec.training.model import DraftLayer
from exactspec.training.samples import Prepared, to_sample

_ROWS_AT_ONCE = 2048


@dataclass(frozen=True, slots=True)
class Acceptance:
    """`by_depth`: of the drafted tokens of depth 1, 2, ... below the root whose ancestors were right, the share that
    was. `tau`: tokens emitted a step, the target's own included, and `by_kind` the same for each kind of prompt."""

    by_depth: tuple[float, ...]
    tau: float
    by_kind: dict[str, float]
    tokens: int


@torch.no_grad()
def evaluate(layer: DraftLayer, documents: Sequence[Prepared], *, rows_at_once: int = _ROWS_AT_ONCE) -> Acceptance:
    """ValueError if there is nothing to evaluate on."""
    depth = layer.card.depth
    tried, right = np.zeros(depth, dtype=np.int64), np.zeros(depth, dtype=np.int64)
    steps: dict[str, int] = {}
    tokens: dict[str, int] = {}
    training = layer.training
    layer.eval()
    for group in _groups([p for p in documents if p.rows], rows_at_once):
        hits = _hits(layer, group)
        at = 0
        for prepared in group:
            part = hits[:, at : at + prepared.rows]
            at += prepared.rows
            emitted, count = _walk(part, prepared.run, tried, right)
            kind = prepared.document.kind
            steps[kind] = steps.get(kind, 0) + count
            tokens[kind] = tokens.get(kind, 0) + emitted
    layer.train(training)
    total = sum(steps.values())
    if not total:
        raise ValueError("no held-out document has a row to evaluate on")
    return Acceptance(
        by_depth=tuple(round(float(r) / max(1, int(t)), 4) for r, t in zip(right, tried, strict=True)),
        tau=round(sum(tokens.values()) / total, 4),
        by_kind={kind: round(tokens[kind] / steps[kind], 4) for kind in sorted(steps)},
        tokens=sum(tokens.values()),
    )


def _groups(documents: Sequence[Prepared], rows: int) -> list[list[Prepared]]:
    groups: list[list[Prepared]] = []
    count = rows
    for prepared in documents:
        if count >= rows:
            groups.append([])
            count = 0
        groups[-1].append(prepared)
        count += prepared.rows
    return groups


def _hits(layer: DraftLayer, group: Sequence[Prepared]) -> np.ndarray:
    """bool [depth, rows]: whether the layer's first choice for a row with lag d + 1 is the target's; False where a row
    cannot have that lag."""
    samples = [to_sample(prepared, layer, lag=layer.card.depth) for prepared in group]
    best = torch.cat([sample.best for sample in samples])
    hits = np.zeros((layer.card.depth, len(best)), dtype=bool)
    for one in layer(samples, all_lags=True):
        hits[one.lag - 1, one.rows.cpu().numpy()] = (one.logits.argmax(-1) == best[one.rows]).cpu().numpy()
    return hits


def _walk(hits: np.ndarray, run: np.ndarray, tried: np.ndarray, right: np.ndarray) -> tuple[int, int]:
    """Draft, accept, go on, along the rows of one document; adds to `tried` and `right`. Tokens and steps."""
    depth, rows = hits.shape
    root = tokens = steps = 0
    while root < rows:
        accepted = 0
        for d in range(depth):
            row = root + d
            if row >= rows or run[row] < d:  # the answer ends here, or another begins
                break
            tried[d] += 1
            if not hits[d, row]:
                break
            right[d] += 1
            accepted += 1
        emitted = 1 + accepted
        end = next((row for row in range(root + 1, min(rows, root + emitted)) if run[row] == 0), root + emitted)
        tokens += min(end, rows) - root
        steps += 1
        root = end
    return tokens, steps
