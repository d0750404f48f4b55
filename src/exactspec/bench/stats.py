"""Statistics of paired measurements: ratios of times, with bootstrap intervals over prompts and their rounds."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

RESAMPLES = 2000
CONFIDENCE = 0.95
_SEED = 20240917  # fixed, so that a table made twice from the same lines is the same

Array = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True, slots=True)
class Interval:
    """A bootstrap interval (percentile, `CONFIDENCE`)."""

    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Ratios:
    """Speed-ups of an arm over its baseline; above 1 the arm is faster.

    `median` of the pairs' ratios, `low` and `high` its interval. Two other readings, which long and short prompts
    weigh differently: `ratio_of_totals` (all baseline time / all arm time) and `mean_of_ratios` (of the prompts, each
    with the median of its rounds), with their intervals `totals` and `mean`.
    """

    pairs: int
    prompts: int
    median: float
    low: float
    high: float
    ratio_of_totals: float
    mean_of_ratios: float
    totals: Interval
    mean: Interval


def paired_ratios(
    baseline: Sequence[float], arm: Sequence[float], *, prompts: Sequence[Hashable] | None = None
) -> Ratios:
    """Ratios baseline[i] / arm[i] of two lists of times, pair by pair, each pair of the same work.

    `prompts`: of each pair, whose repetitions are no independent evidence: the bootstrap draws prompts, and of each
    as many of its rounds as it has. None: every pair is a prompt of its own.
    Raises ValueError on no pairs, unequal lengths, or a time that is not positive.

    >>> found = paired_ratios([2.0, 9.0], [1.0, 3.0])
    >>> found.mean_of_ratios, found.ratio_of_totals
    (2.5, 2.75)
    """
    if len(baseline) != len(arm) or not baseline or (prompts is not None and len(prompts) != len(arm)):
        raise ValueError(f"pairs are needed: got {len(baseline)} baseline and {len(arm)} arm times")
    times = np.array([baseline, arm], dtype=np.float64)
    if not (np.isfinite(times).all() and (times > 0).all()):
        raise ValueError("times must be positive and finite")
    of_prompt: dict[Hashable, list[int]] = {}
    for i, prompt in enumerate(range(len(arm)) if prompts is None else prompts):
        of_prompt.setdefault(prompt, []).append(i)
    groups = list(of_prompt.values())
    counts = np.array([len(group) for group in groups])
    table = np.zeros((len(groups), counts.max()), dtype=np.int64)  # [prompt, round] -> pair
    for row, group in zip(table, groups, strict=True):
        row[: len(group)] = group
    rng = np.random.default_rng(_SEED)
    drawn_prompts = rng.integers(0, len(groups), size=(RESAMPLES, len(groups)))
    of_each = counts[drawn_prompts][:, :, None]
    drawn_rounds = (rng.random((*drawn_prompts.shape, counts.max())) * of_each).astype(np.int64)
    chosen = table[drawn_prompts[:, :, None], drawn_rounds]  # [resample, prompt, round] -> pair
    there = np.arange(counts.max()) < of_each
    ratios = times[0] / times[1]
    drawn = np.where(there, ratios[chosen], np.nan)
    base, other = (np.where(there, t[chosen], 0.0).sum(axis=(1, 2)) for t in times)
    median = _interval(np.nanmedian(drawn.reshape(RESAMPLES, -1), axis=1))
    return Ratios(
        pairs=len(ratios),
        prompts=len(groups),
        median=float(np.median(ratios)),
        low=median.low,
        high=median.high,
        ratio_of_totals=float(times[0].sum() / times[1].sum()),
        mean_of_ratios=float(np.mean([np.median(ratios[group]) for group in groups])),
        totals=_interval(base / other),
        mean=_interval(np.nanmedian(drawn, axis=2).mean(axis=1)),
    )


def _interval(values: Array) -> Interval:
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(values, [tail, 1 - tail])
    return Interval(float(low), float(high))
