"""Single edits of a Python file, each a replacement of whole lines with its instruction in words."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from exactspec.bench.recipes.sources import Function, first_line

_MODULE = "logging"


@dataclass(frozen=True, slots=True)
class Edit:
    """Lines `first` to `last` (from 1 on, last excluded; equal: nothing is taken away) become `lines`. `more`: a
    second place that changes with it."""

    instruction: str
    first: int
    last: int
    lines: tuple[str, ...]
    more: Edit | None = None

    def places(self) -> list[Edit]:
        """This one and the second, if there is one."""
        return [self] if self.more is None else [self, self.more]

    def touches(self, other: Edit) -> bool:
        """Whether both want the same lines, or neighbouring ones."""
        return any(a.first <= b.last and b.first <= a.last for a in self.places() for b in other.places())


Kind: TypeAlias = Callable[[ast.Module, Sequence[str], Function], Edit | None]


def apply(text: str, edits: Sequence[Edit]) -> str:
    """The text with the edits, whose lines are those of `text`."""
    lines = text.splitlines(keepends=True)
    places = [place for edit in edits for place in edit.places()]
    for place in sorted(places, key=lambda place: place.first, reverse=True):
        lines[place.first - 1 : place.last - 1] = place.lines
    return "".join(lines)


def _docstring(tree: ast.Module, lines: Sequence[str], function: Function) -> Edit | None:
    if ast.get_docstring(function) is not None or _one_line(function):
        return None
    sentence = f"Part of the public interface since the first release; {function.name} keeps its signature."
    return _above_body(function, f'Give {_named(function)} the docstring "{sentence}"', (f'"""{sentence}"""',))


def _guard(tree: ast.Module, lines: Sequence[str], function: Function) -> Edit | None:
    names = [argument.arg for argument in function.args.args if argument.arg not in ("self", "cls")]
    if not names or _one_line(function) or ast.get_docstring(function) is not None:
        return None
    told = f"At the top of {_named(function)}, return None if {names[0]} is None."
    return _above_body(function, told, (f"if {names[0]} is None:", "    return None"))


def _default(tree: ast.Module, lines: Sequence[str], function: Function) -> Edit | None:
    for node in function.args.defaults:
        if isinstance(node, ast.Constant) and node.value in (None, True, False) and node.end_lineno == node.lineno:
            raw = lines[node.lineno - 1].encode()
            new = repr(not node.value) if isinstance(node.value, bool) else "0"
            if isinstance(node.value, int) and not isinstance(node.value, bool):
                continue  # 0 and 1 are equal to False and True
            line = (raw[: node.col_offset] + new.encode() + raw[node.end_col_offset :]).decode()
            told = f"In {_named(function)}, change the first default argument that is None, True or False to {new}."
            return Edit(told, node.lineno, node.lineno + 1, (line,))
    return None


def _delete(tree: ast.Module, lines: Sequence[str], function: Function) -> Edit | None:
    """A method, with the empty lines below it; a class keeps at least one statement."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and function in node.body and len(node.body) > 1:
            last = (function.end_lineno or 0) + 1
            if last - first_line(function) > 30:
                return None
            while last <= len(lines) and not lines[last - 1].strip():
                last += 1
            told = f"Delete the method {function.name} of the class {node.name} (line {function.lineno})."
            return Edit(told, first_line(function), last, ())
    return None


def _import(tree: ast.Module, lines: Sequence[str], function: Function) -> Edit | None:
    """An import below the last one at the top, and its use in the function."""
    imports = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    if not imports or _one_line(function) or f"import {_MODULE}\n" in lines or ast.get_docstring(function) is not None:
        return None
    at = (imports[0].end_lineno or 0) + 1
    if function.lineno < at or any(a.arg == _MODULE for a in ast.walk(function.args) if isinstance(a, ast.arg)):
        return None
    told = (
        f"Import {_MODULE} below the first import, and let {_named(function)} begin with the statement "
        f'{_MODULE}.debug("{function.name}").'
    )
    use = _above_body(function, told, (f'{_MODULE}.debug("{function.name}")',))
    return Edit(told, use.first, use.last, use.lines, more=Edit("", at, at, (f"import {_MODULE}\n",)))


KINDS: Final[tuple[Kind, ...]] = (_docstring, _guard, _default, _delete, _import)


def _named(function: Function) -> str:
    return f"the function {function.name} (line {function.lineno})"


def _one_line(function: Function) -> bool:
    return function.body[0].lineno == function.lineno


def _above_body(function: Function, told: str, added: Sequence[str]) -> Edit:
    at = first_line(function.body[0])
    indent = " " * function.body[0].col_offset
    return Edit(told, at, at, tuple(f"{indent}{line}\n" for line in added))
