"""Refactor by renaming: the same file with other names, so that every copy breaks at each of them."""

from __future__ import annotations

import ast
import builtins
import io
import keyword
import random
import re
import tokenize
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from exactspec.bench.recipes.base import CountTokens, Draft, pick, user
from exactspec.bench.recipes.materials import Materials
from exactspec.bench.recipes.sources import Source, fit_source, functions_of, parses

_FEWEST, _MOST = 8, 60  # times that a name occurs
_FEWEST_SMALL = 4  # in a file of less than 1,000 tokens
_PREFIXES: Final = ("source_", "current_", "inner_", "resolved_", "pending_")
_SPLICE = tuple[int, int, str]  # line from 1 on, column in characters, what stands there


@dataclass(frozen=True, slots=True)
class _Renamed:
    request: str
    text: str


def make(seed: int, size: int, count: CountTokens, materials: Materials) -> Draft:
    """A library file, or as many of its first whole units as fit, with names changed throughout.

    Variants: `name`, one identifier that occurs 8 to 60 times; `camel`, all functions named with underscores to
    camel case; `class`, a class and the mentions of it in texts and comments; `hints`, every parameter and every
    return without a type gets one. Gold: spliced at the tokens' places, so that all else stays byte by byte, and
    accepted by `ast.parse`. Raises ValueError if no file of the library gives the size.
    """
    rng = random.Random(seed)
    variant = pick(tuple(_VARIANTS), seed)

    def change(attempt: random.Random, source: Source, n: int) -> Draft | None:
        before = source.start(n)
        found = _VARIANTS[variant](attempt, before, _FEWEST if size >= 1000 else _FEWEST_SMALL)
        if found is None or found.text == before or not parses(found.text):
            return None
        text = f"Here is the file {source.name}:\n\n```python\n{before}```\n\n{found.request}"
        whole = user(f"{text} Change nothing else. Return the full changed file and nothing else.")
        return Draft(whole, found.text, (source.name,), n, variant)

    return fit_source("rename", rng, size, count, materials, change)


def _names(text: str) -> dict[str, list[tuple[int, int]]]:
    """Places (line from 1 on, column in characters) of every NAME token."""
    found: dict[str, list[tuple[int, int]]] = {}
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.NAME:
            found.setdefault(token.string, []).append(token.start)
    return found


def _free(text: str) -> set[str]:
    """Names that may be renamed token by token: in no f-string, whose inner names are tokens since Python 3.12 only."""
    inside: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.JoinedStr):
            inside |= {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
            inside |= {part.attr for part in ast.walk(node) if isinstance(part, ast.Attribute)}
    fixed = {*keyword.kwlist, *keyword.softkwlist, *dir(builtins), "self", "cls"}
    return {name for name in _names(text) if name not in fixed and name not in inside and not name.startswith("__")}


def splice(text: str, names: Mapping[str, str]) -> str:
    """The text with NAME tokens replaced, and everything between them as it was."""
    lines = text.splitlines(keepends=True)
    places = [(place, old, new) for old, new in names.items() for place in _names(text).get(old, ())]
    for (line, column), old, new in sorted(places, reverse=True):
        was = lines[line - 1]
        lines[line - 1] = was[:column] + new + was[column + len(old) :]
    return "".join(lines)


def _name(rng: random.Random, text: str, fewest: int) -> _Renamed | None:
    names, free = _names(text), _free(text)
    fitting = sorted(
        name for name, places in names.items() if name in free and fewest <= len(places) <= _MOST and len(name) > 2
    )
    if not fitting:
        return None
    old = rng.choice(fitting)
    new = rng.choice(_PREFIXES) + old.strip("_").lower()
    if new in names:
        return None
    request = (
        f"Rename the identifier {old} to {new} wherever it is used as a name in the code, not in texts or comments."
    )
    return _Renamed(request, splice(text, {old: new}))


def _camel(rng: random.Random, text: str, fewest: int) -> _Renamed | None:
    names, free = _names(text), _free(text)
    renamed: dict[str, str] = {}
    for function in functions_of(text):
        words = function.name.lstrip("_").split("_")
        if function.name not in free or len(words) < 2 or not all(words):
            continue
        lead = function.name[: len(function.name) - len(function.name.lstrip("_"))]
        renamed[function.name] = lead + words[0] + "".join(word.capitalize() for word in words[1:])
    if len(renamed) < 2 or any(new in names for new in renamed.values()):
        return None
    listed = ", ".join(f"{old} -> {new}" for old, new in renamed.items())
    request = f"Rename these functions, and all uses of their names in the code, to camel case: {listed}."
    return _Renamed(request, splice(text, renamed))


def _class(rng: random.Random, text: str, fewest: int) -> _Renamed | None:
    """Whole words everywhere, texts and comments included."""
    classes = [node.name for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ClassDef)]
    fitting = sorted(
        name
        for name in set(classes)
        if 3 <= len(re.findall(rf"\b{re.escape(name)}\b", text)) <= _MOST and f"Base{name}" not in text
    )
    if not fitting:
        return None
    old = rng.choice(fitting)
    new = f"Base{old.lstrip('_')}"
    request = f"Rename the class {old} to {new} everywhere: in the code, in texts and in comments."
    return _Renamed(request, re.sub(rf"\b{re.escape(old)}\b", new, text))


def _hints(rng: random.Random, text: str, fewest: int) -> _Renamed | None:
    """`: object` behind parameters, `-> object` before the colon that ends the signature."""
    functions = functions_of(text)
    if len(functions) < 2:
        return None
    added: list[_SPLICE] = []
    lines = text.splitlines(keepends=True)
    for function in functions:
        every = function.args
        listed = [*every.posonlyargs, *every.args, *every.kwonlyargs, every.vararg, every.kwarg]
        for argument in listed:
            if argument is not None and argument.annotation is None and argument.arg not in ("self", "cls"):
                line = argument.lineno
                column = len(lines[line - 1].encode()[: argument.end_col_offset].decode())
                added.append((line, column, ": object"))
        if function.returns is None:
            place = _colon(lines, function.lineno, function.body[0].lineno)
            if place is None:
                return None
            added.append((*place, " -> object"))
    for line, column, new in sorted(added, reverse=True):
        was = lines[line - 1]
        lines[line - 1] = was[:column] + new + was[column:]
    request = (
        "Add type hints: ': object' to every parameter that has none, other than self and cls, and '-> object' to "
        "every function that has no return type. Leave the spaces as they are, those around defaults too."
    )
    return _Renamed(request, "".join(lines))


def _colon(lines: list[str], first: int, last: int) -> tuple[int, int] | None:
    """Place of the colon that ends the signature of a function that begins at line `first`."""
    depth = 0
    text = "".join(lines[first - 1 : last])
    started = False
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            started = started or token.string == "def"
            if not started or token.type != tokenize.OP:
                continue
            depth += (token.string in "([{") - (token.string in ")]}")
            if token.string == ":" and depth == 0:
                return first - 1 + token.start[0], token.start[1]
    except (tokenize.TokenError, IndentationError):
        return None
    return None


_VARIANTS: Final[Mapping[str, Callable[[random.Random, str, int], _Renamed | None]]] = {
    "name": _name,
    "class": _class,
    "camel": _camel,
    "hints": _hints,
}
