"""The bars of a shipped draft layer: what it costs, what it gets accepted, and how much faster `auto` is with it.

Acceptance is counted at the same number of verified rows on prompts that training keeps out (`acceptance`); speed is
decode time against our own plain decoding, at most `ROWS` rows a step, on answers in which nothing is copied from a
prompt. Figures are as good as the number of their prompts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from exactspec.bench.acceptance import acceptance_case, held_out_prompts, tau
from exactspec.bench.bar import Bar
from exactspec.bench.case import Case
from exactspec.bench.counting import Counting, counted_lines
from exactspec.bench.plan import prompt_once
from exactspec.bench.questions import Question
from exactspec.bench.recorder import Recorder
from exactspec.bench.runner import Contest
from exactspec.bench.runtime_bars import MIDDLE, SMALL
from exactspec.bench.speed_bars import Effort, measured_lines
from exactspec.bench.speed_up import speed_up_bar
from exactspec.bench.store import Line
from exactspec.draft_names import BESIDE, LAYER

NODES = 60
"""Of the trees whose acceptance is counted."""

ROWS = 12
"""Verified at a step, at most, where speed is measured."""

LIMITS: Mapping[str, Mapping[str, float]] = {
    "layer-pass": {SMALL: 0.08, MIDDLE: 0.08},  # one pass of one node, to one plain step
    "layer-tau": {SMALL: 2.3, MIDDLE: 2.4},  # alone
    "layer-beside": {SMALL: 1.15, MIDDLE: 1.15},  # tau beside copies and recycled tokens, to these alone, on chat
    "layer-long": {SMALL: 0.93, MIDDLE: 0.93},  # tau behind a long text, to that without it
    "layer-auto": {SMALL: 1.3, MIDDLE: 1.3},
    "layer-sampled": {SMALL: 1.15, MIDDLE: 1.15},
}
CODE = 1.1  # of `layer-beside`, on code
PASS_RATIO = 1.2  # a pass at the longest context to one at the shortest
_CONTEXTS = (1024, 4000, 8000)
_FREE_KINDS = ("story", "explain", "chat")
_FRONT = 6000
_TEMPERATURE = 0.8
# `auto` leaves the layer out where it can hardly pay: the arm that names it says what it gives there all the same.
_ARMS = ("none", *(f"{draft}@max_nodes={ROWS - 1}" for draft in (BESIDE, f"{BESIDE}+{LAYER}", "auto")))


def layer_bars(engine: Any, on: Contest, names: Sequence[str], *, effort: Effort, recorder: Recorder) -> Iterator[Bar]:
    """The named bars that the contest's model has; without a shipped layer none, which `progress` is told."""
    prompts: list[Question] = []
    for name in names:
        if on.model not in LIMITS.get(name, {}):
            continue
        if LAYER not in engine.drafts:
            recorder.progress(f"{name} is left out: no layer is shipped for {on.model}")
            continue
        limit = LIMITS[name][on.model]
        if name == "layer-pass":
            yield from _pass_bars(engine, on.model, limit, recorder)
            continue
        prompts = prompts or held_out_prompts((*_FREE_KINDS, "code"), effort.seeds or 4)  # takes seconds
        if name in ("layer-auto", "layer-sampled"):
            yield _speed_bar(on, name, limit, prompts, effort, recorder)
        else:
            yield from _acceptance_bars(engine, on.model, name, limit, prompts, effort, recorder)


