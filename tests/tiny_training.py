"""A tiny target with what training needs of it: features of a few texts, a layer, samples."""

from __future__ import annotations

import numpy as np
import torch
from scripted import ByteTokenizer
from tiny_layer import tiny_card
from tiny_weights import RandomWeights

from exactspec.drafters.layer.card import Card
from exactspec.target.exact import ExactTarget
from exactspec.training.capture import Text, capture_texts
from exactspec.training.model import DraftLayer
from exactspec.training.samples import Ids
from exactspec.training.shards import Document

SOURCE = RandomWeights()


def tiny_target() -> ExactTarget:
    return ExactTarget(RandomWeights(), threads=1)


def texts(count: int, *, length: int = 24, answer_from: int = 0, seed: int = 0) -> list[Text]:
    rng = np.random.default_rng(seed)
    made = []
    for i in range(count):
        answer = np.arange(length + i) >= answer_from
        made.append(Text(f"text:{i}", "text", rng.integers(0, 256, length + i).tolist(), answer))
    return made


def documents(count: int, **options: int) -> list[Document]:
    return list(capture_texts(tiny_target(), texts(count, **options)))


def tiny_draft_layer(card: Card | None = None, head_ids: Ids | None = None, **others: object) -> DraftLayer:
    card = tiny_card(SOURCE, **others) if card is None else card
    head_ids = np.arange(card.sizes.head) if head_ids is None else head_ids
    return DraftLayer(
        card,
        SOURCE.config,
        torch.from_numpy(SOURCE.matrix("embed")),
        torch.from_numpy(SOURCE.matrix("head")[head_ids]),
    )


__all__ = ["ByteTokenizer", "documents", "texts", "tiny_draft_layer", "tiny_target"]
