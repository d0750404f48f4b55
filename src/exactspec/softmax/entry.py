"""The compiled entry points, in float64. What a number becomes does not depend on its place, and sums have one order.

Multiplications and additions of the exponential may be fused, where the CPU can; it is part of a target's identity.
"""

from __future__ import annotations

import numba
import numpy as np

BLOCK = 256
"""Numbers worked on at a time; weights whose sum is one addend of the total."""

SHIFT = 6755399441055744.0
"""1.5 * 2**52: a number of less than 2**51 added to it leaves its nearest integer in the low bits."""

LOG2_E = 1.4426950408889634
LN2_HIGH = 0.6931471803691238
LN2_LOW = 1.9082149292705877e-10
"""ln 2 of 32 bits, so that its product with an integer of 11 bits is exact, and the rest (fdlibm's split)."""

LEAST = -708.0
"""Below it the exponential is taken to be 0: nearly the least whose result is no denormal number."""


@numba.njit(error_model="numpy", fastmath={"contract"})
def _exp_block(x, powers, bits):
    """exp(x) = 2**k exp(r), r = x - k ln 2 of at most 0.35; exp(r) by its series to the 13th power, in pairs."""
    n = len(x)
    for i in range(n):
        v = x[i] if x[i] > LEAST else LEAST
        shifted = v * LOG2_E + SHIFT
        powers[i] = shifted
        k = shifted - SHIFT
        r = (v - k * LN2_HIGH) - k * LN2_LOW
        r2 = r * r
        r4 = r2 * r2
        low = ((1.0 + r) + r2 * (0.5 + r * (1 / 6))) + r4 * ((1 / 24 + r * (1 / 120)) + r2 * (1 / 720 + r * (1 / 5040)))
        mid = (1 / 40320 + r * (1 / 362880)) + r2 * (1 / 3628800 + r * (1 / 39916800))
        high = 1 / 479001600 + r * (1 / 6227020800)
        x[i] = low + (r4 * r4) * (mid + r4 * high) if x[i] >= LEAST else 0.0
    for i in range(n):
        bits[i] = (bits[i] << 52) + (1023 << 52)
    for i in range(n):
        x[i] *= powers[i]


def exp(x):
    """Replace `x` [n], of numbers <= 0 or -inf, by their exponentials, to an ulp or two; 0 below `LEAST`."""
    bits = np.empty(BLOCK, dtype=np.int64)
    powers = bits.view(np.float64)
    for start in range(0, len(x), BLOCK):
        _exp_block(x[start : start + BLOCK], powers, bits)


@numba.njit(error_model="numpy")
def _sum(weights):
    """Eight sums side by side, then added in one order."""
    a = b = c = d = e = f = g = h = rest = 0.0
    whole = len(weights) // 8
    for j in range(whole):
        i = 8 * j
        a += weights[i]
        b += weights[i + 1]
        c += weights[i + 2]
        d += weights[i + 3]
        e += weights[i + 4]
        f += weights[i + 5]
        g += weights[i + 6]
        h += weights[i + 7]
    for i in range(8 * whole, len(weights)):
        rest += weights[i]
    return (((a + b) + (c + d)) + ((e + f) + (g + h))) + rest


def pick(weights, u):
    """The first id at which the weights so far [n], of finite sum, exceed ``u * total``; `u` in [0, 1). Sums go by
    blocks of `BLOCK`, and within one from its beginning. Never an id of weight 0; -1 where all are."""
    n = len(weights)
    total = 0.0
    last = 0  # the last block that holds anything
    for start in range(0, n, BLOCK):
        held = _sum(weights[start : start + BLOCK])
        if held > 0:
            last = start
        total += held
    wanted, below, start = u * total, 0.0, 0
    while start < last:
        held = _sum(weights[start : start + BLOCK])
        if below + held > wanted:
            break
        below += held
        start += BLOCK
    found = -1
    for i in range(start, min(start + BLOCK, n)):
        if weights[i] > 0:
            found = i  # rounding may leave the block's last one just short
            below += weights[i]
            if below > wanted:
                break
    return found
