"""A bound on the tokens of a text that costs next to nothing, for texts that are far too long to be encoded.

Every byte of a text lies in some token. If the longest token in which a byte value occurs has n bytes, each occurrence
accounts for at least 1/n of a token; the sum over the text is a lower bound of its tokens, whatever the rule by which
they are made. Byte values that are no token by themselves count nothing: an encoder may leave them out.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

_BLOCK = 1 << 20
_ROUNDING = 1e-9  # relative; a sum of 256 terms is far more exact


class FewestTokens:
    """`pieces`: the bytes of each token, b"" for those that stand for none. They must spell the text.

    >>> FewestTokens([b"a", b"b", b"aa"])(b"aaaab")
    3
    """

    __slots__ = ("_shares",)

    def __init__(self, pieces: Iterable[bytes]) -> None:
        longest, alone = [0] * 256, [False] * 256
        for piece in pieces:
            size = len(piece)
            for byte in piece:
                if longest[byte] < size:
                    longest[byte] = size
            if size == 1:
                alone[piece[0]] = True
        self._shares = np.array(
            [1 / n if n and by_itself else 0.0 for n, by_itself in zip(longest, alone, strict=True)]
        )

    def __call__(self, data: bytes) -> int:
        """No encoding of `data` has fewer tokens."""
        view = np.frombuffer(data, dtype=np.uint8)
        counts = np.zeros(256, dtype=np.int64)
        for at in range(0, len(view), _BLOCK):
            counts += np.bincount(view[at : at + _BLOCK], minlength=256)
        return int(np.ceil(float(counts @ self._shares) * (1 - _ROUNDING)))
