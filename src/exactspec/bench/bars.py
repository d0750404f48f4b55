"""The bars: what must hold for a release, each measured, with its limit and whether it was met."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Protocol, cast

from exactspec.bench import layer_bars, model_bar, replay_bars, speed_bars
from exactspec.bench.asking import EngineLike
from exactspec.bench.bar import Bar
from exactspec.bench.case import Case
from exactspec.bench.peers.llama_cpp import LlamaCppPeer
from exactspec.bench.plan import Asked, prompt_once, recipe_cases
from exactspec.bench.propose import DrafterCost, drafter_cost
from exactspec.bench.recipes.materials import Materials
from exactspec.bench.recorder import Recorder
from exactspec.bench.report import latest
from exactspec.bench.runner import contest, measure, run_arms
from exactspec.bench.runtime_bars import LIMITS, RUNTIME_BARS, RuntimeEngine, RuntimeTools, runtime_bars
from exactspec.bench.serving import bars as serving_bars
from exactspec.bench.speed_bars import Effort
from exactspec.bench.speed_up import speed_up_bar
from exactspec.bench.store import Line
from exactspec.bench.workloads import prompt_ids
from exactspec.budget import Cost
from exactspec.drafters.base import Drafter
from exactspec.params import SamplingParams
from exactspec.target.tokenizer import Tokenizer

STORIES = "stories"
DEMO_MODEL = "smollm2-135m"
PEER_MODELS = ("smollm2-135m", "qwen2.5-coder-0.5b", "qwen2.5-coder-1.5b")
CONTROL_MODELS = ("smollm2-135m", "qwen2.5-coder-0.5b")
_OWN_BARS = ("demo", "propose", "controls", "peer")
BARS = (
    *_OWN_BARS,
    *speed_bars.LIMITS,
    *model_bar.LIMITS,
    *replay_bars.LIMITS,
    *layer_bars.LIMITS,
    *RUNTIME_BARS,
    *serving_bars.LIMITS,
)
QUESTION_BARS = (*speed_bars.NEED_QUESTIONS, *model_bar.LIMITS)
PEER_BARS = ("peer", *speed_bars.NEED_PEER, "one-row", "prefill")

DEMO_SPEED_UP = 3.0
PEER_SPEED_UP = 1.0
PROPOSE_US = 50.0
CONTROL_SPEED_UP = 0.98

_DEMO_TOKENS = 400
_PEER_CONTEXT, _PEER_TOKENS, _PEER_ROUNDS = 512, 64, 9
_HISTORIES = (1024, 8192, 32768)
_REPLAYED = 1024
_CONTROL_TOKENS = 128
_CONTROL_SIZES = (512, 2048)
_CONTROL_SEEDS = (0, 1)
_CONTROL_ROUNDS = 3
_ROUNDS = 5
_STORIES = (
    "Write a story about a lighthouse keeper who finds a map in a bottle.",
    "Write a story about two rival bakers in a small mountain town.",
    "Write a story about a robot that learns to paint.",
)


class OpenEngine(Protocol):
    def __call__(self, model: str, *, draft_models: Sequence[str] = ()) -> EngineLike: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """What the bars are measured with. `model_path`: the GGUF file of a named model. `effort`: how much is measured.
    `rows_cost`: of an engine's target, None where none was measured. `serving`: for the bars of the server."""

    open_engine: OpenEngine
    model_path: Callable[[str], Path]
    recorder: Recorder
    threads: int
    effort: Effort = field(default_factory=Effort)
    rows_cost: Callable[[EngineLike], Cost | None] = lambda engine: None
    serving: serving_bars.ServeTools | None = None

    @property
    def rounds(self) -> int:
        """Of every pair of the oldest bars."""
        return self.effort.rounds or _ROUNDS

    def record(self, bar: Bar) -> Bar:
        line = {"kind": "bar", **asdict(bar), "passed": bar.passed}
        self.recorder.out.append([{**line, "provenance": asdict(self.recorder.provenance())}])
        return bar

    def measured(self, bar: str, model: str) -> list[Line]:
        """The lines of one bar with the newest configuration."""
        return [line for line in latest(self.recorder.out.lines) if (line.get("bar"), line["model"]) == (bar, model)]


