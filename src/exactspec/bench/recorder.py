"""Where measured rounds go: one JSON line per arm and round, and what tells a round that is there already."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from exactspec.bench.eta import Remaining
from exactspec.bench.provenance import Provenance
from exactspec.bench.rounds import Contestant, Round, flags, play
from exactspec.bench.store import Line, ResultFile


@dataclass(frozen=True, slots=True)
class Recorder:
    """Where measured rounds go. `provenance`: asked for every round, whose date
    and load average it tells. `progress`: gets a
    line of text per round."""

    out: ResultFile
    provenance: Callable[[], Provenance]
    progress: Callable[[str], None]

    def rounds(
        self,
        contestants: Mapping[str, Contestant],
        *,
        repeats: int,
        same_tokens: bool,
        head: Mapping[str, Any],
        warm_up: Callable[[], object],
        remaining: Remaining | None = None,
    ) -> None:
        """Play the rounds that the file does not hold yet, each appended when it is complete.

        The first contestant is the baseline. `head`: what every line says; with the configuration and the
        contestants' names it tells which rounds are the same. `warm_up`: run first, unmeasured, so that
        compilation and cold memory are in nobody's time. `remaining`: told of every round.
        """
        if len(contestants) < 2:
            raise ValueError(f"at least two arms are needed, got {', '.join(contestants) or 'none'}")
        if repeats < 1:
            raise ValueError(f"repeats must be at least 1, got {repeats}")
        label = " ".join(str(head[key]) for key in ("model", "case") if key in head)
        same = {**head, "arms": list(contestants), "config": self.provenance().config}
        if torn := incomplete(self.out, same):  # played again, and never in the file twice
            self.out.drop(torn)
        missing = pending(self.out, same, repeats=repeats)
        if remaining is not None:
            remaining.skipped(repeats - len(missing))
        if not missing:
            self.progress(f"{label}: measured before")
            return
        warm_up()
        baseline = next(iter(contestants))
        for played in play(contestants, missing):
            lines = round_lines(
                played, baseline=baseline, same_tokens=same_tokens, head=same, provenance=self.provenance()
            )
            self.out.append(lines)
            times = ", ".join(f"{name} {1000 * m.s_per_token:.2f} ms" for name, m in played.measurements.items())
            notes = sorted({flag for line in lines for flag in line["flags"]})
            self.progress(
                f"{label} round {played.repeat + 1}/{repeats}, per token: {times}"
                + (f" FLAGGED: {', '.join(notes)}" if notes else "")
                + (f" ({remaining.measured()})" if remaining is not None else "")
            )


def round_lines(
    played: Round, *, baseline: str, same_tokens: bool, head: Mapping[str, Any], provenance: Provenance
) -> list[Line]:
    """One JSON line per contestant of a round. `ratio` (speed-up in decode time per token) is None on a flagged
    line: it must not enter any mean."""
    base = played.measurements[baseline]
    lines: list[Line] = []
    for name, measured in played.measurements.items():
        found = flags(base, measured, same_tokens=same_tokens)
        lines.append(
            {
                **head,
                **measured.extra,
                "arm": name,
                "baseline": baseline,
                "repeat": played.repeat,
                "order": list(played.order),
                "completion_tokens": len(measured.token_ids),
                "tokens_sha256": _digest(measured.token_ids),
                "prefill_s": measured.prefill_s,
                "decode_s": measured.decode_s,
                "decode_tokens_per_s": 1 / measured.s_per_token if measured.s_per_token > 0 else 0.0,
                "ratio": None if found else base.s_per_token / measured.s_per_token,
                "flags": list(found),
                "provenance": asdict(provenance),
            }
        )
    return lines


def pending(out: ResultFile, same: Mapping[str, Any], *, repeats: int) -> list[int]:
    """Numbers of the rounds, of those whose lines agree with `same`, that are not complete in the file."""
    played = _rounds(out, same)
    return [repeat for repeat in range(repeats) if not _complete(played.get(repeat, []), same)]


def incomplete(out: ResultFile, same: Mapping[str, Any]) -> list[Line]:
    """The lines of rounds that agree with `same` of which some are missing: of a process killed while it wrote."""
    rounds = _rounds(out, same).values()
    return [line for lines in rounds if not _complete(lines, same) for line in lines]


def _rounds(out: ResultFile, same: Mapping[str, Any]) -> dict[int, list[Line]]:
    found: dict[int, list[Line]] = {}
    for line in out.lines:
        if all(line.get(key) == value for key, value in same.items()):
            found.setdefault(line["repeat"], []).append(line)
    return found


def _complete(lines: Sequence[Line], same: Mapping[str, Any]) -> bool:
    return {line["arm"] for line in lines} >= set(same["arms"])


def _digest(ids: Sequence[int]) -> str:
    return hashlib.sha256(" ".join(map(str, ids)).encode()).hexdigest()[:16]
