"""Plain against drafted decoding of one request: are the tokens equal, and how much faster is it."""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import median
from typing import Any, Protocol

from exactspec.cli.render import plural
from exactspec.cli.services import EngineLike
from exactspec.cli.stream import Request, consume
from exactspec.results import Completion


class NearTiesLike(Protocol):
    """The part of `exactspec.target.hf.NearTies` that is shown."""

    @property
    def rows(self) -> int: ...

    @property
    def count(self) -> int: ...

    @property
    def smallest_gap(self) -> float: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """`plain[i]` and `drafted[i]` ran one after the other (pair i). `near_ties`: of a float target, what it counted
    since it was opened; None for one that is exact."""

    plain: tuple[Completion, ...]
    drafted: tuple[Completion, ...]
    near_ties: NearTiesLike | None = None

    @property
    def first_difference(self) -> int | None:
        """Index of the first token that any run has otherwise than the first plain run; None if all are equal."""
        reference = self.plain[0].token_ids
        places = [_first_difference(reference, run.token_ids) for run in self.plain + self.drafted]
        return min((place for place in places if place is not None), default=None)

    @property
    def equal(self) -> bool:
        return self.first_difference is None

    @property
    def decode_ratio(self) -> float | None:
        """Plain decode time / drafted decode time, the median of the pairs: pairs cancel a machine's slow drift.
        None where nothing was decoded."""
        ratios = [
            plain.metrics.decode_s / drafted.metrics.decode_s
            for plain, drafted in zip(self.plain, self.drafted, strict=True)
            if drafted.metrics.decode_s > 0
        ]
        return median(ratios) if ratios else None

    def as_dict(self) -> dict[str, Any]:
        return {
            "equal": self.equal,
            "first_difference": self.first_difference,
            "decode_ratio": self.decode_ratio,
            "pairs": len(self.plain),
            "plain_decode_s": [run.metrics.decode_s for run in self.plain],
            "drafted_decode_s": [run.metrics.decode_s for run in self.drafted],
            "plain": median_run(self.plain).metrics.as_dict(),
            "drafted": median_run(self.drafted).metrics.as_dict(),
        } | ({} if self.near_ties is None else {"near_ties": self._ties(self.near_ties)})

    @staticmethod
    def _ties(ties: NearTiesLike) -> dict[str, Any]:
        gap = ties.smallest_gap
        return {"rows": ties.rows, "count": ties.count, "smallest_gap": gap if math.isfinite(gap) else None}

    def lines(self) -> list[str]:
        """The report, for people."""
        plain, drafted = median_run(self.plain), median_run(self.drafted)
        lines = [
            f"{name:<8} {run.metrics.decode_tokens_per_s:8.1f} tok/s   tau {run.metrics.tau:5.2f}   "
            f"decode {run.metrics.decode_s:.3f} s"
            for name, run in (("plain", plain), ("drafted", drafted))
        ]
        at = self.first_difference
        if at is None:
            verdict = f"equal: all {plural(len(plain.token_ids), 'token')} are the same"
        else:
            verdict = f"NOT EQUAL: the first difference is at token {at}"
        ratio = self.decode_ratio
        if ratio is not None:
            verdict += f"; decoding is {ratio:.2f}x as fast (median of {plural(len(self.plain), 'pair')})"
        return [*lines, verdict, *self._tie_lines()]

    def _tie_lines(self) -> list[str]:
        if (ties := self.near_ties) is None:
            return []
        return [
            f"not bit-exact (float): {ties.count} of {plural(ties.rows, 'row')} were near-ties, where texts may part; "
            f"smallest gap of the two best logits {ties.smallest_gap:.1e}"
        ]


def median_run(runs: tuple[Completion, ...]) -> Completion:
    """The run with the middle decode time (of an even number: the faster of the two)."""
    return sorted(runs, key=lambda run: run.metrics.decode_s)[(len(runs) - 1) // 2]


def _first_difference(a: tuple[int, ...], b: tuple[int, ...]) -> int | None:
    for index, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return index
    return None if len(a) == len(b) else min(len(a), len(b))


def compare(
    engine: EngineLike, request: Request, *, pairs: int, progress: Callable[[str], None]
) -> Comparison | Completion:
    """Run plain, drafted, plain, drafted, ... with one seed. A run that Ctrl-C stopped is returned by itself."""
    if request.params.seed is None:
        request = replace(request, params=replace(request.params, seed=secrets.randbelow(2**63)))
    plain = replace(request, speculation=replace(request.speculation, draft="none"), prediction=None)
    runs: dict[str, list[Completion]] = {"plain": [], "drafted": []}
    for pair in range(pairs):
        for name, one in (("plain", plain), ("drafted", request)):
            run = consume(one.start(engine), lambda chunk: None)
            if run.finish_reason == "cancelled":
                return run
            runs[name].append(run)
            progress(f"pair {pair + 1}/{pairs} {name}: {run.metrics.decode_tokens_per_s:.1f} tok/s")
    ties: NearTiesLike | None = getattr(engine.target, "near_ties", None)
    return Comparison(plain=tuple(runs["plain"]), drafted=tuple(runs["drafted"]), near_ties=ties)
