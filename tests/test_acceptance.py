"""Sampled decoding accepts as much of a draft as theory says: the probability mass of the children of every node."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from scripted import IdTokenizer, TestDrafter, hash_target

from exactspec.drafters.base import DraftBudget, Verified
from exactspec.engine import Engine
from exactspec.params import SamplingParams, Speculation
from exactspec.tree import DraftTree

VOCAB = 14


class Knowing(TestDrafter):
    """Drafts trees of random tokens whose true probabilities it knows: those are the scores. Keeps, per step, the sum
    of the scores, its variance, and what was accepted."""

    name = "knowing"

    def __init__(self, *, temperature: float, seed: int) -> None:
        target = hash_target(vocab_size=VOCAB, order=1, scale=8.0)
        rows = np.array([target._logits([token]) for token in range(VOCAB)], dtype=np.float64) / temperature
        odds = np.exp(rows - rows.max(axis=1, keepdims=True))
        self.odds = odds / odds.sum(axis=1, keepdims=True)
        self.rng = np.random.default_rng(seed)
        self.steps: list[tuple[float, float, int, float, bool]] = []

    def draft(self, history: list[int], budget: DraftBudget) -> DraftTree:
        tokens: list[int] = []
        parents: list[int] = []
        scores: list[float] = []
        level = [(-1, history[-1], 1.0)]
        for _ in range(min(3, budget.max_depth)):
            below = []
            for parent, last, reached in level:
                # Some likely tokens and some others, so that small and large masses are both met.
                wanted = self.rng.choice(VOCAB, size=int(self.rng.integers(1, 4)), replace=False, p=self.odds[last])
                for token in wanted.tolist():
                    below.append((len(tokens), token, reached * self.odds[last, token]))
                    tokens.append(token)
                    parents.append(parent)
                    scores.append(below[-1][2])
            level = below
        zero = np.zeros(len(tokens), dtype=np.int64)
        score = np.array(scores, dtype=np.float32)
        return DraftTree(np.array(tokens), np.array(parents), zero, score, zero - 1, (self.name,))

    def commit(self, state: list[int], verified: Verified) -> None:
        super().commit(state, verified)
        tree = verified.tree
        if len(tree) and len(verified.tokens) == len(verified.path) + 1:
            depths = tree.depths()
            # Accepted length L is the sum over depths of [L >= depth]; E[L^2] = sum of (2 depth - 1) P(L >= depth).
            mean = float(tree.score.sum())
            square = float((tree.score * (2 * depths - 1)).sum())
            first = float(tree.score[tree.parents < 0].sum())
            self.steps.append((mean, square - mean**2, len(verified.path), first, len(verified.path) > 0))


@pytest.mark.parametrize("temperature", [0.7, 1.0, 1.6])
def test_accepted_lengths_are_the_mass_of_the_children(temperature: float) -> None:
    drafter = Knowing(temperature=temperature, seed=11)
    target = hash_target(vocab_size=VOCAB, order=1, scale=8.0)
    engine = Engine(target, IdTokenizer(VOCAB), draft=drafter, speculation=Speculation(draft="copyspec", block=64))
    params = SamplingParams(max_tokens=2500, temperature=temperature, seed=4)
    prompt = [3, 1, 4]
    answer = engine.generate(prompt, params)
    plain = Engine(hash_target(vocab_size=VOCAB, order=1, scale=8.0), IdTokenizer(VOCAB), draft="none")
    assert answer.token_ids == plain.generate(prompt, params).token_ids

    expected, variance, accepted, mass, hit = (
        np.array(column, dtype=float) for column in zip(*drafter.steps, strict=True)
    )
    assert len(expected) > 700
    assert expected.mean() > 0.4
    assert abs(accepted.sum() - expected.sum()) < 3.5 * np.sqrt(variance.sum())
    # Chi-square of the first level by how much mass the children had: 5 groups, 0.1% point of 5 degrees of freedom.
    order = np.argsort(mass)
    chi = 0.0
    for a, b in pairwise(np.linspace(0, len(order), 6).astype(int)):
        group = order[a:b]
        chi += (hit[group].sum() - mass[group].sum()) ** 2 / (mass[group] * (1 - mass[group])).sum()
    assert chi < 20.5


def test_the_comparison_would_see_a_walk_that_accepts_too_much() -> None:
    """The same figures with one step in eight counted one node too long."""
    drafter: Any = Knowing(temperature=1.0, seed=11)
    engine = Engine(
        hash_target(vocab_size=VOCAB, order=1, scale=8.0),
        IdTokenizer(VOCAB),
        draft=drafter,
        speculation=Speculation(draft="copyspec", block=64),
    )
    engine.generate([3, 1, 4], SamplingParams(max_tokens=2500, temperature=1.0, seed=4))
    expected, variance, accepted = (np.array(c, dtype=float) for c in list(zip(*drafter.steps, strict=True))[:3])
    accepted[::8] += 1
    assert abs(accepted.sum() - expected.sum()) > 3.5 * np.sqrt(variance.sum())