def all_bars(
    bench: Bench,
    *,
    only: Sequence[str],
    models: Sequence[str],
    demo_prompt: Path,
    drafter: Drafter,
    runtime: RuntimeTools,
) -> Iterator[Bar]:
    """Every bar that `only` names (of `BARS`), model by model so that each is loaded once."""
    for model in models:
        here = [
            name
            for name, its in (
                ("demo", (DEMO_MODEL,)),
                ("propose", (DEMO_MODEL,)),
                ("controls", CONTROL_MODELS),
                ("peer", PEER_MODELS),
                *LIMITS.items(),
                *speed_bars.LIMITS.items(),
                *model_bar.LIMITS.items(),
                *replay_bars.LIMITS.items(),
                *layer_bars.LIMITS.items(),
                *serving_bars.LIMITS.items(),
            )
            if name in only and model in its
        ]
        if not here:
            continue
        engine = bench.open_engine(model, draft_models=(model_bar.DRAFTER,) if model_bar.NAME in here else ())
        if "demo" in here:
            yield bench.record(demo_bar(bench, engine, demo_prompt))
        if "propose" in here:
            yield bench.record(propose_bar(engine.tokenizer, drafter))
        if "controls" in here:
            for recipe in (*replay_bars.CONTROLS, STORIES):
                for temperature in (0.0, 1.0):
                    yield bench.record(control_bar(bench, engine, model, recipe, temperature))
        if "peer" in here:
            yield bench.record(peer_bar(bench, engine, model))
        for bar in _drafting_bars(bench, engine, model, here):
            yield bench.record(bar)
        for bar in layer_bars.layer_bars(
            engine,
            contest(engine, model=model, recorder=bench.recorder),
            here,
            effort=bench.effort,
            recorder=bench.recorder,
        ):
            yield bench.record(bar)
        if bench.serving is not None:
            on = contest(engine, model=model, recorder=bench.recorder)
            for bar in serving_bars.serve_bars(on, here, tools=bench.serving, recorder=bench.recorder):
                yield bench.record(bar)
        # The protocol of the other bars names less of the engine than is measured here.
        for bar in runtime_bars(runtime, cast(RuntimeEngine, engine), model, here):
            yield bench.record(bar)


def _drafting_bars(bench: Bench, engine: EngineLike, model: str, names: Sequence[str]) -> Iterator[Bar]:
    """The bars of drafting, with llama.cpp where one needs it."""
    recorder, effort = bench.recorder, bench.effort
    here = [name for name in names if name in speed_bars.LIMITS]
    with ExitStack() as stack:
        peer = None
        if any(name in speed_bars.NEED_PEER for name in here):
            peer = stack.enter_context(LlamaCppPeer(bench.model_path(model), threads=bench.threads))
        on = contest(engine, model=model, recorder=recorder, peer=peer)
        cost = bench.rows_cost(engine) if here or replay_bars.NAME in names else None
        yield from speed_bars.speed_bars(on, here, effort=effort, recorder=recorder, cost=cost)
        if model_bar.NAME in names:
            yield from model_bar.model_bars(on, effort=effort, recorder=recorder)
        if replay_bars.NAME in names:
            yield from replay_bars.replay_bars(on, seeds=effort.seeds or 3, recorder=recorder, cost=cost)


def demo_bar(bench: Bench, engine: EngineLike, prompt: Path) -> Bar:
    """The demo's request, plain against copying: equal tokens, and at least `DEMO_SPEED_UP` as fast."""
    text = prompt.read_text(encoding="utf-8").removesuffix("\n")
    case = Case(
        id="demo",
        ids=tuple(prompt_ids(engine.tokenizer, [{"role": "user", "content": text}])),
        params=SamplingParams(max_tokens=_DEMO_TOKENS),
        meta={"bar": "demo", "workload": "demo", "size": 0},
    )
    run_arms(engine, [case], ("none", "copy"), model=DEMO_MODEL, repeats=bench.rounds, recorder=bench.recorder)
    lines = [line for line in bench.measured("demo", DEMO_MODEL) if line["work"] == case.work]
    return speed_up_bar(f"demo, copy against plain: {DEMO_MODEL}", lines, arm="copy", limit=DEMO_SPEED_UP)


