"""A conversation's ids across turns: the generated ids of earlier replies stay, whatever the template re-tokenises.

A chat template turns the text of an earlier reply into ids anew, and those may differ from the ids that the model
generated (the same text has many tokenisations). The cache holds the generated ones, so a re-templated prompt
would lose the shared prefix from there on. Here the generated ids are put back where this provably changes nothing
but the tokenisation: the bytes are the same, and the reply ends at a control token in both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from exactspec.prompts import common_prefix
from exactspec.target.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class _Turn:
    """`templated`, `used`: lengths of the prompt as the template gave it and as it was used. `reply`: the ids that
    make up exactly `text`, None where no such run exists."""

    templated: int
    used: int
    reply: tuple[int, ...] | None
    text: bytes


class Transcript:
    """The turns of one conversation. Holds ids only for the newest prompt: older ones are prefixes of it."""

    __slots__ = ("_templated", "_tokenizer", "_turns", "_used")

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._turns: list[_Turn] = []
        self._templated: list[int] = []
        self._used: list[int] = []

    def splice(self, templated: Sequence[int]) -> list[int]:
        """The prompt to use for `templated`: the same text and control tokens, with the generated ids of the newest
        turn that it goes on from. `templated` itself where no turn fits."""
        common = common_prefix(self._templated, templated)
        turn = next((t for t in reversed(self._turns) if t.templated <= common), None)
        if turn is None:
            return list(templated)
        head, rest = self._used[: turn.used], list(templated[turn.templated :])
        spliced = None if turn.reply is None else splice_reply(self._tokenizer, turn.reply, turn.text, rest)
        return head + (rest if spliced is None else spliced)

    def record(self, templated: Sequence[int], used: Sequence[int], reply: Sequence[int], text: str) -> None:
        """A turn ended: `used` is ``splice(templated)`` or `templated`, `reply` the generated ids, `text` what the
        caller was given of them (without the ending token or stop string)."""
        data = text.encode()
        common, in_use = common_prefix(self._templated, templated), common_prefix(self._used, used)
        self._turns = [
            t for t in self._turns if t.templated <= common and t.used <= in_use and t.templated < len(templated)
        ]
        self._turns.append(_Turn(len(templated), len(used), reply_ids(self._tokenizer, data, reply), data))
        self._templated, self._used = list(templated), list(used)

    def fork(self) -> Transcript:
        twin = Transcript(self._tokenizer)
        twin._turns = list(self._turns)
        twin._templated, twin._used = self._templated, self._used  # replaced, never changed in place
        return twin


def reply_ids(tokenizer: Tokenizer, text: bytes, reply: Sequence[int]) -> tuple[int, ...] | None:
    """The first of the ids `reply` that make up exactly `text`; None where no such run exists."""
    end = _end_of(tokenizer, text, reply)
    return None if end is None else tuple(reply[:end])


def splice_reply(tokenizer: Tokenizer, reply: Sequence[int], text: bytes, rest: Sequence[int]) -> list[int] | None:
    """`rest`, which is how a template goes on after the prompt of a reply, with the ids `reply` in place of its own for
    `text`. None if it does not begin with that text, or the text does not end at a control token."""
    end = _end_of(tokenizer, text, rest)
    if end is None or end == len(rest) or _bytes(tokenizer, rest[end]):
        return None
    return [*reply, *rest[end:]]


def _bytes(tokenizer: Tokenizer, token: int) -> bytes:
    return tokenizer.token_bytes(token) if token < tokenizer.vocab_size else b""


def _end_of(tokenizer: Tokenizer, data: bytes, ids: Sequence[int]) -> int | None:
    """How many of `ids` spell exactly `data` without a control token among them; None if none do."""
    at = 0
    for i, token in enumerate(ids):
        if at == len(data):
            return i
        piece = _bytes(tokenizer, token)
        if not piece or not data.startswith(piece, at):
            return None
        at += len(piece)
    return len(ids) if at == len(data) else None
