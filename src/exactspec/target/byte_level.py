"""How tokens write bytes: the byte-level alphabet of GPT-2, and ``<0xNN>`` of SentencePiece."""

from __future__ import annotations

import re
from collections.abc import Mapping

from tokenizers import Tokenizer


def byte_alphabet() -> dict[str, int]:
    """Character -> byte, 256 entries: printable Latin-1 stands for itself, the others follow from U+0100 on.

    The table of GPT-2's ``bytes_to_unicode``.
    >>> byte_alphabet()["Ġ"]
    32
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    table = {chr(byte): byte for byte in printable}
    return table | {chr(256 + i): byte for i, byte in enumerate(others)}


def decode(text: str, alphabet: Mapping[str, int]) -> bytes:
    """Bytes of a byte-level token; a text outside the alphabet (an added token) stands for itself, in UTF-8."""
    try:
        return bytes([alphabet[character] for character in text])
    except KeyError:
        return encoded(text)


def encoded(text: str) -> bytes:
    """UTF-8 of a token's text; bytes that were no UTF-8 (kept as lone surrogates) come back as they were."""
    return text.encode("utf-8", "surrogateescape")


def byte_of(text: str) -> int | None:
    """The byte that a SentencePiece byte token names, or None: ``<0x0A>`` -> 10."""
    match = re.fullmatch(r"<0x([0-9A-Fa-f]{2})>", text)
    return None if match is None else int(match[1], 16)


class BpeEncoder:
    """An `Encoder` over a ``tokenizers.Tokenizer`` that holds no special tokens.

    `inner`: the tokenizer for pieces that do not start the text, where it differs. `spells`: whether its tokens spell
    the normalised text.
    """

    __slots__ = ("_first", "_inner", "_spells")

    def __init__(self, first: Tokenizer, inner: Tokenizer | None = None, *, spells: bool) -> None:
        self._first, self._inner, self._spells = first, first if inner is None else inner, spells

    def __call__(self, text: str, *, first: bool, at_most: int | None = None) -> list[int]:
        tokenizer = self._first if first else self._inner
        return list(tokenizer.encode(text, add_special_tokens=False).ids)

    def spelled(self, text: str) -> str | None:
        if not self._spells:
            return None
        normalizer = self._first.normalizer
        if normalizer is not None and not text.isascii():  # which the normalizers of those that spell only add to
            text = normalizer.normalize_str(text)
        return text.replace("\u2581", " ")  # as `piece` has it
