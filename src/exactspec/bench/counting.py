"""Acceptance counted through an engine: its drafters asked at every step, and what their lines say of how.

The bars of a layer and ``exactspec bench acceptance`` count alike, so a line of one is a line of the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from typing import Any

from exactspec.bench.acceptance import acceptance_case, acceptance_lines, text_of
from exactspec.bench.questions import Question
from exactspec.bench.recorder import Recorder
from exactspec.bench.store import Line
from exactspec.draft_names import model_draft
from exactspec.drafters.layer.sight import Sight
from exactspec.drafters.longspec import RECENT, LongSpecDrafter
from exactspec.drafters.union import UnionDrafter
from exactspec.params import Speculation


@dataclass(frozen=True, slots=True, kw_only=True)
class Counting:
    """`nodes` verified at a step; tokens of other text `in_front` of every prompt; `sight`: what layers see of the
    target's keys; None: what they do anyway."""

    nodes: int
    max_tokens: int
    in_front: int = 0
    temperature: float = 0.0
    sight: Sight | None = None


def counted_lines(
    engine: Any, model: str, asked: Sequence[Question], drafts: Mapping[str, str], how: Counting, recorder: Recorder
) -> list[Line]:
    """A line for each question and draft, by the names under which lines have them; the recorder's file gets those it
    does not hold. `model`: what lines call the engine's. Raises ValueError where a draft cannot be counted."""
    tokenizer = engine.tokenizer
    text = text_of(tokenizer, how.in_front) if how.in_front else ""
    cases = [
        acceptance_case(tokenizer, one, max_tokens=how.max_tokens, temperature=how.temperature, in_front=text)
        for one in asked
    ]
    drafters = {name: _drafter(engine, draft) for name, draft in drafts.items()}
    layers = [layer for drafter in drafters.values() for layer in _layers(drafter)]
    sight = how.sight or (layers[0].runner.sight if layers else Sight(RECENT))
    head: Line = {
        "model": model,
        "identity": engine.target.identity,
        "layers": sorted({layer.runner.card.weights_sha256 for layer in layers}),
        "recent": sight.recent or 0,
        "top_chunks": sight.top,
        "in_front": how.in_front,
        "temperature": how.temperature,
    }
    provenance = asdict(recorder.provenance())
    with ExitStack() as stack:
        for layer in layers:
            stack.enter_context(_always(layer, sight))
        return acceptance_lines(
            engine.target,
            tokenizer,
            cases,
            drafters,
            nodes=how.nodes,
            head=head,
            known=[{"top_chunks": 0, **line} for line in recorder.out.lines],  # early lines do not say that
            append=lambda line: recorder.out.append([{**line, "provenance": provenance}]),
            tell=recorder.progress,
        )


def _drafter(engine: Any, draft: str) -> Any:
    if model_draft(draft) is not None:
        raise ValueError(f"{draft!r} drafts with another model: acceptance is measured of what copies, and of layers")
    return engine.drafter(Speculation(draft=draft))


def _layers(drafter: Any) -> list[LongSpecDrafter]:
    parts = drafter.costly if isinstance(drafter, UnionDrafter) else (drafter,)
    return [part for part in parts if isinstance(part, LongSpecDrafter)]


@contextmanager
def _always(layer: LongSpecDrafter, sight: Sight) -> Iterator[None]:
    """Asked at every step, over the keys that are asked for; afterwards as it was, for the engine goes on with it."""
    before = layer.always, layer.runner.sight
    layer.always = True
    layer.runner.see(sight)
    try:
        yield
    finally:
        layer.always = before[0]
        layer.runner.see(before[1])
