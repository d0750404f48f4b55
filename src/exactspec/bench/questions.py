"""Question files in MT-Bench's form: one JSON object a line with `question_id`, `category` and `turns`.

The first turn is a prompt of its own. The second turn's history holds this model's own plain answer to the first, so it
can be made only when that answer is known; greedy, whatever the temperature of the second turn.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from exactspec.bench.case import Case
from exactspec.bench.workloads import prompt_ids
from exactspec.json_lines import json_lines
from exactspec.params import SamplingParams
from exactspec.prompts import common_prefix
from exactspec.splice import Transcript
from exactspec.target.tokenizer import Tokenizer

FIRST, SECOND = "first", "second"
TURNS = (FIRST, SECOND)
MAX_TOKENS = 512


@dataclass(frozen=True, slots=True)
class Question:
    """`file`: the stem of its file's name. `turns`: what the user says, one or more."""

    file: str
    id: str
    category: str
    turns: tuple[str, ...]

    @property
    def seed(self) -> int:
        """For sampling: the same in every run."""
        return zlib.crc32(f"{self.file}/{self.id}".encode())


def read_questions(path: Path) -> list[Question]:
    """Every question of a file. Raises ValueError naming the line that is not one, and on a file without any."""
    found: list[Question] = []
    for number, line in json_lines(path):
        turns = line.get("turns")
        if not isinstance(turns, list) or not turns or not all(isinstance(turn, str) and turn for turn in turns):
            raise ValueError(f"{path}, line {number}: a question is a JSON object with question_id, category and turns")
        found.append(
            Question(path.stem, str(line.get("question_id", number)), str(line.get("category", "all")), tuple(turns))
        )
    if not found:
        raise ValueError(f"{path} holds no questions")
    ids = [question.id for question in found]
    if len(set(ids)) != len(ids):
        raise ValueError(f"{path} has two questions of the same question_id")
    return found


def choose(
    questions: Sequence[Question], *, categories: Sequence[str] = (), per_category: int | None = None
) -> list[Question]:
    """Those of some categories (none named: of all), the first few of each. Raises ValueError on an unknown one."""
    known = sorted({question.category for question in questions})
    for category in categories:
        if category not in known:
            raise ValueError(f"no question is of category {category!r}: there are {', '.join(known)}")
    counts: dict[str, int] = {}
    chosen = []
    for question in questions:
        if categories and question.category not in categories:
            continue
        counts[question.category] = counts.get(question.category, 0) + 1
        if per_category is None or counts[question.category] <= per_category:
            chosen.append(question)
    return chosen


def first_case(tokenizer: Tokenizer, question: Question, *, max_tokens: int, temperature: float = 0.0) -> Case:
    """The first turn."""
    return _case(
        question,
        FIRST,
        prompt_ids(tokenizer, [_said("user", question.turns[0])]),
        max_tokens=max_tokens,
        temperature=temperature,
    )


def second_case(
    tokenizer: Tokenizer,
    question: Question,
    answer: Sequence[int],
    *,
    max_tokens: int,
    temperature: float = 0.0,
    reuse: bool = True,
) -> Case:
    """The second turn, behind `answer`, the plain greedy answer to the first with the same `max_tokens`.

    The answer's own ids stay where the chat template re-tokenises its text, as in a session. `reuse`: a session
    holds the first turn and its answer. Raises ValueError if there is no second turn.
    """
    if len(question.turns) < 2:
        raise ValueError(f"question {question.id} of {question.file} has no second turn")
    first, text = [_said("user", question.turns[0])], answer_text(tokenizer, answer)
    opening = prompt_ids(tokenizer, first)
    whole = prompt_ids(tokenizer, [*first, _said("assistant", text), _said("user", question.turns[1])])
    if tokenizer.has_chat_template:
        transcript = Transcript(tokenizer)
        transcript.record(opening, opening, answer, text)
        whole = transcript.splice(whole)
    case = _case(question, SECOND, whole, max_tokens=max_tokens, temperature=temperature)
    held = min(common_prefix([*opening, *answer], whole), len(whole) - 1)
    return replace(case, held=held, drafter_held=True) if reuse and held else case


def answer_text(tokenizer: Tokenizer, answer: Sequence[int]) -> str:
    """The text of an answer: without the token that ended it, nor a character that was cut in the middle."""
    data = b"".join(tokenizer.token_bytes(token) for token in answer if token not in tokenizer.eos_ids)
    return data.decode("utf-8", errors="ignore")


def _said(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def _case(question: Question, turn: str, ids: Sequence[int], *, max_tokens: int, temperature: float) -> Case:
    mode = f" T={temperature:g}" if temperature > 0 else ""
    meta: dict[str, Any] = {
        "workload": f"{question.file} {turn}{mode}",
        "size": 0,
        "seed": question.seed,
        "question": question.id,
        "category": question.category,
        "turn": turn,
    }
    params = SamplingParams(max_tokens=max_tokens, temperature=temperature, seed=question.seed)
    return Case(id=f"{question.file}-{question.id}-{turn}{mode}", ids=tuple(ids), params=params, meta=meta)
