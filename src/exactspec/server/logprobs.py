"""Log-probabilities in the two forms of OpenAI's protocol; of the raw distribution, one entry for each token."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

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


def text_form(tokens: Sequence[TokenInfo], pieces: Pieces, *, offset: int) -> dict[str, Any]:
    """The ``logprobs`` of a completions choice. `offset`: characters of the choice's text before these tokens."""
    texts = [_name(pieces(t.id)) for t in tokens]
    offsets = []
    for token in tokens:
        offsets.append(offset)
        offset += len(token.text)
    return {
        "tokens": texts,
        "token_logprobs": [number(t.logprob) for t in tokens],
        "top_logprobs": [{_name(pieces(id)): number(lp) for id, lp in reversed(t.top)} for t in tokens],
        "text_offset": offsets,
    }


def _name(data: bytes) -> str:
    """A token as a key: two tokens that are parts of characters must not become one key."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)
