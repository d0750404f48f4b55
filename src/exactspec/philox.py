"""Counter-based random numbers: the number for a token is a pure function of where the token stands.

Philox4x32-10 of Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC 2011). No state:
drafting, batching and the number of forwards cannot change a draw, and no global generator is touched.
"""

from __future__ import annotations

_MASK = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10


def philox4x32(counter: tuple[int, int, int, int], key: tuple[int, int]) -> tuple[int, int, int, int]:
    """Four random 32-bit words of a counter (four 32-bit words) and a key (two).

    >>> [f"{w:08x}" for w in philox4x32((0, 0, 0, 0), (0, 0))]
    ['6627e8d5', 'e169c58d', 'bc57ac4c', '9b00dbd8']
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        p0, p1 = _MULTIPLIERS[0] * c0, _MULTIPLIERS[1] * c2
        c0, c1, c2, c3 = (p1 >> 32) ^ c1 ^ k0, p1 & _MASK, (p0 >> 32) ^ c3 ^ k1, p0 & _MASK
        k0, k1 = (k0 + _WEYL[0]) & _MASK, (k1 + _WEYL[1]) & _MASK
    return c0, c1, c2, c3


def uniform(*, seed: int, choice: int, index: int) -> float:
    """A float in [0, 1), a multiple of 2**-53, for the token at `index` of the history (prompt + output, from 0).

    `seed` in [0, 2**64) is the key; `index` in [0, 2**64) and `choice` in [0, 2**32) are the counter, low word
    first. Raises ValueError on anything out of range.
    """
    if not (0 <= seed < 2**64 and 0 <= index < 2**64 and 0 <= choice < 2**32):
        raise ValueError(f"seed and index must be in [0, 2**64), choice in [0, 2**32); got {seed}, {index}, {choice}")
    high, low, _, _ = philox4x32((index & _MASK, index >> 32, choice, 0), (seed & _MASK, seed >> 32))
    return float(((high >> 5) << 26) | (low >> 6)) * 2.0**-53
