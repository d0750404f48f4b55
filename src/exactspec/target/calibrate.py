"""Which products of a model take wide activations: measured once, on the model itself.

Where a wide product costs a second one (byte instructions), only some can have it. Which ones matter cannot be read off
the activations: the relative rounding noise of the last layer's products is that of any other layer's, and they lose
fifty times as much, because nothing follows that would dampen it. So the loss is measured where it counts. A few fixed
tokens go through the model with everything wide, then with one part narrow at a time; the loss of a part is what
that does to the logits. Parts are then made wide in the order of loss per multiply-add, within a budget, until those
that stay narrow lose little enough: a model that takes bytes well keeps them. A part with four-bit weights, which have
no wide form, loses nothing and is not chosen.

The result is a pure function of the weights and of the runtime's bits: the tokens are ids of a fixed sequence, small
ids (frequent ones, in vocabularies of merges) being more likely.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

import numpy as np

from exactspec.philox import uniform
from exactspec.target.base import FloatArray
from exactspec.target.precision import KINDS, Wide
from exactspec.target.weights import ModelConfig

Logits: TypeAlias = Callable[[Wide], FloatArray]
"""Logits [rows, vocabulary] of the calibration's tokens under given flags; may be overwritten by the next call."""

ROWS = 48  # tokens of a calibration
INNER_RUNS = 4  # the layers between the first two and the last two are measured in this many runs
BUDGET = 0.36  # of a row's multiply-adds: two models' vocabulary, query-key-value and last layer take 35%
ENOUGH = 0.002  # nats a token that narrow parts may lose together: about 0.2% of perplexity
SEED = 1


@dataclass(frozen=True, slots=True)
class Part:
    """What is switched together: one kind of product in layers `start` .. `stop` - 1, or the head (kind "head").
    `cost`: multiply-adds of a row."""

    kind: str
    start: int
    stop: int
    cost: int


def calibration_tokens(vocab_size: int, count: int) -> list[int]:
    """`count` fixed ids below `vocab_size`, the logarithm of id + 1 uniform.

    >>> calibration_tokens(49152, 4)
    [15019, 1420, 13, 3583]
    """
    draws = (uniform(seed=SEED, choice=0, index=i) for i in range(count))
    return [min(int(vocab_size**u) - 1, vocab_size - 1) for u in draws]


def parts_of(config: ModelConfig) -> list[Part]:
    """All products of a row, in parts: the first two and the last two layers alone, those between in runs."""
    layers, hidden, heads = config.num_layers, config.hidden_size, config.num_heads * config.head_dim
    edge = min(2, layers // 2)
    inner = np.linspace(edge, layers - edge, INNER_RUNS + 1).astype(int).tolist()
    borders = sorted({*range(edge), *inner, *range(layers - edge, layers + 1)})
    cost = {
        "qkv": hidden * (heads + 2 * config.num_kv_heads * config.head_dim),
        "o": heads * hidden,
        "gate_up": 2 * hidden * config.intermediate_size,
        "down": hidden * config.intermediate_size,
    }
    parts = [
        Part(kind, start, stop, (stop - start) * cost[kind]) for kind in KINDS for start, stop in pairwise(borders)
    ]
    return [*parts, Part("head", 0, 0, hidden * config.vocab_size)]


def flags(parts: Sequence[Part], wide: Sequence[bool], num_layers: int) -> Wide:
    """`wide`: one flag per part."""
    layers = [[False] * len(KINDS) for _ in range(num_layers)]
    head = False
    for part, flag in zip(parts, wide, strict=True):
        if part.kind == "head":
            head = flag
            continue
        for layer in range(part.start, part.stop):
            layers[layer][KINDS.index(part.kind)] = flag
    return Wide(tuple(map(tuple, layers)), head)


def divergence(change: FloatArray, probability: FloatArray) -> float:
    """What a change of the logits does, in nats a row: the Kullback-Leibler divergence to second order, half the
    change's variance under the row's own distribution. Both [rows, vocabulary]."""
    mean = (probability * change).sum(axis=1, keepdims=True)
    return float((probability * (change - mean) ** 2).sum(axis=1).mean()) / 2


def losses(parts: Sequence[Part], logits: Logits, num_layers: int) -> list[float]:
    """Nats a token that each part loses by being narrow, all others wide."""
    reference = logits(flags(parts, [True] * len(parts), num_layers)).copy()
    probability = np.exp(reference - reference.max(axis=1, keepdims=True))
    probability /= probability.sum(axis=1, keepdims=True)
    found = []
    for i in range(len(parts)):
        narrow = logits(flags(parts, [j != i for j in range(len(parts))], num_layers))
        found.append(divergence(narrow - reference, probability))
    return found


def choose(parts: Sequence[Part], lost: Sequence[float], budget: float, enough: float = 0.0) -> list[bool]:
    """The parts to make wide: by loss per multiply-add, each that still fits into `budget` (a share of all of them).
    None more once the others lose at most `enough` together; a part that loses nothing stays narrow.

    >>> choose([Part("qkv", 0, 1, 30), Part("o", 0, 1, 50), Part("head", 0, 0, 20)], [3.0, 9.0, 1.0], 0.5)
    [False, True, False]
    """
    room = budget * sum(part.cost for part in parts)
    left = sum(lost)
    chosen = [False] * len(parts)
    for i in sorted(range(len(parts)), key=lambda i: (-lost[i] / parts[i].cost, i)):
        if left > enough and lost[i] > 0 and parts[i].cost <= room:
            room -= parts[i].cost
            left -= lost[i]
            chosen[i] = True
    return chosen


def calibrate(config: ModelConfig, logits: Logits, *, budget: float = BUDGET, enough: float = ENOUGH) -> Wide:
    """The flags of a model. `logits`: runs `calibration_tokens` (some 30 times)."""
    parts = parts_of(config)
    return flags(parts, choose(parts, losses(parts, logits, config.num_layers), budget, enough), config.num_layers)
