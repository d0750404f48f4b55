"""Draft modes against each other on the same prompts: interleaved, compared token by token, one JSON line a run."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

from exactspec.bench.provenance import Provenance
from exactspec.bench.rounds import Contestant, Measurement, Round, flags, play
from exactspec.bench.store import Line, ResultFile
from exactspec.bench.timing import time_stream
from exactspec.params import SamplingParams, Speculation
from exactspec.results import Chunk, Completion

WARM_UP_TOKENS = 16


class EngineLike(Protocol):
    """The part of `exactspec.Engine` that is measured."""

    def generate(self, prompt: Any, params: SamplingParams, *, speculation: Speculation | None = None) -> Any: ...

    def stream(
        self, prompt: Any, params: SamplingParams, *, speculation: Speculation | None = None
    ) -> Iterator[Chunk]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One prompt to measure. `ids`: with the chat template. `params`: the same for every arm. `meta`: what the
    result lines say about it (workload, size, seed, copy share, ...)."""

    id: str
    ids: tuple[int, ...]
    params: SamplingParams
    meta: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Plan:
    """`arms`: draft modes, the first is the baseline. `repeats`: rounds per case. `stream`: measure as a client of
    the stream does, with the time to the first token."""

    arms: tuple[str, ...]
    repeats: int
    stream: bool = False

    def __post_init__(self) -> None:
        if len(self.arms) < 2 or len(set(self.arms)) != len(self.arms):
            raise ValueError(f"at least two different arms are needed, got {', '.join(self.arms) or 'none'}")
        if self.repeats < 1:
            raise ValueError(f"repeats must be at least 1, got {self.repeats}")


def measure(
    engine: EngineLike, ids: Sequence[int], params: SamplingParams, *, draft: str, stream: bool = False
) -> Measurement:
    """One answer; the decode clock is the engine's own, whichever way the answer is taken."""
    speculation = Speculation(draft=draft)
    extra: dict[str, Any] = {}
    if stream:
        completion, timing = time_stream(engine.stream(list(ids), params, speculation=speculation))
        extra["time_to_first_token_s"] = timing.first_token_s
        extra["stream_tokens_per_s"] = timing.decode_tokens_per_s
    else:
        completion = engine.generate(list(ids), params, speculation=speculation)
    if not isinstance(completion, Completion):
        raise TypeError(f"the engine returned {type(completion).__name__}, not a Completion")
    metrics = completion.metrics
    extra |= {
        "num_steps": metrics.num_steps,
        "num_draft_tokens": metrics.num_draft_tokens,
        "num_accepted_tokens": metrics.num_accepted_tokens,
        "cached_tokens": metrics.cached_tokens,
        "tau": metrics.tau,
        "finish_reason": completion.finish_reason,
        "identity": completion.identity,
        "exact": completion.exact,
    }
    return Measurement(
        token_ids=completion.token_ids, prefill_s=metrics.prefill_s, decode_s=metrics.decode_s, extra=extra
    )


def run_arms(
    engine: EngineLike,
    cases: Sequence[Case],
    plan: Plan,
    *,
    model: str,
    out: ResultFile,
    provenance: Callable[[], Provenance],
    progress: Callable[[str], None],
) -> None:
    """Every case, every round, every arm that `out` does not hold yet; each round is appended when it is complete.

    Before a case's rounds every arm answers it once with a few tokens, unmeasured: compilation and cold memory
    are not part of any time.
    """
    config = provenance().config
    for number, case in enumerate(cases, 1):
        wanted = (config, model, case.id, list(plan.arms), _work(case, stream=plan.stream))
        missing = pending(out, wanted, arms=len(plan.arms), repeats=plan.repeats)
        if not missing:
            progress(f"{model} {case.id} ({number}/{len(cases)}): already measured")
            continue
        warm_up = _shortened(case.params)
        for arm in plan.arms:
            measure(engine, case.ids, warm_up, draft=arm)
        contestants: dict[str, Contestant] = {arm: _contestant(engine, case, arm, plan.stream) for arm in plan.arms}
        for played in play(contestants, missing):
            out.append(
                round_lines(
                    played,
                    baseline=plan.arms[0],
                    same_tokens=True,
                    head={
                        "kind": "run",
                        "model": model,
                        "case": case.id,
                        "arms": list(plan.arms),
                        "work": _work(case, stream=plan.stream),
                        "prompt_tokens": len(case.ids),
                        **case.meta,
                    },
                    provenance=provenance(),
                )
            )
            progress(
                f"{model} {case.id} ({number}/{len(cases)}) round {played.repeat + 1}/{plan.repeats}: "
                + ", ".join(f"{name} {1000 * m.s_per_token:.2f} ms/token" for name, m in played.measurements.items())
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
                "config": provenance.config,
                "provenance": asdict(provenance),
            }
        )
    return lines


def pending(out: ResultFile, wanted: tuple[str, str, str, list[str], str], *, arms: int, repeats: int) -> list[int]:
    """Numbers of the rounds of (config, model, case, arms, work) that are not complete in the file."""
    seen: dict[int, int] = {}
    for line in out.lines:
        if tuple(line.get(key) for key in ("config", "model", "case", "arms", "work")) == wanted:
            seen[line["repeat"]] = seen.get(line["repeat"], 0) + 1
    return [repeat for repeat in range(repeats) if seen.get(repeat, 0) < arms]


def _contestant(engine: EngineLike, case: Case, arm: str, stream: bool) -> Contestant:
    return lambda: measure(engine, case.ids, case.params, draft=arm, stream=stream)


def _shortened(params: SamplingParams) -> SamplingParams:
    most = WARM_UP_TOKENS if params.max_tokens is None else min(WARM_UP_TOKENS, params.max_tokens)
    return SamplingParams(max_tokens=most, stop_token_ids=params.stop_token_ids)


def _work(case: Case, *, stream: bool) -> str:
    """Hash of what is asked for: a case that keeps its name but not its prompt is another one."""
    return hashlib.sha256(repr((case.ids, case.params, stream)).encode()).hexdigest()[:12]


def _digest(ids: Sequence[int]) -> str:
    return hashlib.sha256(" ".join(map(str, ids)).encode()).hexdigest()[:16]
