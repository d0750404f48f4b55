"""Texts through the exact target, with everything that training needs kept: the rows of many documents at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from exactspec.drafters.layer.tensor_file import to_bfloat16
from exactspec.target.base import Segment, SegmentRows, Want
from exactspec.target.cache import ExactCache
from exactspec.target.exact import ExactTarget
from exactspec.training.shards import Document


@dataclass(slots=True, eq=False)
class Capture:
    """One document on its way through the target. `tokens` that went through, and per call the rows' features."""

    cache: ExactCache
    tokens: list[int] = field(default_factory=list)
    _hidden: list[npt.NDArray[np.uint16]] = field(default_factory=list)
    _ids: list[npt.NDArray[np.int32]] = field(default_factory=list)
    _logits: list[npt.NDArray[np.float32]] = field(default_factory=list)

    def segment(self, tokens: Sequence[int], *, every_row: bool) -> Segment:
        """The next tokens as rows; the target's best ids are asked of the last row, or of every row."""
        return Segment.chain(self.cache, tokens, Want.TOPK, last_only=not every_row)

    def take(self, tokens: Sequence[int], rows: SegmentRows) -> None:
        """Commit the rows of a forward and keep copies of what they gave."""
        self.cache.keep(range(len(tokens)))
        self.tokens += tokens
        self._hidden.append(to_bfloat16(rows.hidden))
        self._ids.append(rows.topk_ids.astype(np.int32))
        self._logits.append(rows.topk_logits.astype(np.float32))

    def document(
        self, name: str, kind: str, *, greedy: bool, after: int, trained: npt.NDArray[np.uint8], head_dim: int
    ) -> Document:
        """`after`: the token after the last row. `trained` [m]: which rows are in the loss; those without best ids
        never are."""
        keys, values = self.cache.last_layer()
        half = keys.shape[-1] // 2
        places = np.concatenate([np.arange(head_dim // 2), half + np.arange(head_dim // 2)])
        ids = np.concatenate(self._ids)
        return Document(
            name=name,
            kind=kind,
            greedy=greedy,
            after=after,
            tokens=np.array(self.tokens, dtype=np.int32),
            trained=(trained.astype(bool) & (ids[:, 0] >= 0)).astype(np.uint8),
            hidden=np.concatenate(self._hidden),
            keys=to_bfloat16(keys[..., places].transpose(1, 0, 2)),
            values=to_bfloat16(values[..., :head_dim].transpose(1, 0, 2)),
            topk_ids=ids,
            topk_logits=np.concatenate(self._logits),
        )


@dataclass(frozen=True, slots=True, eq=False)
class Text:
    """A text as it is: `tokens` [n >= 2], and `answer` [n]: which tokens are to be drafted (None: all)."""

    name: str
    kind: str
    tokens: Sequence[int]
    answer: npt.NDArray[np.bool_] | None = None


def trained_rows(answer: npt.NDArray[np.bool_]) -> npt.NDArray[np.uint8]:
    """Which rows [n - 1] of a text of n tokens are in the loss: row q answers for token q + 1, so it is trained exactly
    if token q + 1 belongs to an answer. The last token is a label only, it needs no row.

    >>> trained_rows(np.array([False, False, True, True]))
    array([0, 1, 1], dtype=uint8)
    """
    return answer[1:].astype(np.uint8)


def capture_texts(target: ExactTarget, texts: Sequence[Text], *, rows_at_once: int = 512) -> Iterator[Document]:
    """The documents of texts, in order, each prefilled in chunks of `rows_at_once`."""
    for text in texts:
        capture = Capture(target.new_cache())
        row_tokens = list(text.tokens[:-1])
        for at in range(0, len(row_tokens), rows_at_once):
            part = row_tokens[at : at + rows_at_once]
            (rows,) = target.forward([capture.segment(part, every_row=True)])
            capture.take(part, rows)
        answer = np.ones(len(text.tokens), dtype=bool) if text.answer is None else text.answer
        yield capture.document(
            text.name,
            text.kind,
            greedy=False,
            after=int(text.tokens[-1]),
            trained=trained_rows(answer),
            head_dim=target.config.head_dim,
        )
