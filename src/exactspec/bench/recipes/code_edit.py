"""Code edit, whole file back: one small change is asked for, and the reply is the file with all else unchanged."""

from __future__ import annotations

import ast
import difflib
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from exactspec.bench.recipes.base import TOLERANCE, CountTokens, Draft, Message, fit_units, user
from exactspec.bench.recipes.materials import Materials

_Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef
_MOST_FILES = 200  # tried before giving up on a size


@dataclass(frozen=True, slots=True)
class _Edit:
    instruction: str
    text: str


def make(rng: random.Random, size: int, count: CountTokens, materials: Materials) -> Draft:
    """A library file, or as many of its first whole statements as fit, with one seeded edit.

    Gold: the edited text, which `ast.parse` accepts. Asked for in one of two styles: by an instruction or by a
    unified diff. Raises ValueError if no file of the library gives the size.
    """
    style = rng.choice(("instruction", "diff"))
    files = list(materials.library_texts(smallest=2 * size, largest=40 * size))
    rng.shuffle(files)
    for name, text in files[:_MOST_FILES]:
        found = _from_file(rng, name, text, size, count, style)
        if found is not None:
            return found
    raise ValueError(f"code_edit: no library file gives a prompt of {size} tokens within 5%: ask for another size")


def _from_file(rng: random.Random, name: str, text: str, size: int, count: CountTokens, style: str) -> Draft | None:
    try:
        ends = [node.end_lineno or 0 for node in ast.parse(text).body]
    except (SyntaxError, ValueError):
        return None
    lines = text.splitlines(keepends=True)

    def start(n: int) -> str:
        return "".join(lines[: ends[n - 1]]).rstrip("\n") + "\n"

    # The request adds to the length, so the size is first sought without it, and then with fewer statements.
    most = fit_units(len(ends), size, lambda n: count(_ask(name, start(n), "Change one line.")))
    for n in range(most or 0, max(0, (most or 0) - 4), -1):
        kept = start(n)
        edit = _edit(rng, kept)
        if edit is None:
            continue
        messages = _ask(name, kept, _diff(kept, edit.text) if style == "diff" else edit.instruction)
        if abs(count(messages) - size) <= TOLERANCE * size:
            return Draft(messages, edit.text, (name,), n)
    return None


def _ask(name: str, text: str, request: str) -> tuple[Message, ...]:
    return user(
        f"Here is the file {name}:\n\n```python\n{text}```\n\n{request}\nReturn the full changed file and nothing else."
    )


def _diff(before: str, after: str) -> str:
    lines = difflib.unified_diff(before.splitlines(keepends=True), after.splitlines(keepends=True), "before", "after")
    return "Apply this change:\n\n```diff\n" + "".join(lines) + "```"


def _edit(rng: random.Random, text: str) -> _Edit | None:
    """The first edit that fits, of a seeded order of kinds and functions; None if the text has no room for any."""
    functions = [node for node in ast.walk(ast.parse(text)) if isinstance(node, _Function)]
    rng.shuffle(functions)
    kinds: list[Callable[[str, _Function], _Edit | None]] = [_docstring, _guard, _default]
    rng.shuffle(kinds)
    for kind in kinds:
        for function in functions:
            edit = kind(text, function)
            if edit is not None and edit.text != text and _parses(edit.text):
                return edit
    return None


def _docstring(text: str, function: _Function) -> _Edit | None:
    if ast.get_docstring(function) is not None or _one_line(function):
        return None
    sentence = f"Part of the public interface since the first release; {function.name} keeps its signature."
    new = _insert_above_body(text, function, (f'"""{sentence}"""',))
    return _Edit(f'Give the function {function.name} (line {function.lineno}) the docstring "{sentence}"', new)


def _guard(text: str, function: _Function) -> _Edit | None:
    names = [argument.arg for argument in function.args.args if argument.arg not in ("self", "cls")]
    if not names or _one_line(function) or ast.get_docstring(function) is not None:
        return None
    new = _insert_above_body(text, function, (f"if {names[0]} is None:", "    return None"))
    return _Edit(
        f"At the top of the function {function.name} (line {function.lineno}), return None if {names[0]} is None.", new
    )


def _default(text: str, function: _Function) -> _Edit | None:
    for node in function.args.defaults:
        if isinstance(node, ast.Constant) and node.value in (None, True, False) and node.end_col_offset is not None:
            lines = text.splitlines(keepends=True)
            raw = lines[node.lineno - 1].encode()
            new = repr(not node.value) if node.value is not None else "0"
            lines[node.lineno - 1] = (raw[: node.col_offset] + new.encode() + raw[node.end_col_offset :]).decode()
            return _Edit(
                f"In the function {function.name} (line {function.lineno}), change the first default argument that is "
                f"None, True or False to {new}.",
                "".join(lines),
            )
    return None


def _one_line(function: _Function) -> bool:
    return function.body[0].lineno == function.lineno


def _insert_above_body(text: str, function: _Function, added: Sequence[str]) -> str:
    lines = text.splitlines(keepends=True)
    first = function.body[0]
    at = min([first.lineno, *(d.lineno for d in getattr(first, "decorator_list", ()))]) - 1
    indent = " " * first.col_offset
    return "".join([*lines[:at], *(f"{indent}{line}\n" for line in added), *lines[at:]])


def _parses(text: str) -> bool:
    try:
        ast.parse(text)
    except (SyntaxError, ValueError):
        return False
    return True
