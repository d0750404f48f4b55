"""Arms by name: draft modes of our engine, with options, and llama.cpp, plain or with its n-gram speculation.

    plain                          no drafts; `none` is the same
    copy, copyspec, auto, ...      a draft mode
    model:NAME                     a smaller model drafts; the engine must have it among its draft models
    copyspec+model:NAME@draft_length=4   the rule of CopySpec, else 4 tokens of the model
    copyspec@gamma=5@block=8       a mode with fields of `Speculation`
    llama.cpp                      llama.cpp, one token a step
    llama.cpp:lookup-10            with the prompt lookup of its Python binding, drafts of at most 10 tokens
    llama.cpp:simple-48, mod-64, ...   with the rules of its server's n-gram modes: ngram-simple, ngram-mod, ...

The tokens of a peer's arm are ours: see `peers/llama_cpp.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from exactspec.params import Speculation

PLAIN = "none"
PEER = "llama.cpp"
_RULES = ("lookup", "simple", "map-k", "map-k4v", "cache", "mod")
_MODES = ("lookup-2", "lookup-10", "simple-16", "simple-48", "map-k-48", "map-k4v-48", "cache-16", "mod-64")
PEER_ARMS = (PEER, *(f"{PEER}:{mode}" for mode in _MODES))
"""Draft lengths that are named for these rules: by the binding 10, and 2 for machines without a GPU; by the server 16
if nothing is said, 48 as the most of `simple` and the length of the runs that the maps hold, 64 in the example for
`mod`."""


@dataclass(frozen=True, slots=True)
class Arm:
    """`name`: as result lines have it. `speculation`: of our engine; None for a peer's arm, whose drafts are
    made by `rule` ("": none), of at most `most` tokens."""

    name: str
    speculation: Speculation | None
    rule: str = ""
    most: int = 0

    @property
    def peer(self) -> bool:
        return self.speculation is None


def parse_arm(word: str) -> Arm:
    """The arm of a name. Raises ValueError, naming what is unknown.

    >>> parse_arm("plain").name, parse_arm("llama.cpp:lookup-2").most
    ('none', 2)
    """
    if word.startswith(PEER):
        if word == PEER:
            return Arm(word, None)
        rule, _, count = word.removeprefix(PEER + ":").rpartition("-")
        if rule not in _RULES or not (count.isdecimal() and 1 <= int(count) <= 64):
            raise ValueError(f"{word!r} is no arm: llama.cpp has {', '.join(PEER_ARMS)}, with 1 to 64 tokens")
        return Arm(f"{PEER}:{rule}-{int(count)}", None, rule, int(count))
    parts = word.split("@")
    options = [part for part in parts[1:] if "=" in part]
    draft = "@".join(part for part in parts if part not in options)  # a model's name may hold one
    draft = PLAIN if draft == "plain" else draft
    known = {field.name: field.type for field in fields(Speculation) if field.name != "draft"}
    given: dict[str, Any] = {}  # Speculation checks them itself
    for option in options:
        key, _, value = option.partition("=")
        if key not in known:
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


def _value(word: str) -> int | float | str:
    for kind in (int, float):
        try:
            return kind(word)
        except ValueError:
            continue
    return word
