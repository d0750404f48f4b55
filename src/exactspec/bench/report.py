"""Result lines to summaries: per model, workload and arm, the paired speed-ups and what must be known beside them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, TypeVar

from exactspec.bench.stats import Interval, Ratios, paired_ratios
from exactspec.bench.store import Line

T = TypeVar("T")

_COLUMNS = (
    "model", "workload", "size", "arm", "pairs", "flagged", "same tokens", "base tok/s", "tok/s", "tau",
    "copied",
    "speed-up (median)", "95% interval", "ratio of totals", "mean of per-prompt ratios", "accepted by source",
    "prefill s",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """`ratios`: of decode time for the same tokens, over the pairs that are not flagged; None if none is left. `equal`:
    every pair emitted the same tokens. `copied`: share of the emitted tokens that lie in runs found earlier. `sources`:
    accepted tokens by drafter, as shares of all tokens. Rates are medians over the same pairs, prefill over all of
    them. `size` is None where several were put together, 0 where the prompts have none."""

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
    sources: Mapping[str, float]
    prefill_s: float
    ratios: Ratios | None


def latest(lines: Iterable[Line], kind: str = "run") -> list[Line]:
    """The lines of a kind of each model's newest configuration: speeds of different code or machines are not mixed.

    A round that was begun, lost and run again counts once, as it was run last.
    """
    runs = [line for line in lines if line.get("kind") == kind]
    newest = {line["model"]: line["config"] for line in runs}
    kept: dict[tuple[Any, ...], Line] = {}
    for line in runs:
        if line["config"] == newest[line["model"]]:
            key = (line["model"], line["case"], line["work"], tuple(line["arms"]), line["repeat"], line["arm"])
            kept[key] = line
    return list(kept.values())


def summarise(
    lines: Sequence[Line], *, merge_sizes: bool = False, by_category: bool = False, baseline: str | None = None
) -> list[Summary]:
    """One summary per (model, workload, size, arms, arm other than the baseline), in order of appearance.

    `merge_sizes`: one per (model, workload, arms, arm), whatever the size. `by_category`: questions' categories apart;
    lines without one are left out. `baseline`: an arm to compare with instead of the lines' own, with which it must
    agree in tokens as well.
    """
    rounds: dict[tuple[Any, ...], dict[str, Line]] = {}
    for line in lines:
        key = (line["model"], line["case"], line["work"], tuple(line["arms"]), line["repeat"])
        rounds.setdefault(key, {})[line["arm"]] = line
    groups: dict[tuple[Any, ...], list[tuple[Line, Line]]] = {}
    for by_arm in rounds.values():
        for arm, line in by_arm.items():
            base = by_arm.get(baseline or line["baseline"])
            if base is None or arm == base["arm"] or (by_category and "category" not in line):
                continue
            workload = f"{line['workload']}: {line['category']}" if by_category else line["workload"]
            group = (line["model"], workload, None if merge_sizes else line["size"], tuple(line["arms"]), arm)
            groups.setdefault(group, []).append((base, line))
    return [_summary(group, pairs) for group, pairs in groups.items()]


def flagged_rows(lines: Sequence[Line]) -> list[str]:
    """One line of text for each measurement that entered no ratio."""
    return [
        f"{line['model']} {line['case']}, {line['arm']}, round {line['repeat'] + 1}: {' '.join(line['flags'])} "
        f"({line['completion_tokens']} tokens)"
        for line in lines
        if line["flags"]
    ]


def _summary(group: tuple[Any, ...], pairs: Sequence[tuple[Line, Line]]) -> Summary:
    model, workload, size, _, arm = group
    good = [(base, line) for base, line in pairs if not line["flags"] and not base["flags"]]
    ratios = None
    if good:  # both of a pair emitted as many tokens: their times are of the same work
        ratios = paired_ratios(
            [float(base["decode_s"]) for base, _ in good],
            [float(line["decode_s"]) for _, line in good],
            prompts=[(line["case"], line["work"]) for _, line in good],
        )

    def middle(key: str) -> float | None:
        found = [line[key] for _, line in good if key in line]
        return median(found) if found else None

    tokens = sum(line["completion_tokens"] for _, line in good)
    sources: dict[str, float] = {}
    for _, line in good:
        for source, accepted in line.get("accepted_by_source", {}).items():
            sources[source] = sources.get(source, 0.0) + accepted / tokens
    return Summary(
        model=model,
        workload=workload,
        size=size,
        arm=arm,
        flagged=len(pairs) - len(good),
        equal=all(base["tokens_sha256"] == line["tokens_sha256"] for base, line in pairs),
        base_tokens_per_s=median(base["decode_tokens_per_s"] for base, _ in good) if good else 0.0,
        tokens_per_s=median(line["decode_tokens_per_s"] for _, line in good) if good else 0.0,
        tau=middle("tau"),
        copied=middle("output_copy_share"),
        sources=dict(sorted(sources.items(), key=lambda item: -item[1])),
        prefill_s=median(line["prefill_s"] for _, line in pairs),
        ratios=ratios,
    )


def table(summaries: Sequence[Summary]) -> str:
    """The summaries as a markdown table."""
    rows = []
    for s in summaries:
        r = s.ratios
        rows.append(
            (
                s.model,
                s.workload,
                "all" if s.size is None else str(s.size or "-"),
                s.arm,
                str(r.pairs if r is not None else 0),
                str(s.flagged),
                "yes" if s.equal else "no",
                f"{s.base_tokens_per_s:.1f}",
                f"{s.tokens_per_s:.1f}",
                _or_dash(s.tau, lambda x: f"{x:.2f}"),
                _or_dash(s.copied, lambda x: f"{x:.2f}"),
                _or_dash(r, lambda r: f"{r.median:.2f}"),
                _or_dash(r, lambda r: f"{r.low:.2f}-{r.high:.2f}"),
                _or_dash(r, lambda r: f"{r.ratio_of_totals:.2f} ({_told(r.totals)})"),
                _or_dash(r, lambda r: f"{r.mean_of_ratios:.2f} ({_told(r.mean)})"),
                ", ".join(f"{source} {share:.0%}" for source, share in s.sources.items()) or "-",
                f"{s.prefill_s:.2f}",
            )
        )
    return markdown(_COLUMNS, rows)


def _or_dash(value: T | None, tell: Callable[[T], str]) -> str:
    return "-" if value is None else tell(value)


def _told(interval: Interval) -> str:
    return f"{interval.low:.2f}-{interval.high:.2f}"


def full_table(lines: Sequence[Line], *, baseline: str | None = None) -> str:
    """What the run lines hold: the summaries, questions by category, and which rows were flagged. `baseline`: see
    `summarise`."""
    parts = [table(summarise(lines, baseline=baseline))]
    if categories := summarise(lines, by_category=True, baseline=baseline):
        parts.append(table(categories))
    if flagged := flagged_rows(lines):
        parts.append("Flagged, in no ratio:\n" + "\n".join(f"- {row}" for row in flagged))
    return "\n\n".join(parts)


def _cell(text: str) -> str:
    """On one line, within its column, and of characters that every stream can take."""
    return " ".join(str(text).split()).replace("|", "\\|").encode("utf-8", "replace").decode()


def markdown(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A padded markdown table. Cells may hold anything: names of workloads come from files."""
    rows = [[_cell(cell) for cell in row] for row in rows]
    widths = [max(len(str(row[i])) for row in (columns, *rows)) for i in range(len(columns))]

    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)) + " |"

    rule = "|" + "|".join("-" * (width + 2) for width in widths) + "|"
    return "\n".join([line(columns), rule, *(line(row) for row in rows)])
