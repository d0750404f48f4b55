"""What counts as a prompt, and how it becomes ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias, TypeGuard

import numpy as np

from exactspec.target.tokenizer import Tokenizer, TooManyTokens

Message: TypeAlias = Mapping[str, Any]
Prompt: TypeAlias = str | Sequence[int] | Sequence[Message]
"""Text (plain completion), ids, or the messages of a conversation (through the chat template)."""

_MOST_ID = 2**63
_CHARACTERS = 16  # of a prediction, for each id of it that can be of use


def is_many(prompt: Any) -> bool:
    """True for a list of prompts: its first element is itself a text or a list."""
    return _is_list(prompt) and len(prompt) > 0 and (isinstance(prompt[0], str) or _is_list(prompt[0]))


def is_messages(prompt: Any) -> TypeGuard[Sequence[Message]]:
    """True for the messages of one conversation."""
    return _is_list(prompt) and len(prompt) > 0 and all(isinstance(m, Mapping) for m in prompt)


def encode_prompt(prompt: Prompt, tokenizer: Tokenizer, *, at_most: int | None = None) -> list[int]:
    """Ids of one prompt. Of more than `at_most`, `TooManyTokens` is raised, soon, however long it is.

    Text gets the BOS where the tokenizer has one; ids are taken as they are; messages go through the chat template,
    ready for the assistant's turn. Raises ValueError on an empty prompt and on anything that is no prompt.
    """
    if isinstance(prompt, str):
        first = [] if tokenizer.bos_id is None else [tokenizer.bos_id]
        try:
            ids = [*first, *tokenizer.encode(prompt, at_most=at_most)]
        except TooManyTokens as error:
            raise TooManyTokens(error.count + len(first), error.at_most, exact=error.exact) from None
    elif is_messages(prompt):
        ids = tokenizer.chat(prompt, at_most=at_most)
    elif _is_list(prompt) and all(_is_id(t) for t in prompt):
        ids = [int(t) for t in prompt]  # type: ignore[arg-type]
    else:
        raise ValueError(f"a prompt is a text, a list of token ids, or a list of messages, got {_describe(prompt)}")
    if not ids:
        raise ValueError("the prompt is empty: give at least one token")
    if at_most is not None and len(ids) > at_most:
        raise TooManyTokens(len(ids), at_most, exact=True)
    return ids


def encode_prediction(
    prediction: str | Sequence[int] | None, tokenizer: Tokenizer, *, at_most: int | None = None
) -> list[int]:
    """Ids of the text that the caller expects in the answer; it is only copied from, so any ids of 63 bits will do.

    `at_most`: more ids are of no use: of a text, at most 16 characters for each are looked at.
    """
    if prediction is None:
        return []
    if isinstance(prediction, str):
        return tokenizer.encode(prediction if at_most is None else prediction[: _CHARACTERS * at_most])[:at_most]
    if _is_list(prediction) and all(_is_id(t) for t in prediction):
        ids = [int(t) for t in prediction]
        large = next((t for t in ids if not 0 <= t < _MOST_ID), None)
        if large is not None:
            raise ValueError(f"prediction token {large} is no token id (0 to {_MOST_ID - 1})")
        return ids[:at_most]
    raise ValueError(f"prediction must be a text or a list of token ids, got {_describe(prediction)}")


def prompt_ids(prompt: Prompt, tokenizer: Tokenizer, *, vocab_size: int, max_length: int) -> list[int]:
    """Ids of one prompt that a model can take. Raises ValueError on what `encode_prompt` does, on an id outside the
    vocabulary and on a prompt longer than the context."""
    try:
        ids = encode_prompt(prompt, tokenizer, at_most=max_length)
    except TooManyTokens as error:
        raise ValueError(
            f"the prompt has {error.told} tokens but the context holds {max_length}: shorten it or raise the context"
        ) from None
    bad = next((t for t in ids if not 0 <= t < vocab_size), None)  # no array: an id may be too large for one
    if bad is not None:
        raise ValueError(f"prompt token {bad} is outside the vocabulary (0 to {vocab_size - 1})")
    return ids


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """Length of the longest common prefix.

    >>> common_prefix([1, 2, 3], [1, 2, 9, 3])
    2
    """
    n = min(len(a), len(b))
    differ = np.flatnonzero(np.array(a[:n], dtype=np.int64) != np.array(b[:n], dtype=np.int64))
    return int(differ[0]) if len(differ) else n


def _is_list(value: Any) -> bool:
    return isinstance(value, (Sequence, np.ndarray)) and not isinstance(value, (str, bytes, bytearray))


def _is_id(value: Any) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def _describe(value: Any) -> str:
    if _is_list(value) and len(value):
        kinds = sorted({type(v).__name__ for v in value})
        return f"a list of {', '.join(kinds)}"
    return type(value).__name__
