"""Log-probabilities in the two forms of OpenAI's protocol; of the raw distribution, one entry for each token."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from exactspec.detokenize import Detokenizer
from exactspec.results import TokenInfo

Pieces: TypeAlias = Callable[[int], bytes]
"""The bytes of a token, b"" for those that stand for no text."""

NOTHING = -9999.0
"""For a probability of 0, as OpenAI writes it: JSON has no infinity."""


def number(logprob: float | None) -> float:
    return logprob if logprob is not None and math.isfinite(logprob) else NOTHING


def chat_form(tokens: Sequence[TokenInfo], pieces: Pieces) -> dict[str, Any]:
    """The ``logprobs`` of a chat choice or delta."""
    return {"content": [_entry(t, pieces) for t in tokens], "refusal": None}


def _entry(token: TokenInfo, pieces: Pieces) -> dict[str, Any]:
    top = [_one(id, logprob, pieces) for id, logprob in token.top]
    return _one(token.id, token.logprob, pieces) | {"top_logprobs": top}


def _one(id: int, logprob: float | None, pieces: Pieces) -> dict[str, Any]:
    data = pieces(id)
    return {"token": data.decode("utf-8", "replace"), "logprob": number(logprob), "bytes": list(data)}


class TextForm:
    """The ``logprobs`` of a completions choice, of its tokens in order. ``text_offset``: where in the text of all of
    them a token begins; one that goes on with a character of the token before, where that character stands."""

    __slots__ = ("_detokenizer", "_length", "_pieces")

    def __init__(self, pieces: Pieces) -> None:
        self._pieces = pieces
        self._detokenizer = Detokenizer()
        self._length = 0  # characters that are complete

    def show(self, tokens: Sequence[TokenInfo]) -> dict[str, Any]:
        offsets = []
        for token in tokens:
            offsets.append(self._length)
            self._length += len(self._detokenizer.push(self._pieces(token.id)))
        return {
            "tokens": [self._name(t.id) for t in tokens],
            "token_logprobs": [number(t.logprob) for t in tokens],
            "top_logprobs": [{self._name(id): number(lp) for id, lp in reversed(t.top)} for t in tokens],
            "text_offset": offsets,
        }

    def _name(self, id: int) -> str:
        """A token as a key: two that are parts of characters, or stand for no text, must not become one key."""
        data = self._pieces(id)
        try:
            return data.decode("utf-8") if data else f"token_id:{id}"
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)
