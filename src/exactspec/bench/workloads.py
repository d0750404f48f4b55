"""Workloads by name: a recipe, a seed and a size in tokens give the same record, byte for byte, on every run."""

from __future__ import annotations

import json
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Final, TypeAlias

from exactspec.bench.case import Case
from exactspec.bench.copyshare import copy_share
from exactspec.bench.recipes import (
    agent,
    code_edit,
    csv_json,
    false_friend,
    glossary,
    json_reemit,
    legal,
    log_evidence,
    md_table,
    no_copy,
    rag_quotes,
    rename,
    revise,
    sql_rewrite,
)
from exactspec.bench.recipes.base import CountTokens, Draft, Message
from exactspec.bench.recipes.materials import Materials
from exactspec.params import SamplingParams
from exactspec.prompts import common_prefix
from exactspec.target.tokenizer import Tokenizer

Recipe: TypeAlias = Callable[[int, int, CountTokens, Materials], Draft]
"""(seed, size, count, materials) -> draft."""

RECIPES: Final[Mapping[str, Recipe]] = MappingProxyType(
    {
        "no_copy": no_copy.make,
        "false_friend": false_friend.make,
        "code_edit": code_edit.make,
        "rename": rename.make,
        "rag_quotes": rag_quotes.make,
        "json_reemit": json_reemit.make,
        "glossary": glossary.make,
        "log_evidence": log_evidence.make,
        "revise": revise.make,
        "agent": agent.make,
        "csv_json": csv_json.make,
        "md_table": md_table.make,
        "legal": legal.make,
        "sql_rewrite": sql_rewrite.make,
    }
)
"""The controls C1 (no_copy) and C2 (false_friend), and the workloads of docs/benchmarks.md."""

EXTRAS: Final[Mapping[str, Recipe]] = MappingProxyType({"legal_licences": legal.make_licences})
"""Recipes of materials that Debian has and slim images lack; without them they fall back on what is always there."""

_LEAST_SIZE, _MOST_SIZE = 256, 131_072
_SHORTEST_OUTPUT, _LONGEST_OUTPUT = 64, 1024


@dataclass(frozen=True, slots=True)
class WorkloadMeta:
    """`files`: materials used, by name. `units`: whole units in the prompt. `variant`: which of the recipe's kinds.
    `python`: whose library the materials are from. `prompt_tokens`: of the last turn, with the chat template.
    `gold_tokens`, `copy_share`, `longest_run`: of the gold of all turns together, see `copyshare`."""

    files: tuple[str, ...]
    units: int
    variant: str
    python: str
    prompt_tokens: int
    gold_tokens: int
    copy_share: float
    longest_run: int


