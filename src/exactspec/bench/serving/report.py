"""Result lines of servers to tables, and the figures that bars look at."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from exactspec.bench.report import latest, markdown
from exactspec.bench.serving.contests import KIND, LIBRARY, LOAD, ONE, OVERHEAD, PEER, SERVER, TURN
from exactspec.bench.serving.turns import COLD, SECOND
from exactspec.bench.stats import Ratios, paired_ratios
from exactspec.bench.store import Line

_LOAD = (
    "model", "workload", "arm", "rounds", "tok/s", "tok/s together", "to one client", "to llama-server",
    "of a full step", "first token s", "gap ms, median", "gap ms, 99%", "tau", "wrong replies",
)  # fmt: skip
_OVERHEAD = ("model", "stream", "rounds", "flagged", "library ms/token", "server ms/token", "overhead", "95% interval")
_TURN = ("model", "history", "rounds", "cold s", "second turn s", "share", "95% interval", "cached tokens")


@dataclass(frozen=True, slots=True)
class Group:
    """The rounds of one contest: `lines` of all arms, of one model and workload and the same requests."""

    model: str
    workload: str
    lines: tuple[Line, ...]

    def of(self, arm: str) -> list[Line]:
        """In order of rounds."""
        return sorted((line for line in self.lines if line["arm"] == arm), key=lambda line: int(line["repeat"]))

    @property
    def arms(self) -> list[str]:
        return list(self.lines[0]["arms"])

    def flagged(self, arm: str) -> int:
        return sum(bool(line["flags"]) for line in self.of(arm))

    def ratios(self, baseline: str, arm: str) -> Ratios | None:
        """Of the time per token of `baseline` to that of `arm`, round by round; None where no pair is left."""
        base = {line["repeat"]: line for line in self.of(baseline)}
        pairs = [(base[line["repeat"]], line) for line in self.of(arm) if line["repeat"] in base]
        good = [(a, b) for a, b in pairs if not a["flags"] and not b["flags"]]
        if not good:
            return None
        return paired_ratios(
            [_s_per_token(a) for a, _ in good], [_s_per_token(b) for _, b in good], prompts=[0] * len(good)
        )

    def of_full_step(self, arm: str) -> Ratios | None:
        """Of the rate while all clients are answered, to the one that full steps allow, in the same round."""
        lines = [line for line in self.of(arm) if "step_tokens_per_s" in line and line["together_tokens_per_s"] > 0]
        if not lines:
            return None
        return paired_ratios(
            [1 / line["step_tokens_per_s"] for line in lines],
            [1 / line["together_tokens_per_s"] for line in lines],
            prompts=[0] * len(lines),
        )

    def middle(self, arm: str, value: Callable[[Line], float]) -> float:
        return median(map(value, self.of(arm)))


def groups(lines: Iterable[Line], part: str) -> list[Group]:
    """The contests of a part of each model's newest configuration, in order of appearance."""
    found: dict[tuple[object, ...], list[Line]] = {}
    for line in latest(lines, KIND):
        if line["part"] == part:
            found.setdefault((line["model"], line["workload"], line["work"], tuple(line["arms"])), []).append(line)
    return [Group(str(key[0]), str(key[1]), tuple(each)) for key, each in found.items()]


def wrong(group: Group) -> int:
    """Replies of ours, in all rounds and arms, that were not those of a lone run."""
    return sum(int(line.get("wrong_replies", 0)) for line in group.lines)


def overhead_percent(group: Group) -> tuple[float, float, float] | None:
    """Median and interval of what the server adds to the library's time per token; None where no pair is left."""
    ratios = group.ratios(LIBRARY, SERVER)
    return None if ratios is None else tuple(100 * (1 / r - 1) for r in (ratios.median, ratios.high, ratios.low))  # type: ignore[return-value]


def turn_percent(group: Group) -> tuple[float, float, float] | None:
    """Median and interval of a second turn's time to the first token, of the cold one's."""
    ratios = group.ratios(COLD, SECOND)
    return None if ratios is None else tuple(100 / r for r in (ratios.median, ratios.high, ratios.low))  # type: ignore[return-value]


def tables(lines: Sequence[Line]) -> str:
    """Everything about servers that the lines hold; empty if there is nothing."""
    parts = (
        (_LOAD, [row for group in groups(lines, LOAD) for row in _load_rows(group)]),
        (_OVERHEAD, [_overhead_row(group) for group in groups(lines, OVERHEAD)]),
        (_TURN, [_turn_row(group) for group in groups(lines, TURN)]),
    )
    return "\n\n".join(markdown(columns, rows) for columns, rows in parts if rows)


def _load_rows(group: Group) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for arm in group.arms:
        ours = arm != PEER
        rows.append(
            (
                group.model,
                group.workload,
                arm,
                str(len(group.of(arm))),
                f"{1 / group.middle(arm, _s_per_token):.1f}",
                f"{group.middle(arm, lambda line: line['together_tokens_per_s']):.1f}",
                _told(group.ratios(ONE, arm) if arm != ONE else None),
                _told(group.ratios(PEER, arm) if ours and PEER in group.arms else None),
                _told(group.of_full_step(arm)),
                f"{group.middle(arm, lambda line: line['first_token_p50_s']):.2f}",
                f"{1e3 * group.middle(arm, lambda line: line['gap_p50_s']):.0f}",
                f"{1e3 * group.middle(arm, lambda line: line['gap_p99_s']):.0f}",
                f"{group.middle(arm, lambda line: line['tau']):.2f}" if "tau" in group.of(arm)[0] else "-",
                str(sum(line["wrong_replies"] for line in group.of(arm))) if ours else "-",
            )
        )
    return rows


def _overhead_row(group: Group) -> tuple[str, ...]:
    found = overhead_percent(group)
    return (
        group.model,
        group.workload,
        str(len(group.of(SERVER))),
        str(group.flagged(SERVER)),
        f"{1e3 * group.middle(LIBRARY, _s_per_token):.2f}",
        f"{1e3 * group.middle(SERVER, _s_per_token):.2f}",
        "-" if found is None else f"{found[0]:+.1f}%",
        "-" if found is None else f"{found[1]:+.1f}% to {found[2]:+.1f}%",
    )


def _turn_row(group: Group) -> tuple[str, ...]:
    found = turn_percent(group)
    return (
        group.model,
        group.workload,
        str(len(group.of(SECOND))),
        f"{group.middle(COLD, _s_per_token):.2f}",
        f"{group.middle(SECOND, _s_per_token):.3f}",
        "-" if found is None else f"{found[0]:.1f}%",
        "-" if found is None else f"{found[1]:.1f}% to {found[2]:.1f}%",
        f"{group.middle(SECOND, lambda line: line['cached_tokens']):.0f}",
    )


def _s_per_token(line: Line) -> float:
    return float(line["decode_s"]) / int(line["completion_tokens"])


def _told(ratios: Ratios | None) -> str:
    return "-" if ratios is None else f"{ratios.median:.2f} ({ratios.low:.2f}-{ratios.high:.2f})"
