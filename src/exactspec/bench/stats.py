"""Statistics of paired measurements: ratios of times, with an interval for their median."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

RESAMPLES = 2000
CONFIDENCE = 0.95
_SEED = 20240917  # fixed, so that a table made twice from the same lines is the same


@dataclass(frozen=True, slots=True)
class Ratios:
    """Speed-ups of an arm over its baseline; above 1 the arm is faster.

    `median` of the pairs' ratios, `low` and `high` its bootstrap interval (percentile, `CONFIDENCE`). Two other
    readings, which long and short prompts weigh differently: `ratio_of_totals` (all baseline time / all arm time)
    and `mean_of_ratios`.
    """

    pairs: int
    median: float
    low: float
    high: float
    ratio_of_totals: float
    mean_of_ratios: float


def paired_ratios(baseline: Sequence[float], arm: Sequence[float]) -> Ratios:
    """Ratios baseline[i] / arm[i] of two lists of times, pair by pair, each pair of the same work.

    Raises ValueError on no pairs, unequal lengths, or a time that is not positive.

    >>> paired_ratios([2.0, 9.0], [1.0, 3.0]).mean_of_ratios, paired_ratios([2.0, 9.0], [1.0, 3.0]).ratio_of_totals
    (2.5, 2.75)
    """
    if len(baseline) != len(arm) or not baseline:
        raise ValueError(f"pairs are needed: got {len(baseline)} baseline and {len(arm)} arm times")
    times = np.array([baseline, arm], dtype=np.float64)
    if not (np.isfinite(times).all() and (times > 0).all()):
        raise ValueError("times must be positive and finite")
    ratios = times[0] / times[1]
    rng = np.random.default_rng(_SEED)
    picks = rng.integers(0, len(ratios), size=(RESAMPLES, len(ratios)))
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(np.median(ratios[picks], axis=1), [tail, 1 - tail])
    return Ratios(
        pairs=len(ratios),
        median=float(np.median(ratios)),
        low=float(low),
        high=float(high),
        ratio_of_totals=float(times[0].sum() / times[1].sum()),
        mean_of_ratios=float(ratios.mean()),
    )