@dataclass(frozen=True, slots=True)
class Turn:
    """A reply that is measured. Its prompt is the workload's `messages[:before]`, `gold` the ideal reply; the figures
    are this turn's own."""

    before: int
    gold: str
    prompt_tokens: int
    gold_tokens: int
    copy_share: float
    longest_run: int

    @property
    def max_tokens(self) -> int:
        """Output cap: the gold's length and a tenth more, within 64 to 1024 tokens."""
        return min(_LONGEST_OUTPUT, max(_SHORTEST_OUTPUT, self.gold_tokens * 11 // 10))


@dataclass(frozen=True, slots=True)
class Workload:
    """A conversation and the replies in it that are measured, each by itself.

    `messages`: all before the last reply. `turns`: at least one, the last is the reply to all of `messages`. In a
    conversation of several turns the history of each holds the gold of those before, which is what `messages` has at
    that place: `messages[turn.before] == {"role": "assistant", "content": turn.gold}` for all turns but the last.
    `size`: the length asked for of the last turn's prompt, in tokens.
    """

    id: str
    workload: str
    size: int
    seed: int
    messages: tuple[Message, ...]
    turns: tuple[Turn, ...]
    meta: WorkloadMeta

    @property
    def gold(self) -> str:
        """The last turn's."""
        return self.turns[-1].gold

    def turn_id(self, turn: Turn) -> str:
        """The workload's id, and the turn's number from 1 on where there are several."""
        return self.id if len(self.turns) == 1 else f"{self.id}.{self.turns.index(turn) + 1}"

    def json_line(self) -> str:
        """One line of JSON, keys sorted; `gold` is the last turn's."""
        return json.dumps(asdict(self) | {"gold": self.gold}, sort_keys=True, ensure_ascii=False)


def prompt_ids(tokenizer: Tokenizer, messages: Sequence[Message]) -> list[int]:
    """Ids of a conversation as the target gets them: through the chat template, or the joined contents without one."""
    if tokenizer.has_chat_template:
        return tokenizer.chat(messages)
    ids = tokenizer.encode("\n\n".join(message["content"] for message in messages))
    return ids if tokenizer.bos_id is None else [tokenizer.bos_id, *ids]


def build(recipe: str, *, tokenizer: Tokenizer, size: int, seed: int, materials: Materials | None = None) -> Workload:
    """The workload of (recipe, size, seed) for a tokenizer; `size` is the prompt length in tokens, met within 5%.

    Needs no network. Raises ValueError on an unknown recipe, a size that is not from 256 to 131,072, or one that cannot
    be met.
    """
    recipes = {**RECIPES, **EXTRAS}
    if recipe not in recipes:
        raise ValueError(f"unknown recipe {recipe!r}: one of {', '.join(sorted(recipes))}")
    if not _LEAST_SIZE <= size <= _MOST_SIZE:  # a hundred times that would be looked for in all materials, for hours
        raise ValueError(f"size must be from {_LEAST_SIZE} to {_MOST_SIZE} tokens, got {size}")
    draft = recipes[recipe](seed, size, lambda messages: len(prompt_ids(tokenizer, messages)), materials or Materials())
    ends = (*draft.earlier, len(draft.messages))
    golds = (*(draft.messages[end]["content"] for end in draft.earlier), draft.gold)
    turns = tuple(_turn(tokenizer, draft.messages[:end], gold) for end, gold in zip(ends, golds, strict=True))
    tokens = sum(turn.gold_tokens for turn in turns)
    meta = WorkloadMeta(
        files=draft.files,
        units=draft.units,
        variant=draft.variant,
        python=platform.python_version(),
        prompt_tokens=turns[-1].prompt_tokens,
        gold_tokens=tokens,
        copy_share=round(sum(turn.copy_share * turn.gold_tokens for turn in turns) / max(1, tokens), 4),
        longest_run=max(turn.longest_run for turn in turns),
    )
    return Workload(f"{recipe}-{size}-{seed}", recipe, size, seed, draft.messages, turns, meta)


def _turn(tokenizer: Tokenizer, messages: Sequence[Message], gold: str) -> Turn:
    prompt, reply = prompt_ids(tokenizer, messages), tokenizer.encode(gold)
    share = copy_share(prompt, reply)
    return Turn(len(messages), gold, len(prompt), len(reply), round(share.copy_share, 4), share.longest_run)


def workload_cases(
    tokenizer: Tokenizer, workload: Workload, *, max_tokens: int, temperature: float = 0.0, reuse: bool = False
) -> tuple[Case, ...]:
    """Every turn as the runner takes it; the output cap is the smaller of `max_tokens` and the turn's own.

    Greedy, small models fall into loops, in which copying pays whatever the prompt; sampled (`temperature` above 0,
    with the workload's seed, so that every arm must still emit the same tokens) they do not. `reuse`: where earlier
    replies are in the history, a session holds the conversation up to the last of them.
    """
    mode = f" T={temperature:g}" if temperature > 0 else ""
    cases = []
    for number, turn in enumerate(workload.turns, 1):
        history = workload.messages[: turn.before]
        ids = prompt_ids(tokenizer, history)
        held = _held(tokenizer, history, ids) if reuse else 0
        case = Case(
            id=workload.turn_id(turn) + mode,
            ids=tuple(ids),
            params=SamplingParams(
                max_tokens=min(max_tokens, turn.max_tokens), temperature=temperature, seed=workload.seed
            ),
            held=held,
            drafter_held=held > 0,
            gold=tuple(tokenizer.encode(turn.gold)),
            meta={
                "workload": workload.workload + mode,
                "size": workload.size,
                "seed": workload.seed,
                "copy_share": turn.copy_share,
                "longest_run": turn.longest_run,
                **({"turn": number} if len(workload.turns) > 1 else {}),
            },
        )
        cases.append(case)
    return tuple(cases)


def _held(tokenizer: Tokenizer, history: Sequence[Message], ids: Sequence[int]) -> int:
    """How many of a conversation's ids a session has read when its last user message comes: those of all before."""
    replies = [i for i, message in enumerate(history) if message["role"] == "assistant"]
    if not replies or not tokenizer.has_chat_template:
        return 0
    before = tokenizer.chat(history[: replies[-1] + 1], add_generation_prompt=False)
    return min(common_prefix(before, ids), len(ids) - 1)
