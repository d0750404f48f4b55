"""The bars of replayed ideal replies, with no model running: tokens a step at equal verified rows, predicted speed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import mean

from exactspec.bench.arms import parse_arm
from exactspec.bench.bar import Bar
from exactspec.bench.plan import Asked, recipe_cases
from exactspec.bench.recorder import Recorder
from exactspec.bench.replay import replay_cases
from exactspec.bench.runner import Contest
from exactspec.bench.runtime_bars import MIDDLE
from exactspec.bench.store import Line
from exactspec.bench.workloads import RECIPES
from exactspec.budget import Cost

NAME = "replay"
CONTROLS = ("no_copy", "false_friend")
WORKLOADS = tuple(name for name in RECIPES if name not in CONTROLS)
SIZE = 2048
TAU, SPEED = 1.6, 1.0
LIMITS: Mapping[str, Mapping[str, float]] = {NAME: {MIDDLE: TAU}}
_ARMS = ("copyspec", "auto")
_WHOLE = 1 << 20  # no cap: ideal replies are taken whole


def replay_bars(
    on: Contest,
    *,
    seeds: int,
    recorder: Recorder,
    cost: Cost | None,
    names: Sequence[str] = WORKLOADS,
    size: int = SIZE,
) -> Iterator[Bar]:
    """`auto` against the `copyspec` rule on every workload but the controls: mean ratio of tokens a step at equal
    rows, and the least ratio of predicted speed, each with the rows that it chooses and its own time."""
    cases = recipe_cases(on.engine.tokenizer, names, [size], range(seeds), Asked(max_tokens=_WHOLE))
    arms = [parse_arm(arm) for arm in _ARMS]
    yield _bar(
        f"replay, tokens a step at equal rows, auto to copyspec, mean of {len(names)} workloads: {on.model}",
        _ratios(replay_cases(on, cases, arms, equal_rows=True, recorder=recorder, cost=cost), "tau"),
        TAU,
        least=False,
    )
    yield _bar(
        f"replay, predicted speed, auto to copyspec, least of {len(names)} workloads: {on.model}",
        _ratios(
            replay_cases(on, cases, arms, equal_rows=False, recorder=recorder, cost=cost), "predicted_with_drafter"
        ),
        SPEED,
        least=True,
    )


def _ratios(lines: list[Line], figure: str) -> dict[str, float]:
    found: dict[str, dict[str, float]] = {}
    for line in lines:
        found.setdefault(line["workload"], {})[line["arm"]] = line[figure]
    old, new = _ARMS
    return {workload: by_arm[new] / by_arm[old] for workload, by_arm in found.items()}


def _bar(name: str, ratios: dict[str, float], limit: float, *, least: bool) -> Bar:
    return Bar(
        name=name,
        value=min(ratios.values()) if least else mean(ratios.values()),
        limit=limit,
        unit="x",
        detail=", ".join(f"{workload} {ratio:.2f}" for workload, ratio in ratios.items()),
    )
