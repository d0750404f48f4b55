"""Do two tokenizers mean the same by the same ids?

Embedding tables of one family are padded to different sizes, so only ids that both have count, and of those only the
ones that both name: an id that stands for no text in one of them (padding, an unused place) differs from nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from exactspec.target.tokenizer import Tokenizer
from exactspec.target.tokenizer_file import TokenTable

Names: TypeAlias = Mapping[int, bytes]

_ROUNDS = 64  # of comparing whole tables again, behind places that differ in form but not in text


@dataclass(frozen=True, slots=True)
class Difference:
    """The first id whose texts differ, and the texts."""

    id: int
    one: bytes
    other: bytes

    def __str__(self) -> str:
        return f"id {self.id} is {_shown(self.one)} in one and {_shown(self.other)} in the other"


def control_names(tokenizer: Tokenizer) -> dict[int, bytes]:
    """Texts of the control tokens, by id; {} for a tokenizer that does not tell them."""
    return {
        control.id: control.text.encode("utf-8", "surrogateescape") for control in getattr(tokenizer, "controls", ())
    }


def first_difference(one: Tokenizer, other: Tokenizer) -> Difference | None:
    """The first id that the two name differently; None if there is none. Milliseconds where both come from files of
    one format, else about a microsecond an id up to the first difference."""
    n = min(one.vocab_size, other.vocab_size)
    a, b = (getattr(tokenizer, "table", None) for tokenizer in (one, other))
    names = control_names(one), control_names(other)
    at = 0
    if a is not None and b is not None and a.form == b.form:
        for _ in range(_ROUNDS):
            at = _first_unequal(a, b, at, n)
            if at == n:
                return None
            found = _compare(one, other, names, at)
            if found is not None:
                return found
            at += 1
    for token in range(at, n):
        found = _compare(one, other, names, token)
        if found is not None:
            return found
    return None


def _compare(one: Tokenizer, other: Tokenizer, names: tuple[Names, Names], token: int) -> Difference | None:
    left = one.token_bytes(token) or names[0].get(token, b"")
    right = other.token_bytes(token) or names[1].get(token, b"")
    return Difference(token, left, right) if left and right and left != right else None


def _first_unequal(a: TokenTable, b: TokenTable, start: int, stop: int) -> int:
    """The first id from `start` on whose kind or text, as the file has it, is not the same; `stop` if none is."""
    same = a.kinds[start:stop] == b.kinds[start:stop]
    base_a, base_b = (int(t.ends[start - 1]) if start else 0 for t in (a, b))
    ends_a, ends_b = a.ends[start:stop] - base_a, b.ends[start:stop] - base_b
    bad = np.flatnonzero(~same | (ends_a != ends_b))
    first = int(bad[0]) if len(bad) else stop - start
    length = int(ends_a[first - 1]) if first else 0
    texts = np.flatnonzero(a.texts[base_a : base_a + length] != b.texts[base_b : base_b + length])
    if len(texts):
        first = int(np.searchsorted(ends_a, texts[0], side="right"))
    return start + first


def _shown(text: bytes) -> str:
    return repr(text.decode("utf-8")) if _whole(text) else repr(text)


def _whole(text: bytes) -> bool:
    try:
        text.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True
