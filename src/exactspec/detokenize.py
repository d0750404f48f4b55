"""Bytes of tokens to text, piece by piece, with characters never split."""

from __future__ import annotations

import codecs


class Detokenizer:
    """Incremental UTF-8: returns the characters that are complete, keeps the bytes of one that is not.

    Bytes that can never become a character turn into U+FFFD. A character still incomplete when the answer ends is
    dropped. Joined pieces therefore equal ``data.decode("utf-8", "replace")`` of all bytes without that last
    incomplete character, whatever the borders between tokens were.

    >>> d = Detokenizer()
    >>> d.push(b"na\\xc3"), d.push(b"\\xafve")
    ('na', 'ïve')
    """

    __slots__ = ("_decoder",)

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, data: bytes) -> str:
        """Characters that `data` completed; "" while inside one."""
        return self._decoder.decode(data)
