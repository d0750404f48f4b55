"""The bars of the server: several clients against one, against full steps and llama.cpp's server; what HTTP adds;
second turns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace

from exactspec.bench.bar import Bar
from exactspec.bench.case import Case
from exactspec.bench.recorder import Recorder
from exactspec.bench.runner import Contest
from exactspec.bench.runtime_bars import MIDDLE
from exactspec.bench.serving.cases import COPY, PLAIN, copy_cases, plain_cases
from exactspec.bench.serving.contests import (
    LOAD,
    ONE,
    OVERHEAD,
    PEER,
    SERVER,
    TURN,
    Serving,
    measure_load,
    measure_overhead,
    several,
)
from exactspec.bench.serving.processes import ServerProcess
from exactspec.bench.serving.report import Group, groups, overhead_percent, turn_percent, wrong
from exactspec.bench.serving.turns import measure_turns
from exactspec.bench.stats import Ratios
from exactspec.bench.store import Line

CLIENTS = 8
LIMITS: Mapping[str, Mapping[str, float]] = {
    "serve-plain": {MIDDLE: 4.0},  # times one client's rate
    "serve-copy": {MIDDLE: 80.0},  # per cent of what full steps allow
    "serve-peer": {MIDDLE: 2.5},  # times llama.cpp's server
    "serve-overhead": {MIDDLE: 3.0},  # per cent of the decode time
    "serve-turn": {MIDDLE: 15.0},  # per cent of the cold time to the first token
}
NEED_PEER = ("serve-peer",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How much is measured. `requests`: of a round of each load. `sizes`: of copy-heavy prompts, in tokens, and
    `history` of a conversation's first turn. None: the model has no room for it."""

    clients: int = CLIENTS
    requests: int = 8
    rounds: int = 5
    plain_tokens: int = 128
    copy_tokens: int = 256
    sizes: tuple[int, ...] = (512, 1024)
    history: int = 4096

    @property
    def slot_tokens(self) -> int:
        """What a slot of the peer must hold, rounded up to its own pages."""
        longest = max(max(self.sizes) * 21 // 20 + self.copy_tokens, 256 + self.plain_tokens)
        return -(-longest // 256) * 256


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeTools:
    """What these bars are measured with: our server on a model, and the peer's; None: there is none."""

    server: Callable[[str], AbstractContextManager[ServerProcess]]
    peer: Callable[[str, Sizes], AbstractContextManager[ServerProcess]] | None
    sizes: Sizes


def serve_bars(on: Contest, names: Sequence[str], *, tools: ServeTools, recorder: Recorder) -> Iterator[Bar]:
    """The named bars that the contest's model has; those of `NEED_PEER` only where there is a peer."""
    here = [name for name in names if on.model in LIMITS.get(name, {})]
    here = [name for name in here if tools.peer is not None or name not in NEED_PEER]
    parts = [part for part, its in _PARTS.items() if set(its) & set(here)]
    if not here:
        return
    with_peer = any(name in NEED_PEER for name in here)
    lines = measure(on, parts, tools=tools if with_peer else replace(tools, peer=None), recorder=recorder)
    clients = several(tools.sizes.clients)
    loads = {group.workload: group for group in groups(lines, LOAD)}
    if "serve-plain" in here:
        yield _times(f"{clients}, plain text, to one", on.model, loads[PLAIN], clients, ONE, LIMITS["serve-plain"])
    if "serve-copy" in here:
        yield _copy_bar(on.model, loads[COPY], clients)
    if "serve-peer" in here:
        for workload in (PLAIN, COPY):
            name = f"{clients}, {workload}, to llama.cpp's server"
            yield _times(name, on.model, loads[workload], clients, PEER, LIMITS["serve-peer"])
    if "serve-overhead" in here:
        yield _overhead_bar(on.model, groups(lines, OVERHEAD))
    if "serve-turn" in here:
        yield _turn_bar(on.model, groups(lines, TURN)[0])


PARTS = (PLAIN, COPY, OVERHEAD, TURN)
_PARTS: Mapping[str, Sequence[str]] = {
    PLAIN: ("serve-plain", "serve-peer"),
    COPY: ("serve-copy", "serve-peer"),
    OVERHEAD: ("serve-overhead",),
    TURN: ("serve-turn",),
}


def measure(
    on: Contest, parts: Sequence[str], *, tools: ServeTools, recorder: Recorder, settle_s: float = 0.5
) -> list[Line]:
    """Run what the file does not hold of the named `PARTS`; the lines of all their rounds, old and new."""
    works: list[str] = []
    sizes, tokenizer = tools.sizes, on.engine.tokenizer
    with ExitStack() as stack:
        server = stack.enter_context(tools.server(on.model))
        peer = None
        if tools.peer is not None and {PLAIN, COPY} & set(parts):
            peer = stack.enter_context(tools.peer(on.model, sizes))
        identity = str(getattr(on.engine, "identity", ""))
        at = Serving(on=on, server=server, recorder=recorder, identity=identity, peer=peer, settle_s=settle_s)
        plain, copying = list[Case](), list[Case]()
        if {PLAIN, OVERHEAD} & set(parts):
            plain = plain_cases(tokenizer, sizes.requests, max_tokens=sizes.plain_tokens)
        if {COPY, OVERHEAD} & set(parts):
            copying = copy_cases(tokenizer, sizes.requests, sizes=sizes.sizes, max_tokens=sizes.copy_tokens)
        if PLAIN in parts:
            works += measure_load(at, PLAIN, plain, clients=sizes.clients, rounds=sizes.rounds, full_step=False)
        if COPY in parts:
            works += measure_load(at, COPY, copying, clients=sizes.clients, rounds=sizes.rounds, full_step=True)
        if OVERHEAD in parts:
            works += measure_overhead(at, [plain[0], copying[0]], ["none", "auto"], rounds=2 * sizes.rounds)
        if TURN in parts:
            works += measure_turns(at, history=sizes.history, rounds=sizes.rounds)
    return [line for line in recorder.out.lines if line.get("work") in works and line.get("model") == on.model]


def _times(name: str, model: str, group: Group, arm: str, baseline: str, limits: Mapping[str, float]) -> Bar:
    ratios = group.ratios(baseline, arm)
    detail = "every round was flagged" if ratios is None else f"{_told(ratios)}; {_rates(group, (baseline, arm))}"
    return Bar(
        name=f"{name}: {model}",
        value=0.0 if ratios is None else ratios.median,
        limit=limits[model],
        unit="x",
        equal=wrong(group) == 0,
        detail=detail,
    )


def _copy_bar(model: str, group: Group, arm: str) -> Bar:
    ratios = group.of_full_step(arm)
    step = group.of(arm)[0]
    return Bar(
        name=f"{arm}, copy-heavy, to full steps: {model}",
        value=0.0 if ratios is None else 100 * ratios.median,
        limit=LIMITS["serve-copy"][model],
        unit="%",
        equal=wrong(group) == 0,
        detail="the clients were never all answered at once"
        if ratios is None
        else f"{_told(ratios)}; {step['step_rows']} rows in {1e3 * step['step_s']:.0f} ms; {_rates(group, (ONE, arm))}",
    )


def _overhead_bar(model: str, found: Sequence[Group]) -> Bar:
    each = {group.workload: overhead_percent(group) for group in found}
    values = [value for value in each.values() if value is not None]
    return Bar(
        name=f"what the server adds to the library, one stream: {model}",
        value=max((value[0] for value in values), default=0.0),
        limit=LIMITS["serve-overhead"][model],
        unit="%",
        sense="below",
        equal=len(values) == len(each) and not any(group.flagged(SERVER) for group in found),
        detail="; ".join(
            f"{name}: {'flagged' if v is None else f'{v[0]:+.2f}%, 95% {v[1]:+.2f} to {v[2]:+.2f}'}"
            for name, v in each.items()
        ),
    )


def _turn_bar(model: str, group: Group) -> Bar:
    found = turn_percent(group)
    assert found is not None  # one token each: no pair can be flagged
    return Bar(
        name=f"first token of a second turn, to the cold one: {model}",
        value=found[0],
        limit=LIMITS["serve-turn"][model],
        unit="%",
        sense="below",
        detail=f"95% {found[1]:.1f}-{found[2]:.1f}; {group.workload}",
    )


def _told(ratios: Ratios) -> str:
    return f"{ratios.pairs} rounds, 95% {ratios.low:.3f}-{ratios.high:.3f}"


def _rates(group: Group, arms: Sequence[str]) -> str:
    rate = {arm: group.middle(arm, lambda line: line["completion_tokens"] / line["decode_s"]) for arm in arms}
    return ", ".join(
        f"{arm} {value:.1f} tok/s (together {group.middle(arm, lambda line: line['together_tokens_per_s']):.1f})"
        for arm, value in rate.items()
    )