def peer_bar(bench: Bench, engine: EngineLike, model: str) -> Bar:
    """Our plain decoding against llama.cpp's: the same file, the same prompt ids, round by round.

    Both run one token a step from the same position; the tokens may differ (each has its own arithmetic).
    """
    params = SamplingParams(max_tokens=_PEER_TOKENS, ignore_eos=True)
    warm_up = SamplingParams(max_tokens=_PEER_TOKENS // 4, ignore_eos=True)
    ids = tuple(_text_ids(engine.tokenizer, _PEER_CONTEXT))
    case = Case(id=f"plain-{_PEER_CONTEXT}", ids=ids, params=params)
    path = bench.model_path(model)
    with LlamaCppPeer(path, threads=bench.threads, context=_PEER_CONTEXT + 2 * _PEER_TOKENS) as peer:
        bench.recorder.rounds(
            {
                "llama.cpp": partial(peer.decode, ids, _PEER_TOKENS),
                "exactspec": partial(measure, engine, ids, params, draft="none"),
            },
            repeats=max(bench.rounds, _PEER_ROUNDS),
            same_tokens=False,
            head={
                "kind": "run",
                "bar": "peer",
                "model": model,
                "case": case.id,
                "work": case.work,
                "workload": "plain decoding",
                "size": _PEER_CONTEXT,
                "prompt_tokens": _PEER_CONTEXT,
            },
            warm_up=lambda: (peer.decode(ids, _PEER_TOKENS // 4), measure(engine, ids, warm_up, draft="none")),
        )
    lines = bench.measured("peer", model)
    name = f"plain decoding against llama.cpp: {model}"
    return speed_up_bar(name, lines, arm="exactspec", limit=PEER_SPEED_UP, same_tokens=False)


def control_bar(bench: Bench, engine: EngineLike, model: str, recipe: str, temperature: float) -> Bar:
    """A control, where copying cannot help (a recipe, or `STORIES`): `auto` at least at `CONTROL_SPEED_UP` of plain
    decoding.

    Measured greedy and sampled: a small model's greedy answers loop, so that only the sampled ones are a control.
    """
    if recipe == STORIES:
        cases = _stories(engine.tokenizer, temperature)
    else:
        asked = Asked(max_tokens=_CONTROL_TOKENS, temperature=temperature)
        cases = recipe_cases(engine.tokenizer, [recipe], _CONTROL_SIZES, _CONTROL_SEEDS, asked)
    cases = [prompt_once(replace(case, meta={**case.meta, "bar": "controls"})) for case in cases]
    rounds = bench.effort.rounds or _CONTROL_ROUNDS
    run_arms(engine, cases, ("none", "auto"), model=model, repeats=rounds, recorder=bench.recorder)
    name = str(cases[0].meta["workload"])
    lines = [line for line in bench.measured("controls", model) if line["workload"] == name]
    return speed_up_bar(f"control {name}, auto against plain: {model}", lines, arm="auto", limit=CONTROL_SPEED_UP)


def _stories(tokenizer: Tokenizer, temperature: float) -> list[Case]:
    mode = f" T={temperature:g}" if temperature > 0 else ""
    return [
        Case(
            id=f"{STORIES}-{number}{mode}",
            ids=tuple(prompt_ids(tokenizer, [{"role": "user", "content": text}])),
            params=SamplingParams(max_tokens=_CONTROL_TOKENS, temperature=temperature, seed=number),
            meta={"workload": STORIES + mode, "size": 0, "seed": number},
        )
        for number, text in enumerate(_STORIES)
    ]


def propose_bar(tokenizer: Tokenizer, drafter: Drafter) -> Bar:
    """The drafter's own time per step below `PROPOSE_US` at every history length: the slowest median counts."""
    text = _text_ids(tokenizer, max(_HISTORIES))
    costs: list[DrafterCost] = []
    for history in _HISTORIES:
        # What follows comes back from the middle of the history, so that there is something to propose.
        middle = history // 2
        back = text[middle : min(middle + _REPLAYED, history)]
        costs.append(drafter_cost(drafter, [*text[:history], *back], history=history))
    detail = "; ".join(
        f"{c.history}: propose {c.propose_us:.1f} (99%: {c.slowest_propose_us:.1f}), commit {c.commit_us:.1f}, "
        f"tau {c.tau:.1f}"
        for c in costs
    )
    return Bar(
        name=f"proposal time: {drafter.name}",
        value=max(cost.propose_us for cost in costs),
        limit=PROPOSE_US,
        unit="us",
        sense="below",
        detail=detail,
    )


def _text_ids(tokenizer: Tokenizer, n: int) -> list[int]:
    """n ids of ordinary text: the Python library's top-level files, joined."""
    ids: list[int] = []
    for name, text in Materials().library_texts(smallest=8_000):
        if "/" not in name:
            ids += tokenizer.encode(text)
        if len(ids) >= n:
            return ids[:n]
    raise ValueError(f"the Python library here holds fewer than {n} tokens of text: install a full Python")
