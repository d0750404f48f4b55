"""Result lines to summaries: per model, workload and arm, the paired speed-ups and what must be known beside them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from exactspec.bench.stats import Ratios, paired_ratios
from exactspec.bench.store import Line

_COLUMNS = (
    "model", "workload", "size", "arm", "pairs", "flagged", "same tokens", "base tok/s", "tok/s", "tau",
    "copied",
    "speed-up (median)", "95% interval", "ratio of totals", "mean of ratios", "prefill s",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """`ratios`: of decode time per token, over the pairs that are not flagged; None if none is left. `equal`: every
    pair emitted the same tokens. `copied`: share of the emitted tokens that lie in runs found earlier. Rates are
    medians over the same pairs, prefill over all of them. `size` is None where several were put together."""

    model: str
    workload: str
    size: int | None
    arm: str
    flagged: int
    equal: bool
    base_tokens_per_s: float
    tokens_per_s: float
    tau: float | None
    copied: float | None
    prefill_s: float
    ratios: Ratios | None


def latest(lines: Iterable[Line]) -> list[Line]:
    """The run lines of each model's newest configuration: speeds of different code or machines are not mixed.

    A round that was begun, lost and run again counts once, as it was run last.
    """
    runs = [line for line in lines if line.get("kind") == "run"]
    newest = {line["model"]: line["config"] for line in runs}
    kept: dict[tuple[Any, ...], Line] = {}
    for line in runs:
        if line["config"] == newest[line["model"]]:
            key = (line["model"], line["case"], line["work"], tuple(line["arms"]), line["repeat"], line["arm"])
            kept[key] = line
    return list(kept.values())


def summarise(lines: Sequence[Line], *, merge_sizes: bool = False) -> list[Summary]:
    """One summary per (model, workload, size, arms, arm other than the baseline), in order of appearance.

    `merge_sizes`: one per (model, workload, arms, arm), whatever the size.
    """
    rounds: dict[tuple[Any, ...], dict[str, Line]] = {}
    for line in lines:
        key = (line["model"], line["case"], line["work"], tuple(line["arms"]), line["repeat"])
        rounds.setdefault(key, {})[line["arm"]] = line
    groups: dict[tuple[Any, ...], list[tuple[Line, Line]]] = {}
    for by_arm in rounds.values():
        for arm, line in by_arm.items():
            base = by_arm.get(line["baseline"])
            if base is not None and arm != line["baseline"]:
                group = (
                    line["model"],
                    line["workload"],
                    None if merge_sizes else line["size"],
                    tuple(line["arms"]),
                    arm,
                )
                groups.setdefault(group, []).append((base, line))
    return [_summary(group, pairs) for group, pairs in groups.items()]


def _summary(group: tuple[Any, ...], pairs: Sequence[tuple[Line, Line]]) -> Summary:
    model, workload, size, _, arm = group
    good = [(base, line) for base, line in pairs if not line["flags"]]
    ratios = None
    if good:
        ratios = paired_ratios([_s_per_token(base) for base, _ in good], [_s_per_token(line) for _, line in good])
    shares = [line["output_copy_share"] for _, line in good if "output_copy_share" in line]
    taus = [line["tau"] for _, line in good if "tau" in line]
    return Summary(
        model=model,
        workload=workload,
        size=size,
        arm=arm,
        flagged=len(pairs) - len(good),
        equal=all(base["tokens_sha256"] == line["tokens_sha256"] for base, line in pairs),
        base_tokens_per_s=median(base["decode_tokens_per_s"] for base, _ in good) if good else 0.0,
        tokens_per_s=median(line["decode_tokens_per_s"] for _, line in good) if good else 0.0,
        tau=median(taus) if taus else None,
        copied=median(shares) if shares else None,
        prefill_s=median(line["prefill_s"] for _, line in pairs),
        ratios=ratios,
    )


def _s_per_token(line: Line) -> float:
    return float(line["decode_s"]) / int(line["completion_tokens"])


def table(summaries: Sequence[Summary]) -> str:
    """The summaries as a markdown table."""
    rows = []
    for s in summaries:
        r = s.ratios
        figures = (
            (f"{r.median:.2f}", f"{r.low:.2f}-{r.high:.2f}", f"{r.ratio_of_totals:.2f}", f"{r.mean_of_ratios:.2f}")
            if r is not None
            else ("-", "-", "-", "-")
        )
        rows.append(
            (
                s.model,
                s.workload,
                "all" if s.size is None else str(s.size),
                s.arm,
                str(r.pairs if r is not None else 0),
                str(s.flagged),
                "yes" if s.equal else "no",
                f"{s.base_tokens_per_s:.1f}",
                f"{s.tokens_per_s:.1f}",
                "-" if s.tau is None else f"{s.tau:.2f}",
                "-" if s.copied is None else f"{s.copied:.2f}",
                *figures,
                f"{s.prefill_s:.2f}",
            )
        )
    return markdown(_COLUMNS, rows)


def markdown(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A padded markdown table."""
    widths = [max(len(str(row[i])) for row in (columns, *rows)) for i in range(len(columns))]

    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)) + " |"

    rule = "|" + "|".join("-" * (width + 2) for width in widths) + "|"
    return "\n".join([line(columns), rule, *(line(row) for row in rows)])
