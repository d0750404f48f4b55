"""Workloads by name: a recipe, a seed and a size in tokens give the same record, byte for byte, on every run."""

from __future__ import annotations

import json
import platform
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Final, TypeAlias

from exactspec.bench.copyshare import copy_share
from exactspec.bench.recipes import code_edit, false_friend, no_copy
from exactspec.bench.recipes.base import CountTokens, Draft, Message
from exactspec.bench.runner import Case
from exactspec.params import SamplingParams
from exactspec.target.tokenizer import Tokenizer

Recipe: TypeAlias = Callable[[random.Random, int, CountTokens], Draft]

RECIPES: Final[Mapping[str, Recipe]] = MappingProxyType(
    {"no_copy": no_copy.make, "false_friend": false_friend.make, "code_edit": code_edit.make}
)
"""The controls C1 (no_copy) and C2 (false_friend), and the copy-heavy code_edit."""

_LEAST_SIZE = 256
_SHORTEST_OUTPUT, _LONGEST_OUTPUT = 64, 1024


@dataclass(frozen=True, slots=True)
class WorkloadMeta:
    """`files`: materials used, by name. `units`: whole units in the prompt. `python`: whose library they are from.
    `prompt_tokens`: with the chat template. `copy_share`, `longest_run`: of the gold, see `copyshare`."""

    files: tuple[str, ...]
    units: int
    python: str
    prompt_tokens: int
    gold_tokens: int
    copy_share: float
    longest_run: int


@dataclass(frozen=True, slots=True)
class Workload:
    """One prompt. `size`: the length asked for, in tokens; `gold`: the ideal reply."""

    id: str
    workload: str
    size: int
    seed: int
    messages: tuple[Message, ...]
    gold: str
    meta: WorkloadMeta

    @property
    def max_tokens(self) -> int:
        """Output cap: the gold's length and a tenth more, within 64 to 1024 tokens."""
        return min(_LONGEST_OUTPUT, max(_SHORTEST_OUTPUT, self.meta.gold_tokens * 11 // 10))

    def json_line(self) -> str:
        """One line of JSON, keys sorted."""
        return json.dumps(asdict(self), sort_keys=True, ensure_ascii=False)


def prompt_ids(tokenizer: Tokenizer, messages: Sequence[Message]) -> list[int]:
    """Ids of a conversation as the target gets them: through the chat template, or the joined contents without one."""
    if tokenizer.has_chat_template:
        return tokenizer.chat(messages)
    ids = tokenizer.encode("\n\n".join(message["content"] for message in messages))
    return ids if tokenizer.bos_id is None else [tokenizer.bos_id, *ids]


def build(recipe: str, *, tokenizer: Tokenizer, size: int, seed: int) -> Workload:
    """The workload of (recipe, size, seed) for a tokenizer; `size` is the prompt length in tokens, met within 5%.

    Needs no network. Raises ValueError on an unknown recipe, a size below 256, or one that cannot be met.
    """
    if recipe not in RECIPES:
        raise ValueError(f"unknown recipe {recipe!r}: one of {', '.join(sorted(RECIPES))}")
    if size < _LEAST_SIZE:
        raise ValueError(f"size must be at least {_LEAST_SIZE} tokens, got {size}")
    draft = RECIPES[recipe](random.Random(seed), size, lambda messages: len(prompt_ids(tokenizer, messages)))
    prompt = prompt_ids(tokenizer, draft.messages)
    gold = tokenizer.encode(draft.gold)
    share = copy_share(prompt, gold)
    meta = WorkloadMeta(
        files=draft.files,
        units=draft.units,
        python=platform.python_version(),
        prompt_tokens=len(prompt),
        gold_tokens=len(gold),
        copy_share=round(share.copy_share, 4),
        longest_run=share.longest_run,
    )
    return Workload(f"{recipe}-{size}-{seed}", recipe, size, seed, draft.messages, draft.gold, meta)


def workload_case(tokenizer: Tokenizer, workload: Workload, *, max_tokens: int, temperature: float = 0.0) -> Case:
    """The workload as the runner takes it; the output cap is the smaller of the two.

    Greedy, small models fall into loops, in which copying pays whatever the prompt; sampled (`temperature` above 0,
    with the workload's seed, so that every arm must still emit the same tokens) they do not.
    """
    mode = f" T={temperature:g}" if temperature > 0 else ""
    return Case(
        id=workload.id + mode,
        ids=tuple(prompt_ids(tokenizer, workload.messages)),
        params=SamplingParams(
            max_tokens=min(max_tokens, workload.max_tokens), temperature=temperature, seed=workload.seed
        ),
        meta={
            "workload": workload.workload + mode,
            "size": workload.size,
            "seed": workload.seed,
            "copy_share": workload.meta.copy_share,
            "longest_run": workload.meta.longest_run,
        },
    )
