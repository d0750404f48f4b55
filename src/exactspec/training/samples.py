"""From documents on disk to samples of the layer: trimmed head, anchor-offset positions, lags, hidden features."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from exactspec.drafters.layer.tensor_file import from_bfloat16
from exactspec.training.model import DraftLayer, Sample, rotate
from exactspec.training.shards import Document

Ids: TypeAlias = npt.NDArray[np.int64]


def probabilities(document: Document) -> npt.NDArray[np.float32]:
    """The target's distribution over its best ids [m, k], which are taken to be all there is."""
    logits = document.topk_logits.astype(np.float32)
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    shares: npt.NDArray[np.float32] = (weights / weights.sum(axis=1, keepdims=True)).astype(np.float32)
    return shares


def choose_head(documents: Iterable[Document], vocab_size: int, size: int) -> Ids:
    """The `size` ids that the target says most often on trained rows, by summed probability, ascending. Ids never seen
    come last, lowest first."""
    mass = np.zeros(vocab_size, dtype=np.float64)
    for document in documents:
        rows = np.flatnonzero(document.trained)
        np.add.at(mass, document.topk_ids[rows], probabilities(document)[rows])
    best = np.argsort(-mass, kind="stable")[: min(size, vocab_size)]
    return np.sort(best).astype(np.int64)


def runs(trained: Ids) -> Ids:
    """For each of some ascending row numbers, how many of the rows just before it are among them without a gap.

    >>> runs(np.array([3, 4, 5, 9, 10]))
    array([0, 1, 2, 0, 1])
    """
    at = np.arange(len(trained))
    starts = np.flatnonzero(np.diff(trained, prepend=-2) != 1)
    first: Ids = at - starts[np.searchsorted(starts, at, side="right") - 1]
    return first


@dataclass(frozen=True, slots=True, eq=False)
class Prepared:
    """A document with what is the same in every epoch; arrays as of `Sample`. Hidden states and keys stay on disk."""

    document: Document
    trained: Ids
    run: Ids
    ids: Ids
    weights: npt.NDArray[np.float32]
    best: Ids

    @property
    def rows(self) -> int:
        return len(self.trained)


def prepare(document: Document, head_ids: Ids, *, labels: str = "target") -> Prepared:
    """Rows of a document as the trimmed head sees them. Row 0 is left out: nothing is known before it.

    `labels`: "target", the target's own distribution; "text", the token that follows in the text, with all the weight.
    """
    trained = np.flatnonzero(document.trained)
    trained = trained[trained > 0].astype(np.int64)
    if labels == "text":
        found = np.append(document.tokens[1:], document.after)[trained, None].astype(np.int64)
        shares = np.ones(found.shape, dtype=np.float32)
    else:
        found = document.topk_ids[trained].astype(np.int64)
        shares = probabilities(document)[trained]
    place = np.searchsorted(head_ids, found).clip(max=len(head_ids) - 1)
    inside = head_ids[place] == found
    weights = np.where(inside, shares, 0).astype(np.float32)
    ids = np.where(inside, place, -1)
    return Prepared(document, trained, runs(trained), ids, weights, ids[:, 0])


def slice_of(prepared: Prepared, rng: np.random.Generator, length: int) -> Prepared:
    """All of a document that has at most `length` rows trained, else `length` of them somewhere in it; what follows
    them is cut off, what is before stays."""
    if prepared.rows <= length:
        return prepared
    start = int(rng.integers(0, prepared.rows - length + 1))
    part = slice(start, start + length)
    end = int(prepared.trained[part][-1]) + 1
    d = prepared.document
    cut = replace(
        d,
        tokens=d.tokens[:end],
        hidden=d.hidden[:end],
        keys=d.keys[:end],
        values=d.values[:end],
    )
    trained = prepared.trained[part]
    return Prepared(cut, trained, runs(trained), prepared.ids[part], prepared.weights[part], prepared.best[part])


def to_sample(prepared: Prepared, layer: DraftLayer, *, lag: int, offset: int = 0, hidden_before: int = 0) -> Sample:
    """`offset`: added to all positions but the first `card.anchors`; the target's keys are turned to match.
    `hidden_before`: features of the rows before this one are zeros, as if not known."""
    d = prepared.document
    device = layer.embed.device
    n = len(d.tokens)
    positions = torch.arange(n, device=device)
    features = torch.from_numpy(from_bfloat16(d.hidden)).to(device)
    features[:hidden_before] = 0
    keys = torch.from_numpy(from_bfloat16(d.keys)).to(device)
    values = torch.from_numpy(from_bfloat16(d.values)).to(device)
    if offset:
        moved = torch.full((n,), offset, device=device)
        moved[: layer.card.anchors] = 0
        positions = positions + moved
        keys = rotate(keys, moved, layer.cross_frequency)
    return Sample(
        tokens=torch.from_numpy(d.tokens.astype(np.int64)).to(device),
        features=features,
        keys=keys.transpose(0, 1),
        values=values.transpose(0, 1),
        positions=positions,
        trained=torch.from_numpy(prepared.trained).to(device),
        run=torch.from_numpy(prepared.run).to(device),
        lag=lag,
        ids=torch.from_numpy(prepared.ids).to(device),
        weights=torch.from_numpy(prepared.weights).to(device),
        best=torch.from_numpy(prepared.best).to(device),
    )


def without_repeats(documents: Sequence[Document], held_out: Sequence[Document]) -> list[Document]:
    """Documents whose prompt (all before the first trained row) is no held-out document's, and whose tokens are not
    those of an earlier one."""

    def prompt(d: Document) -> bytes:
        rows = np.flatnonzero(d.trained)
        return d.tokens[: int(rows[0]) + 1 if len(rows) else 0].tobytes()

    # a document trained from its first rows on has no prompt: it is known by its tokens
    kept_out = {prompt(d) if int(d.trained[0]) == 0 else d.tokens.tobytes() for d in held_out}
    seen: set[bytes] = set()
    kept = []
    for d in documents:
        tokens = d.tokens.tobytes()
        if tokens in seen or tokens in kept_out or (int(d.trained[0]) == 0 and prompt(d) in kept_out):
            continue
        seen.add(tokens)
        kept.append(d)
    return kept
