"""Tiny draft layers as drafters of tiny exact targets, and what their tests compare."""

from __future__ import annotations

from typing import Any

import numpy as np
from scripted import IdTokenizer
from tiny_layer import random_layer, tiny_card
from tiny_weights import RandomWeights

from exactspec.drafters.base import Context, DraftBudget, State
from exactspec.drafters.layer.runner import LayerRunner
from exactspec.drafters.layer.sight import Sight
from exactspec.drafters.longspec import LongSpecDrafter
from exactspec.engine import Engine
from exactspec.params import SamplingParams
from exactspec.target.base import Cache, FloatArray, Segment, Want
from exactspec.target.exact import ExactTarget
from exactspec.tree import DraftTree

SOURCE = RandomWeights()
VOCAB = SOURCE.config.vocab_size
TOKENIZER = IdTokenizer(VOCAB)


def drafter_of(
    target: ExactTarget,
    *,
    recent: int | None = None,
    top: int = 0,
    sharpness: float = 1.0,
    kind: type[LongSpecDrafter] = LongSpecDrafter,
    widths: tuple[int, ...] | None = None,
    **card: Any,
) -> LongSpecDrafter:
    layer = random_layer(tiny_card(SOURCE, **card))
    layer.matrices["cross_q"] *= np.float32(sharpness)
    return kind(LayerRunner(target, layer, sight=Sight(recent, top)), widths=widths, always=True)


def read(target: ExactTarget, tokens: np.ndarray) -> tuple[Cache, FloatArray]:
    """A cache of all but the last token, and its hidden states."""
    cache = target.new_cache()
    parts = [np.zeros((0, SOURCE.config.hidden_size), dtype=np.float32)]
    for at in range(0, len(tokens) - 1, 100):
        part = tokens[at : min(at + 100, len(tokens) - 1)]
        (rows,) = target.forward([Segment.chain(cache, part, Want.NONE)])
        parts.append(rows.hidden.copy())
        cache.keep(range(len(part)))
    return cache, np.concatenate(parts)


def begun(drafter: LongSpecDrafter, tokens: np.ndarray, cache: Cache, features: FloatArray | None) -> State:
    return drafter.begin(Context(tokens, np.zeros(0, dtype=np.int64), cache, features))


def paths(tokens: Any, parents: Any, scores: Any) -> dict[tuple[int, ...], float]:
    """Scores by path of ids."""
    found: list[tuple[int, ...]] = []
    for token, parent in zip(tokens.tolist(), parents.tolist(), strict=True):
        found.append((*(found[parent] if parent >= 0 else ()), token))
    return dict(zip(found, map(float, scores), strict=True))


def same(a: DraftTree, b: DraftTree) -> bool:
    return all(np.array_equal(x, y) for x, y in zip(a._columns(), b._columns(), strict=True))


def plain_text(target: ExactTarget, prompt: list[int], params: SamplingParams) -> np.ndarray:
    plain = Engine(target, TOKENIZER, draft="none").generate(prompt, params)
    return np.array([*prompt, *plain.token_ids])


class FromScratch(LongSpecDrafter):
    """Compares every proposal with that of a drafter which begins anew over the same history, bit for bit."""

    features: FloatArray  # of the whole text
    text: np.ndarray
    checks = 0

    def propose(self, state: State, budget: DraftBudget) -> DraftTree:
        tree = super().propose(state, budget)
        n = state.layer.length
        fresh = LongSpecDrafter.begin(
            self, Context(self.text[:n], np.zeros(0, dtype=np.int64), state.cache, self.features[: n - 1])
        )
        again = LongSpecDrafter.propose(self, fresh, budget)
        assert same(tree, again), n
        type(self).checks += 1
        return tree
