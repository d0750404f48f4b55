"""Bytes of tokens to text, piece by piece, with characters never split."""

from __future__ import annotations


class Detokenizer:
    """Incremental UTF-8: returns the characters that are complete, keeps the bytes of one that is not.

    Bytes that can never become a character turn into U+FFFD. A character still incomplete when the answer ends is
    dropped. Joined pieces therefore equal ``data[: len(data) - incomplete_tail(data)].decode("utf-8", "replace")`` of
    all bytes, whatever the borders between tokens were. (The standard incremental decoder does not promise that: it
    also waits after the first two bytes of a surrogate, which no byte can complete.)

    >>> d = Detokenizer()
    >>> d.push(b"na\\xc3"), d.push(b"\\xafve")
    ('na', 'ïve')
    """

    __slots__ = ("_rest",)

    def __init__(self) -> None:
        self._rest = b""

    def push(self, data: bytes) -> str:
        """Characters that `data` completed; "" while inside one."""
        data = self._rest + data
        end = len(data) - incomplete_tail(data)
        self._rest = data[end:]
        return data[:end].decode("utf-8", "replace")


def incomplete_tail(data: bytes) -> int:
    """How many bytes at the end (0 to 3) begin a character that more bytes would complete.

    >>> incomplete_tail("é🧭".encode()[:-1]), incomplete_tail(b"\\xed\\xa0"), incomplete_tail("é".encode())
    (3, 0, 0)
    """
    for n in range(1, min(3, len(data)) + 1):
        lead = data[-n]
        if 0x80 <= lead <= 0xBF:  # inside a character: go on to its first byte
            continue
        if n >= _length(lead):
            return 0
        low, high = _second(lead)
        return n if n == 1 or low <= data[1 - n] <= high else 0
    return 0


def _length(lead: int) -> int:
    """Bytes of a character that starts with this byte; 1 for a byte that starts none (Unicode, table 3-7)."""
    if 0xC2 <= lead <= 0xDF:
        return 2
    if 0xE0 <= lead <= 0xEF:
        return 3
    return 4 if 0xF0 <= lead <= 0xF4 else 1


def _second(lead: int) -> tuple[int, int]:
    """First and last second byte that may follow `lead`: no overlong forms, no surrogates, nothing past U+10FFFF."""
    if lead == 0xE0:
        return 0xA0, 0xBF
    if lead == 0xED:
        return 0x80, 0x9F
    if lead == 0xF0:
        return 0x90, 0xBF
    return (0x80, 0x8F) if lead == 0xF4 else (0x80, 0xBF)
