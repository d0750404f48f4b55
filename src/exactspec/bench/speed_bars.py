"""The bars of drafting: decode speed against our own plain decoding, by workload, by question, and against llama.cpp.

Every bar measures `none`, `copyspec` and `auto` (or what it compares) on each prompt in turn, in rounds that a result
file keeps: bars that need the same rounds share them. Prompts are read once, decoding alone is compared. By default a
bar is small (`Effort`); its figures are as good as the number of its prompts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from exactspec.bench.arms import PEER, PEER_ARMS, PLAIN, parse_arm
from exactspec.bench.bar import Bar
from exactspec.bench.case import Case
from exactspec.bench.eta import Remaining
from exactspec.bench.plan import Asked, prompt_once, question_cases, recipe_cases
from exactspec.bench.questions import FIRST, SECOND, choose, read_questions
from exactspec.bench.recorder import Recorder
from exactspec.bench.report import latest, summarise
from exactspec.bench.runner import Contest, run_contest
from exactspec.bench.runtime_bars import MIDDLE, SMALL
from exactspec.bench.simulate import Answer, compare
from exactspec.bench.speed_up import best_category_bar, speed_up_bar
from exactspec.bench.store import Line
from exactspec.budget import Cost
from exactspec.params import Speculation

ARMS = (PLAIN, "copyspec", "auto")
WORKLOADS: Mapping[str, tuple[str, int, float]] = {
    "edit-1k": ("code_edit", 1024, 5.0),
    "edit-2k": ("code_edit", 2048, 4.5),
    "edit-4k": ("code_edit", 4096, 4.0),
    "rename": ("rename", 2048, 3.5),
    "json": ("json_reemit", 2048, 5.0),
    "revise": ("revise", 2048, 4.0),
}
"""(recipe, size in tokens, least speed-up)."""
QUESTIONS: Mapping[str, tuple[str, float]] = {
    "mt-second": (SECOND, 0.0),
    "mt-first": (FIRST, 0.0),
    "sampled-second": (SECOND, 0.8),
}
"""(turn, temperature)."""
BEST_CATEGORY = 6.0
PEER_BARS: Mapping[str, tuple[str, int]] = {"peer-edit": ("code_edit", 2048), "peer-json": ("json_reemit", 2048)}
PEER_PLAIN, PEER_LOOKUP = 6.0, 3.0
_PEER_ARMS = (PLAIN, "auto", *PEER_ARMS)

LIMITS: Mapping[str, Mapping[str, float]] = {
    **{name: {MIDDLE: limit} for name, (_, _, limit) in WORKLOADS.items()},
    "mt-second": {MIDDLE: 3.2, SMALL: 2.5},
    "mt-first": {MIDDLE: 1.35},
    "sampled-second": {MIDDLE: 2.2},
    **{name: {MIDDLE: PEER_PLAIN} for name in PEER_BARS},
}
SPEED_BARS = tuple(LIMITS)
NEED_QUESTIONS = tuple(QUESTIONS)
NEED_PEER = tuple(PEER_BARS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How much is measured: rounds of a prompt, seeds of a workload, questions of a category, and the longest answer,
    in tokens. None: what a bar takes by itself, for about five minutes on two quiet cores. `questions`: the file."""

    rounds: int | None = None
    seeds: int | None = None
    per_category: int | None = None
    max_tokens: int | None = None
    questions: Path | None = None


def speed_bars(
    on: Contest, names: Sequence[str], *, effort: Effort, recorder: Recorder, cost: Cost | None
) -> Iterator[Bar]:
    """The named bars that the contest's model has, but for `NEED_PEER` where it has no peer."""
    for name in names:
        if name in WORKLOADS:
            yield _workload_bar(on, name, effort, recorder, cost)
        elif name in QUESTIONS:
            yield from _question_bars(on, name, effort, recorder)
        elif name in PEER_BARS:
            yield from _peer_bars(on, name, effort, recorder)


def measured_lines(
    on: Contest, cases: Iterable[Case], arms: Sequence[str], *, prompts: int, rounds: int, recorder: Recorder
) -> list[Line]:
    """Run what the file does not hold; the lines of these cases and arms. `prompts`: how many cases come."""
    works: set[str] = set()

    def noted() -> Iterator[Case]:
        for case in cases:
            works.add(case.work)
            yield case

    parsed = [parse_arm(arm) for arm in arms]
    names = [arm.name for arm in parsed]
    remaining = Remaining(prompts * rounds)
    run_contest(on, noted(), parsed, repeats=rounds, recorder=recorder, remaining=remaining)
    return [
        line
        for line in latest(recorder.out.lines)
        if line["model"] == on.model and line["work"] in works and line["arms"] == names and line["repeat"] < rounds
    ]


