"""Field case 26: nothing of one request feeds the next."""

from __future__ import annotations

import gc
import random
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from scripted import ByteTokenizer, ListTarget

from exactspec.drafters import CopyDrafter
from exactspec.drafters.base import DraftBudget, State
from exactspec.engine import Engine
from exactspec.params import SamplingParams
from exactspec.results import Completion
from exactspec.scheduling import Scheduler
from exactspec.tree import DraftTree

GO = 10
"""After the first line feed the model says the line again, and so on."""


def echo() -> ListTarget:
    def logits(path: list[int]) -> Any:
        row = np.zeros(260, dtype=np.float32)
        size = path.index(GO) + 1
        row[path[len(path) - size]] = 9.0
        return row

    return ListTarget(logits, vocab_size=260, max_length=8192)


class Traced(CopyDrafter):
    """Notes every proposal."""

    def __init__(self) -> None:
        super().__init__()
        self.proposed: list[list[int]] = []

    def propose(self, state: State, budget: DraftBudget) -> DraftTree:
        tree = super().propose(state, budget)
        self.proposed.append(tree.tokens.tolist())
        return tree


def prompts() -> tuple[list[int], list[int]]:
    rng = random.Random(3)
    words = ["def", "return", "self", "value", "index", "for", "in", "range", "len", "print", "None", "yield"]
    a = " ".join(rng.choice(words) for _ in range(400)).encode()[:1999]
    b = b"eggs, milk, flour, yeast, butter, salt, apples, pears, rice, beans, tea, honey, jam, oil, nuts, figs, leeks"
    return [*a, GO], [*b, GO]


def runs(tokens: list[int], n: int = 4) -> set[tuple[int, ...]]:
    return {tuple(tokens[i : i + n]) for i in range(len(tokens) - n + 1)}


class Slot:
    """A scheduler with one place, as an engine."""

    def __init__(self, engine: Engine) -> None:
        self.scheduler = Scheduler(engine, max_running=1)

    def generate(self, prompt: list[int], params: SamplingParams) -> Completion:
        return self.scheduler.submit(prompt, params, on_chunk=lambda chunk: None).result(60)


@pytest.fixture
def make_slot() -> Iterator[Callable[[str, Engine], Any]]:
    slots: list[Slot] = []

    def make(kind: str, engine: Engine) -> Any:
        if kind == "scheduler":
            slots.append(Slot(engine))
            return slots[-1]
        return engine.session() if kind == "session" else engine

    yield make
    for slot in slots:
        slot.scheduler.close()


@pytest.mark.parametrize("kind", ["engine", "session", "scheduler"])
def test_26_fifty_rounds(kind: str, make_slot: Callable[[str, Engine], Any]) -> None:
    a, b = prompts()
    params = SamplingParams(max_tokens=60)
    drafter = Traced()
    alone = Engine(echo(), ByteTokenizer(), draft=Traced()).generate(b, params)
    assert alone.token_ids == tuple(b[:60])
    assert alone.metrics.num_accepted_tokens > 20
    engine = Engine(echo(), ByteTokenizer(), draft=drafter)
    slot = make_slot(kind, engine)
    only_in_a = runs(a) - runs([*b, *b])
    for turn in range(50):
        assert slot.generate(a, params).token_ids == tuple(a[:60])
        drafter.proposed.clear()
        done = slot.generate(b, params)
        assert done.token_ids == alone.token_ids
        assert done.text == alone.text
        if kind != "session" or turn == 0:
            assert done.metrics.num_draft_tokens == alone.metrics.num_draft_tokens
            assert done.metrics.num_accepted_tokens == alone.metrics.num_accepted_tokens
        assert not any(runs(p) & only_in_a for p in drafter.proposed)
        drafter.proposed.clear()


@pytest.mark.parametrize("kind", ["engine", "session", "scheduler"])
def test_26_memory_does_not_grow_with_the_requests(kind: str, make_slot: Callable[[str, Engine], Any]) -> None:
    a, b = prompts()
    engine = Engine(echo(), ByteTokenizer(), draft="copy")
    slot = make_slot(kind, engine)
    held = []
    tracemalloc.start()
    for turn in range(9):
        slot.generate(a, SamplingParams(max_tokens=4))
        slot.generate(b, SamplingParams(max_tokens=4))
        if turn in (2, 8):
            gc.collect()
            held.append(tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()
    # One list of the long prompt's ids kept in each of the six rounds would be 96 kB.
    assert held[1] - held[0] < 30_000