def _pass_bars(engine: Any, model: str, limit: float, recorder: Recorder) -> Iterator[Bar]:
    from exactspec.bench.layer import measure_layer

    runner = _layer(engine).runner
    contexts = [context for context in _CONTEXTS if context < engine.target.max_length]
    cells = measure_layer(engine.target, runner, contexts=contexts, repeats=21)
    line = {"kind": "draft-layer", "model": model, "identity": engine.target.identity}
    line |= {"layer": runner.card.weights_sha256, "layer_bytes": runner.packed.nbytes, "recent": runner.sight.recent}
    recorder.out.append(
        [{**line, "cells": [asdict(cell) for cell in cells], "provenance": asdict(recorder.provenance())}]
    )
    told = "; ".join(
        f"{cell.context}: {cell.node_ms:.3f} ms, plain {cell.plain_ms:.2f} ms, {cell.request_bytes} bytes"
        for cell in cells
    )
    name = f"layer-pass, a node to a plain step at {contexts[0]} tokens: {model}"
    yield Bar(name=name, value=cells[0].node_ratio, limit=limit, unit="x", sense="at most", detail=told)
    name = f"layer-pass, at {contexts[-1]} tokens to {contexts[0]}: {model}"
    same = len({cell.request_bytes for cell in cells}) == 1
    ratio = cells[-1].node_ms / cells[0].node_ms
    yield Bar(name=name, value=ratio, limit=PASS_RATIO, unit="x", sense="at most", equal=same, detail=told)


def _acceptance_bars(
    engine: Any,
    model: str,
    name: str,
    limit: float,
    prompts: Sequence[Question],
    effort: Effort,
    recorder: Recorder,
) -> Iterator[Bar]:
    def lines(kinds: Sequence[str], drafts: Sequence[str], *, nodes: int, front: int = 0) -> list[Line]:
        asked = [one for one in prompts if one.category in kinds]
        how = Counting(nodes=nodes, max_tokens=effort.max_tokens or 128, in_front=front)
        return counted_lines(engine, model, asked, {draft: draft for draft in drafts}, how, recorder)

    if name == "layer-tau":
        found = lines((*_FREE_KINDS, "code"), (LAYER,), nodes=NODES)
        yield _tau_bar(f"{name}, alone, {NODES} nodes: {model}", tau(found), limit, found)
    elif name == "layer-beside":
        for kind, its in (("chat", limit), ("code", CODE)):
            for nodes in (ROWS - 1, NODES):
                found = lines((kind,), (BESIDE, f"{BESIDE}+{LAYER}"), nodes=nodes)
                taus = [tau([line for line in found if line["arm"] == arm]) for arm in (BESIDE, f"{BESIDE}+{LAYER}")]
                told = f"{name}, {kind}, {nodes} nodes: {model}"
                yield _tau_bar(told, taus[1] / taus[0], its, found, f"tau {taus[0]:.2f} to {taus[1]:.2f}")
    else:
        front = min(_FRONT, engine.target.max_length * 3 // 4)
        short, far = (lines(("chat",), (LAYER,), nodes=NODES, front=tokens) for tokens in (0, front))
        told = f"tau {tau(short):.2f} without, {tau(far):.2f} behind {front} tokens"
        yield _tau_bar(f"{name}: {model}", tau(far) / tau(short), limit, [*short, *far], told)


def _tau_bar(name: str, value: float, limit: float, lines: Sequence[Line], note: str = "") -> Bar:
    answers = len({(line["case"], line["work"]) for line in lines})
    detail = f"{answers} answers, {sum(line['completion_tokens'] for line in lines)} tokens"
    return Bar(name=name, value=value, limit=limit, unit="x", detail="; ".join([detail, *([note] if note else [])]))


def _speed_bar(
    on: Contest, name: str, limit: float, prompts: Sequence[Question], effort: Effort, recorder: Recorder
) -> Bar:
    temperature = _TEMPERATURE if name == "layer-sampled" else 0.0
    cases = [
        prompt_once(_named(case, name))
        for case in (
            acceptance_case(on.engine.tokenizer, one, max_tokens=effort.max_tokens or 128, temperature=temperature)
            for one in prompts
            if one.category in _FREE_KINDS
        )
    ]
    lines = measured_lines(on, cases, _ARMS, prompts=len(cases), rounds=effort.rounds or 2, recorder=recorder)
    told = f"{name}, at most {ROWS} rows, against plain: {on.model}"
    return speed_up_bar(told, lines, arm=_ARMS[-1], limit=limit, reading="totals")


def _named(case: Case, name: str) -> Case:
    return replace(case, meta={"workload": name, "size": 0, "kind_of_prompt": case.meta["workload"]})


def _layer(engine: Any) -> Any:
    """The shipped layer's drafter."""
    from exactspec.params import Speculation

    return engine.drafter(Speculation(draft=LAYER))