def asked_questions(
    on: Contest, turn: str, effort: Effort, *, per_category: int, max_tokens: int, temperature: float = 0.0
) -> tuple[Iterator[Case], int]:
    """The cases of one turn of the effort's questions, and how many there are. Raises ValueError without a file."""
    if effort.questions is None:
        raise ValueError("questions are needed: name a file with --questions")
    chosen = choose(read_questions(effort.questions), per_category=effort.per_category or per_category)
    asked = Asked(max_tokens=effort.max_tokens or max_tokens, temperature=temperature)
    return question_cases(on, chosen, (turn,), asked), len(chosen)


def _workload_bar(on: Contest, name: str, effort: Effort, recorder: Recorder, cost: Cost | None) -> Bar:
    recipe, size, limit = WORKLOADS[name]
    asked = Asked(max_tokens=effort.max_tokens or 384)
    cases = recipe_cases(on.engine.tokenizer, [recipe], [size], range(effort.seeds or 3), asked)
    held = [prompt_once(case) for case in cases]
    lines = measured_lines(on, held, ARMS, prompts=len(held), rounds=effort.rounds or 2, recorder=recorder)
    return speed_up_bar(
        f"{name}, auto against plain: {on.model}",
        lines,
        arm="auto",
        limit=limit,
        note=_replayed(cases, cost),
    )


def _replayed(cases: Sequence[Case], cost: Cost | None) -> str:
    """What the ideal replies give, beside what the model says."""
    answers = [Answer(case.id, "gold", case.ids, case.gold) for case in cases]
    modes = {arm: Speculation(draft=arm) for arm in ARMS[1:]}
    found = compare(answers, modes, equal_rows=False, cost=cost)
    each = (f"{arm} tau {sums.tau:.2f}, {sums.speedup:.2f}x predicted" for arm, sums in found.items())
    return f"ideal replies replayed: {', '.join(each)}"


def _question_bars(on: Contest, name: str, effort: Effort, recorder: Recorder) -> Iterator[Bar]:
    turn, temperature = QUESTIONS[name]
    cases, prompts = asked_questions(on, turn, effort, per_category=2, max_tokens=256, temperature=temperature)
    lines = measured_lines(on, cases, ARMS, prompts=prompts, rounds=effort.rounds or 1, recorder=recorder)
    limit = LIMITS[name][on.model]
    told = f"{name}, auto against plain, all tokens: {on.model}"
    yield speed_up_bar(told, lines, arm="auto", limit=limit, reading="totals")
    if name == "mt-second" and on.model == MIDDLE:
        told = f"{name}, auto against plain, best category: {on.model}"
        yield best_category_bar(told, lines, arm="auto", limit=BEST_CATEGORY)


def _peer_bars(on: Contest, name: str, effort: Effort, recorder: Recorder) -> Iterator[Bar]:
    recipe, size = PEER_BARS[name]
    asked = Asked(max_tokens=effort.max_tokens or 256)
    cases = recipe_cases(on.engine.tokenizer, [recipe], [size], range(effort.seeds or 2), asked)
    held = [prompt_once(case) for case in cases]
    lines = measured_lines(on, held, _PEER_ARMS, prompts=len(held), rounds=effort.rounds or 2, recorder=recorder)
    told = f"{name}, auto against llama.cpp"
    yield speed_up_bar(f"{told}, plain: {on.model}", lines, arm="auto", baseline=PEER, limit=PEER_PLAIN)
    best = _fastest(lines, [arm for arm in PEER_ARMS if arm.startswith(f"{PEER}:")])
    yield speed_up_bar(
        f"{told}'s best n-gram mode, {best}: {on.model}", lines, arm="auto", baseline=best, limit=PEER_LOOKUP
    )


def _fastest(lines: Sequence[Line], arms: Sequence[str]) -> str:
    """The arm of the greatest median speed-up; the first where none has one."""
    speeds = {s.arm: s.ratios.median for s in summarise(lines, merge_sizes=True) if s.ratios is not None}
    return max(arms, key=lambda arm: speeds.get(arm, 0.0))
