"""How far probabilities are to be believed before anything is known of a request; learned from there on.

Ratios of events seen to events expected, counted on stored answers of two small models (stories, explanations, lists,
code, letters) and on edits of Perl modules and C headers, smoothed by hand.
"""

from __future__ import annotations

import numpy as np

from exactspec.drafters.recycling.layout import BESIDE, HOPES, MAKERS, ORDERS, TRUSTS, VIEWS
from exactspec.target.base import FloatArray

# Misses of the base, by its own probability (rows), and by what the table says (columns): nothing; not that token;
# that token with a chance below 0.05, 0.2, 0.5, 0.8, and above.
_TRUSTS = (
    (1.00, 1.03, 1.00, 0.94, 0.85, 0.90, 0.85),
    (1.00, 1.04, 1.00, 1.00, 1.00, 0.95, 0.62),
    (1.10, 1.20, 1.00, 1.04, 1.10, 0.95, 0.60),
    (1.10, 1.40, 1.00, 1.30, 1.20, 1.00, 0.53),
    (1.00, 1.20, 1.00, 1.60, 1.40, 1.10, 0.35),
    (1.30, 1.30, 1.20, 1.80, 1.60, 0.90, 0.40),
    (1.00, 1.00, 1.00, 1.00, 1.20, 0.95, 0.25),
    (1.00, 1.00, 1.00, 1.00, 1.00, 1.20, 0.25),
)
# Hits of successors, by rank (rows) and by their chance (columns, to 0.01, 0.03, 0.08, 0.15, 0.3, 0.5, 0.7, 0.9, 1).
_ALONE_1 = (
    (1.00, 1.00, 1.00, 0.90, 0.50, 0.40, 0.35, 0.40, 0.60),
    (0.90, 0.70, 0.70, 0.50, 0.60, 0.60, 0.60, 0.60, 0.60),
    (0.80, 0.80, 0.60, 0.60, 0.70, 0.70, 0.70, 0.70, 0.70),
    (1.60, 0.90, 0.60, 0.70, 0.80, 0.80, 0.80, 0.80, 0.80),
)
_SOME_1 = (
    (1.00, 1.00, 1.00, 0.90, 0.60, 0.45, 0.45, 0.60, 0.75),
    (0.30, 0.40, 0.35, 0.25, 0.40, 0.30, 0.40, 0.40, 0.40),
    (0.70, 0.40, 0.45, 0.40, 0.40, 0.40, 0.40, 0.40, 0.40),
    (1.40, 0.65, 0.60, 0.45, 0.40, 0.40, 0.40, 0.40, 0.40),
)
_MUCH_1 = (
    (1.00, 1.00, 1.00, 0.90, 0.60, 0.60, 0.50, 0.70, 0.75),
    (0.40, 0.25, 0.30, 0.70, 0.70, 0.80, 0.80, 0.80, 0.80),
    (1.20, 1.20, 1.00, 1.00, 0.60, 0.60, 0.60, 0.60, 0.60),
    (1.40, 0.90, 0.80, 0.90, 0.90, 0.90, 0.90, 0.90, 0.90),
)
_ALONE_2 = (
    (1.00, 1.00, 1.00, 0.60, 0.90, 0.95, 0.80, 0.80, 0.90),
    (2.00, 1.50, 0.95, 0.65, 0.68, 0.67, 0.70, 0.70, 0.70),
    (0.90, 1.20, 1.20, 0.80, 0.60, 0.60, 0.60, 0.60, 0.60),
    (2.50, 1.40, 1.00, 0.90, 0.90, 0.90, 0.90, 0.90, 0.90),
)
_SOME_2 = (
    (1.00, 1.00, 1.00, 0.70, 0.80, 0.65, 0.50, 0.60, 0.70),
    (0.30, 0.40, 0.30, 0.60, 0.90, 0.60, 0.60, 0.60, 0.60),
    (1.20, 0.40, 0.60, 0.35, 0.70, 0.70, 0.70, 0.70, 0.70),
    (1.10, 0.70, 0.70, 0.80, 0.70, 0.70, 0.70, 0.70, 0.70),
)
_MUCH_2 = (
    (1.00, 1.00, 1.00, 0.80, 0.90, 0.40, 0.50, 0.50, 0.80),
    (0.20, 0.20, 0.50, 0.85, 0.75, 0.50, 0.50, 0.50, 0.50),
    (0.60, 0.65, 0.90, 1.20, 1.20, 1.20, 1.20, 1.20, 1.20),
    (1.40, 1.10, 1.40, 0.80, 0.80, 0.80, 0.80, 0.80, 0.80),
)
_HOPES = ((_ALONE_1, _SOME_1, _MUCH_1), (_ALONE_2, _SOME_2, _MUCH_2))


def fresh_ratios() -> tuple[FloatArray, FloatArray]:
    """(trusts [MAKERS * TRUSTS * VIEWS, 3], hopes [HOPES + ORDERS * BESIDE, 3]) before anything was seen: cells of
    (seen, expected, prior ratio)."""
    trusts = np.zeros((MAKERS * TRUSTS * VIEWS, 3), dtype=np.float32)
    hopes = np.zeros((HOPES + ORDERS * BESIDE, 3), dtype=np.float32)
    trusts[:, 2] = np.tile(np.array(_TRUSTS, dtype=np.float32).ravel(), MAKERS)
    hopes[:, 2] = 1
    hopes[:HOPES, 2] = np.array(_HOPES, dtype=np.float32).ravel()
    return trusts, hopes
