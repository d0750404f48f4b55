"""A bar on how much faster one arm is than another, from the lines of a contest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

from exactspec.bench.bar import Bar
from exactspec.bench.report import Summary, summarise
from exactspec.bench.stats import Ratios
from exactspec.bench.store import Line

Reading: TypeAlias = Literal["median", "totals"]
"""Of which ratio: the median of the pairs', or of all baseline time to all of the arm's."""


def speed_up_bar(
    name: str,
    lines: Sequence[Line],
    *,
    arm: str,
    limit: float,
    baseline: str | None = None,
    reading: Reading = "median",
    same_tokens: bool = True,
    note: str = "",
) -> Bar:
    """`arm` to `baseline` (None: the lines' own) on lines of one workload, at least `limit`.

    A flagged pair fails the bar where the tokens must be the same. `note`: added to the detail.
    """
    found = [s for s in summarise(lines, merge_sizes=True, baseline=baseline) if s.arm == arm]
    if len(found) != 1:
        raise ValueError(f"{name}: {len(found)} workloads where one is looked at")
    (summary,) = found
    if summary.ratios is None:
        return Bar(name=name, value=0.0, limit=limit, unit="x", equal=False, detail="every pair was flagged")
    detail = [_told(summary, summary.ratios)]
    by_size = [s for s in summarise(lines, baseline=baseline) if s.arm == arm and s.ratios is not None]
    if len(by_size) > 1:
        detail.append(", ".join(f"size {s.size}: {_value(s, reading):.3f}" for s in by_size))
    others = [s for s in summarise(lines, merge_sizes=True, baseline=baseline) if s.arm != arm and s.ratios is not None]
    if others:
        detail.append(", ".join(f"{s.arm} {_value(s, reading):.2f}x" for s in others))
    equal = summary.equal and not summary.flagged if same_tokens else None
    return Bar(
        name=name,
        value=_value(summary, reading),
        limit=limit,
        unit="x",
        equal=equal,
        detail="; ".join([*detail, *([note] if note else [])]),
    )


def best_category_bar(name: str, lines: Sequence[Line], *, arm: str, limit: float) -> Bar:
    """`arm` to the lines' baseline in the category of questions where it gains most, by all tokens of a category."""
    found = [s for s in summarise(lines, by_category=True) if s.arm == arm and s.ratios is not None]
    if not found:
        return Bar(name=name, value=0.0, limit=limit, unit="x", equal=False, detail="every pair was flagged")
    found.sort(key=lambda s: -_value(s, "totals"))
    each = ", ".join(f"{s.workload.split(': ')[-1]} {_value(s, 'totals'):.2f}x" for s in found)
    equal = all(s.equal and not s.flagged for s in found)
    return Bar(name=name, value=_value(found[0], "totals"), limit=limit, unit="x", equal=equal, detail=each)


def _value(summary: Summary, reading: Reading) -> float:
    assert summary.ratios is not None
    return summary.ratios.median if reading == "median" else summary.ratios.ratio_of_totals


def _told(summary: Summary, ratios: Ratios) -> str:
    told = (
        f"{ratios.pairs} pairs of {ratios.prompts} prompts, {summary.flagged} flagged; median {ratios.median:.3f}, 95% "
        f"{ratios.low:.3f}-{ratios.high:.3f}; ratio of totals {ratios.ratio_of_totals:.3f}, mean of per-prompt ratios "
        f"{ratios.mean_of_ratios:.3f}; {summary.base_tokens_per_s:.1f} to {summary.tokens_per_s:.1f} tok/s"
    )
    if summary.tau is not None:
        told += f"; tau {summary.tau:.2f}"
    if summary.copied is not None:
        told += f"; {summary.copied:.2f} of the answer copied"
    return told
