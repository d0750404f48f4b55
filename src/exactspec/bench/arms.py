"""Arms by name: draft modes of our engine, with options, and llama.cpp, plain or with its n-gram speculation.

    plain                          no drafts; `none` is the same
    copy, copyspec, auto, ...      a draft mode
    model:NAME                     a smaller model drafts; the engine is opened with it
    copyspec+model:NAME@draft_length=4   the rule of CopySpec, else 4 tokens of the model
    copyspec@gamma=5@block=8       a mode with fields of `Speculation`
    llama.cpp                      llama.cpp, one token a step
    llama.cpp:lookup-10            with the prompt lookup of its Python binding, drafts of at most 10 tokens

The tokens of a peer's arm are ours: see `peers/llama_cpp.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from exactspec.draft_names import model_draft
from exactspec.params import Speculation

PLAIN = "none"
PEER = "llama.cpp"
LOOKUPS = (2, 10)
"""Draft lengths that llama-cpp-python names for its prompt lookup: 10 by default, 2 for machines without a GPU."""
PEER_ARMS = (PEER, *(f"{PEER}:lookup-{tokens}" for tokens in LOOKUPS))


@dataclass(frozen=True, slots=True)
class Arm:
    """`name`: as result lines have it. `speculation`: of our engine; None for a peer's arm, where `lookup` is the
    length of its drafts (0: plain)."""

    name: str
    speculation: Speculation | None
    lookup: int = 0

    @property
    def peer(self) -> bool:
        return self.speculation is None

    @property
    def drafter_model(self) -> str:
        """The model that drafts, "" if none."""
        asked = None if self.speculation is None else model_draft(self.speculation.draft)
        return "" if asked is None else asked.model


def parse_arm(word: str) -> Arm:
    """The arm of a name. Raises ValueError, naming what is unknown.

    >>> parse_arm("plain").name, parse_arm("llama.cpp:lookup-2").lookup
    ('none', 2)
    """
    if word.startswith(PEER):
        if word == PEER:
            return Arm(word, None)
        kind, _, count = word.removeprefix(PEER + ":").partition("-")
        if kind != "lookup" or not (count.isdecimal() and 1 <= int(count) <= 64):
            raise ValueError(f"{word!r} is no arm: llama.cpp has {', '.join(PEER_ARMS)}")
        return Arm(f"{PEER}:lookup-{int(count)}", None, int(count))
    draft, *options = word.split("@")
    draft = PLAIN if draft == "plain" else draft
    known = {field.name: field.type for field in fields(Speculation) if field.name != "draft"}
    given: dict[str, Any] = {}  # Speculation checks them itself
    for option in options:
        key, _, value = option.partition("=")
        if key not in known or not value:
            raise ValueError(f"{word!r}: {option!r} is no option of a draft mode: NAME=VALUE, of {', '.join(known)}")
        given[key] = _value(value) if known[key] != "str" else value
    speculation = Speculation(draft=draft, **given)
    return Arm("@".join([draft, *options]), speculation)


def parse_arms(text: str) -> list[Arm]:
    """Arms with commas between; the first is the baseline. Raises ValueError."""
    arms = [parse_arm(word.strip()) for word in text.split(",")]
    if len({arm.name for arm in arms}) != len(arms):
        raise ValueError(f"the list names one twice: {text}")
    return arms


def one_drafter_model(arms: Sequence[Arm]) -> str:
    """The model that drafts in some of the arms, "" if none does. Raises ValueError on two of them."""
    models = sorted({arm.drafter_model for arm in arms} - {""})
    if len(models) > 1:
        raise ValueError(f"one drafting model at a time, got {', '.join(models)}")
    return models[0] if models else ""


def _value(word: str) -> int | float | str:
    for kind in (int, float):
        try:
            return kind(word)
        except ValueError:
            continue
    return word
