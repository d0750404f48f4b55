"""Python files to be edited: the first whole units of a library file; a unit is a statement or a member of a class."""

from __future__ import annotations

import ast
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from exactspec.bench.recipes.base import TOLERANCE, CountTokens, Draft, fit_units, user
from exactspec.bench.recipes.materials import Materials, text_of

Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef

_ALIKE = "encodings/"  # tables made by one program
_MOST_FILES = 300  # tried before giving up on a size


@dataclass(frozen=True, slots=True)
class Source:
    """A library file. `ends`: last lines of its units, ascending; the text up to any of them is whole Python."""

    name: str
    lines: tuple[str, ...]
    ends: tuple[int, ...]

    def start(self, n: int) -> str:
        """The first n units."""
        return "".join(self.lines[: self.ends[n - 1]]).rstrip("\n") + "\n"


def sources(rng: random.Random, size: int, materials: Materials) -> Iterator[Source]:
    """Files that may hold `size` tokens, in a seeded order."""
    files = [(name, path) for name, path in materials.library_files(2 * size, 40 * size) if _ALIKE not in name]
    rng.shuffle(files)
    for name, path in files[:_MOST_FILES]:
        text = text_of(path)
        if text is None or "```" in text or "\f" in text or "\r" in text:
            continue
        try:
            body = ast.parse(text).body
        except (SyntaxError, ValueError):
            continue
        ends: set[int] = set()
        for node in body:
            members = node.body if isinstance(node, ast.ClassDef) else []
            ends |= {end for each in (node, *members) if (end := each.end_lineno) is not None}
        if ends:
            yield Source(name, tuple(text.splitlines(keepends=True)), tuple(sorted(ends)))


def fit_source(
    recipe: str,
    rng: random.Random,
    size: int,
    count: CountTokens,
    materials: Materials,
    change: Callable[[random.Random, Source, int], Draft | None],
) -> Draft:
    """The first draft of the size, made by `change` of a source's first n units.

    n is sought on the bare file, and once more on a size lowered by what the request then took. Raises ValueError if
    no library file gives a draft of the size.
    """
    for source in sources(rng, size, materials):
        base = rng.getrandbits(64)
        lengths: dict[int, int] = {}

        def bare(n: int, source: Source = source, lengths: dict[int, int] = lengths) -> int:
            if n not in lengths:
                lengths[n] = count(user(source.start(n)))
            return lengths[n]

        n = fit_units(len(source.ends), size, bare)
        first = None if n is None else change(random.Random(base), source, n)
        if n is None or first is None:
            continue
        length = count(first.messages)
        if _fits(length, size):
            return first
        n = fit_units(len(source.ends), size - (length - bare(n)), bare)
        for near in (n, n - 1, n + 1) if n is not None else ():
            draft = change(random.Random(base), source, near) if 1 <= near <= len(source.ends) else None
            if draft is not None and _fits(count(draft.messages), size):
                return draft
    raise ValueError(f"{recipe}: no library file gives a prompt of {size} tokens within 5%: ask for another size")


def _fits(length: int, size: int) -> bool:
    return abs(length - size) <= TOLERANCE * size


def parses(text: str) -> bool:
    """Whether Python accepts the text."""
    try:
        ast.parse(text)
    except (SyntaxError, ValueError):
        return False
    return True


def functions_of(text: str) -> list[Function]:
    """All functions and methods, in the order of their lines."""
    found = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    return sorted(found, key=lambda node: node.lineno)


def first_line(node: ast.stmt) -> int:
    """Of a statement, its decorators included; from 1 on."""
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    return min([node.lineno, *(decorator.lineno for decorator in decorators)])
