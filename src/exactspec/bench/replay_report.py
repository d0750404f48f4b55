"""Replay lines as a table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from exactspec.bench.report import markdown
from exactspec.bench.store import Line

_COLUMNS = (
    "model", "workload", "size", "replies", "arm", "answers", "tokens", "tau", "copied", "rows/step",
    "predicted speed", "with the drafter's time", "drafter us/step",
)  # fmt: skip


def newest_replays(lines: Iterable[Line]) -> list[Line]:
    """The replay lines of each model's newest configuration; of equal ones the last."""
    replays = [line for line in lines if line.get("kind") == "replay"]
    newest = {line["model"]: line["config"] for line in replays}
    kept: dict[tuple[Any, ...], Line] = {}
    for line in replays:
        if line["config"] == newest[line["model"]]:
            key = ("model", "workload", "size", "replies", "answers", "equal_rows", "arm")
            kept[(*(line[k] for k in key), tuple(line["arms"]))] = line
    return list(kept.values())


def replay_table(lines: Sequence[Line]) -> str:
    """One row per workload and arm, as markdown. Speed: of decoding, predicted from the cost of rows."""
    rows = [
        (
            line["model"],
            line["workload"],
            str(line["size"] or "-"),
            line["replies"],
            line["arm"] + (" (equal rows)" if line["equal_rows"] else ""),
            str(line["answers"]),
            str(line["tokens"]),
            f"{line['tau']:.2f}",
            f"{100 * line['copy_share']:.0f}%",
            f"{line['rows'] / line['steps']:.1f}",
            f"{line['predicted_speedup']:.2f}x",
            f"{line['predicted_with_drafter']:.2f}x" if line["plain_step_s"] else "-",
            f"{1e6 * line['drafter_s'] / line['steps']:.0f}",
        )
        for line in lines
    ]
    return "Replayed:\n\n" + markdown(_COLUMNS, rows)
