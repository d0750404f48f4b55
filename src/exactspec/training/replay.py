"""Tau of drafted trees on held-out text, replayed through the reference drafter: what a card says of a layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from exactspec.drafters.layer.reference import Keys, ReferenceLayer
from exactspec.drafters.layer.reference_drafter import PAPER_WIDTHS, ReferenceDrafter, accepted
from exactspec.drafters.layer.tensor_file import from_bfloat16
from exactspec.training.shards import Document


@dataclass(frozen=True, slots=True)
class Replayed:
    """`tau`: tokens emitted a step, the target's own included. `by_kind` the same for each kind of prompt. `depths`:
    of the steps, the share whose accepted path was at least 1, 2, ... long."""

    tau: float
    by_kind: dict[str, float]
    depths: tuple[float, ...]
    steps: int


def replay(
    layer: ReferenceLayer,
    documents: Sequence[Document],
    *,
    nodes: int = 60,
    widths: Sequence[int] = PAPER_WIDTHS,
    most_tokens: int = 128,
) -> Replayed:
    """Draft the answers of greedy documents step by step, `most_tokens` of each. ValueError if there is none."""
    steps: dict[str, int] = {}
    tokens: dict[str, int] = {}
    reached = np.zeros(len(widths) + 1, dtype=np.int64)
    for document in documents:
        for first, last in _answers(document):
            last = min(last, first + most_tokens)
            for length in _steps(layer, document, first, last, nodes, widths):
                reached[: length + 1] += 1
                steps[document.kind] = steps.get(document.kind, 0) + 1
            tokens[document.kind] = tokens.get(document.kind, 0) + last - first
    total = sum(steps.values())
    if not total:
        raise ValueError("no document has an answer to draft")
    return Replayed(
        tau=round(sum(tokens.values()) / total, 4),
        by_kind={kind: round(tokens[kind] / steps[kind], 4) for kind in sorted(steps)},
        depths=tuple(round(float(count) / total, 4) for count in reached[1:]),
        steps=total,
    )


def _answers(document: Document) -> list[tuple[int, int]]:
    """(first, last + 1) of the trained rows of each answer; row 0 is no root."""
    rows = np.flatnonzero(document.trained)
    rows = rows[rows > 0]
    parts = np.split(rows, np.flatnonzero(np.diff(rows) != 1) + 1)
    return [(int(part[0]), int(part[-1]) + 1) for part in parts if len(part)]


def _steps(
    layer: ReferenceLayer, document: Document, first: int, last: int, nodes: int, widths: Sequence[int]
) -> list[int]:
    """Accepted nodes of each step over the roots `first` .. `last` - 1."""
    features = from_bfloat16(document.hidden[:last])
    keys, values = (from_bfloat16(part[:last]).transpose(1, 0, 2) for part in (document.keys, document.values))
    texts = np.append(document.tokens, document.after).astype(np.int64)
    drafter = ReferenceDrafter(layer, texts[: first + 1], features[:first])
    lengths = []
    root = first
    while root < last:
        cross = Keys(keys[:, :root], values[:, :root], np.arange(root))
        tree = drafter.propose(cross, widths=widths).best(nodes)
        length = min(len(accepted(tree, texts[root + 1 : last + 1])), last - root - 1)
        lengths.append(length)
        end = root + length + 1
        drafter.commit(texts[root + 1 : end + 1], features[root:end])
        root = end
    return lengths
