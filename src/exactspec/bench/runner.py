"""Draft modes against each other on the same prompts: interleaved, compared token by token, one JSON line a run."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any, Protocol

from exactspec.bench.copyshare import copy_share
from exactspec.bench.provenance import Provenance
from exactspec.bench.rounds import Contestant, Measurement, Round, flags, play
from exactspec.bench.store import Line, ResultFile
from exactspec.bench.timing import time_stream
from exactspec.params import SamplingParams, Speculation
from exactspec.results import Chunk
from exactspec.target.tokenizer import Tokenizer

WARM_UP_TOKENS = 16


class EngineLike(Protocol):
    """The part of `exactspec.Engine` that is measured."""

    @property
    def tokenizer(self) -> Tokenizer: ...

    def stream(
        self, prompt: Any, params: SamplingParams, *, speculation: Speculation | None = None
    ) -> Iterable[Chunk]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One prompt to measure. `ids`: with the chat template. `params`: the same for every arm. `meta`: what the
    result lines say about it (workload, size, seed, copy share, ...)."""

    id: str
    ids: tuple[int, ...]
    params: SamplingParams
    meta: Mapping[str, Any] = field(default_factory=dict)

    @property
    def work(self) -> str:
        """Hash of what is asked for: a case that keeps its name but not its prompt is another one."""
        return hashlib.sha256(repr((self.ids, self.params)).encode()).hexdigest()[:12]


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
    ) -> None:
        """Play the rounds that the file does not hold yet, each appended when it is complete.

        The first contestant is the baseline. `head`: what every line says; with the configuration and the
        contestants' names it tells which rounds are the same. `warm_up`: run first, unmeasured, so that
        compilation and cold memory are in nobody's time.
        """
        if len(contestants) < 2:
            raise ValueError(f"at least two arms are needed, got {', '.join(contestants) or 'none'}")
        if repeats < 1:
            raise ValueError(f"repeats must be at least 1, got {repeats}")
        label = " ".join(str(head[key]) for key in ("model", "case") if key in head)
        same = {**head, "arms": list(contestants), "config": self.provenance().config}
        missing = pending(self.out, same, repeats=repeats)
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
            )


def measure(engine: EngineLike, ids: Sequence[int], params: SamplingParams, *, draft: str) -> Measurement:
    """One answer, taken as a client of the stream takes it; the decode clock is the engine's own."""
    completion, timing = time_stream(engine.stream(list(ids), params, speculation=Speculation(draft=draft)))
    metrics = completion.metrics
    return Measurement(
        token_ids=completion.token_ids,
        prefill_s=metrics.prefill_s,
        decode_s=metrics.decode_s,
        extra={
            "time_to_first_token_s": timing.first_token_s,
            "stream_tokens_per_s": timing.decode_tokens_per_s,
            "num_steps": metrics.num_steps,
            "num_draft_tokens": metrics.num_draft_tokens,
            "num_accepted_tokens": metrics.num_accepted_tokens,
            "output_copy_share": round(copy_share(ids, completion.token_ids).copy_share, 4),
            "cached_tokens": metrics.cached_tokens,
            "tau": metrics.tau,
            "finish_reason": completion.finish_reason,
            "identity": completion.identity,
            "exact": completion.exact,
        },
    )


def run_arms(
    engine: EngineLike, cases: Sequence[Case], arms: Sequence[str], *, model: str, repeats: int, recorder: Recorder
) -> None:
    """Every case in every round by every arm (draft modes; the first is the baseline, all must emit its tokens)."""
    if len(set(arms)) != len(arms):
        raise ValueError(f"the arms must differ, got {', '.join(arms)}")
    for case in cases:
        warm_up = _shortened(case.params)
        recorder.rounds(
            {arm: partial(measure, engine, case.ids, case.params, draft=arm) for arm in arms},
            repeats=repeats,
            same_tokens=True,
            head={
                **case.meta,
                "kind": "run",
                "model": model,
                "case": case.id,
                "work": case.work,
                "prompt_tokens": len(case.ids),
            },
            warm_up=lambda: [measure(engine, case.ids, warm_up, draft=arm) for arm in arms],  # noqa: B023 - called now
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
    seen: dict[int, set[str]] = {}
    for line in out.lines:
        if all(line.get(key) == value for key, value in same.items()):
            seen.setdefault(line["repeat"], set()).add(line["arm"])
    return [repeat for repeat in range(repeats) if not seen.get(repeat, set()) >= set(same["arms"])]


def _shortened(params: SamplingParams) -> SamplingParams:
    most = WARM_UP_TOKENS if params.max_tokens is None else min(WARM_UP_TOKENS, params.max_tokens)
    return SamplingParams(max_tokens=most, stop_token_ids=params.stop_token_ids)


def _digest(ids: Sequence[int]) -> str:
    return hashlib.sha256(" ".join(map(str, ids)).encode()).hexdigest()[:16]
