"""Which cases a run measures, in order: workloads by recipe, size and seed, and the turns of questions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from exactspec.bench.case import Case
from exactspec.bench.questions import FIRST, SECOND, Question, first_case, second_case
from exactspec.bench.runner import Contest, plain_answer
from exactspec.bench.workloads import build, workload_cases
from exactspec.target.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """How every prompt is asked. `max_tokens`: cap of an answer. `reuse`: a later turn starts from a session that
    holds the earlier ones."""

    max_tokens: int
    temperature: float = 0.0
    reuse: bool = True


def recipe_cases(
    tokenizer: Tokenizer, names: Sequence[str], sizes: Sequence[int], seeds: Sequence[int], asked: Asked
) -> list[Case]:
    """The measured turns of every recipe, size and seed."""
    return [
        case
        for name in names
        for size in sizes
        for seed in seeds
        for case in workload_cases(
            tokenizer,
            build(name, tokenizer=tokenizer, size=size, seed=seed),
            max_tokens=asked.max_tokens,
            temperature=asked.temperature,
            reuse=asked.reuse,
        )
    ]


def question_cases(on: Contest, questions: Sequence[Question], turns: Sequence[str], asked: Asked) -> Iterator[Case]:
    """The asked turns of every question. A second turn is made when it is its turn to be measured: the plain answer
    to the first is then known, from the result file, from the round just measured, or generated for it."""
    tokenizer = on.engine.tokenizer
    for question in questions:
        if FIRST in turns:
            yield first_case(tokenizer, question, max_tokens=asked.max_tokens, temperature=asked.temperature)
        if SECOND in turns:
            answer = plain_answer(on, first_case(tokenizer, question, max_tokens=asked.max_tokens))
            yield second_case(
                tokenizer,
                question,
                answer,
                max_tokens=asked.max_tokens,
                temperature=asked.temperature,
                reuse=asked.reuse,
            )


def prompt_once(case: Case) -> Case:
    """The case with its prompt read once for all arms and rounds, where decoding alone is looked at. Drafters still
    begin in the decode clock."""
    return case if case.held or len(case.ids) < 2 else replace(case, held=len(case.ids) - 1)
