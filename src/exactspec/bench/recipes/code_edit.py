"""Code edit, whole file back: a few changes are asked for, and the reply is the file with all else unchanged."""

from __future__ import annotations

import ast
import difflib
import random
from typing import Final

from exactspec.bench.recipes.base import CountTokens, Draft, user
from exactspec.bench.recipes.edits import KINDS, Edit, apply
from exactspec.bench.recipes.materials import Materials
from exactspec.bench.recipes.sources import Function, Source, first_line, fit_source, functions_of, parses

_COUNTS: Final = (1, 3, 10)
_TWINS: Final = 5  # one seed in so many: two almost equal functions
_TOKENS_PER_EDIT = 170  # of the prompt, at least: a file of 512 tokens has no room for ten edits


def make(seed: int, size: int, count: CountTokens, materials: Materials) -> Draft:
    """A library file, or as many of its first whole units as fit, with 1, 3 or 10 seeded edits: fewer where they do
    not fit.

    Variants: the number of edits, or `twins`: the file holds two almost equal functions, and the edit is in the
    second; each with `instruction`, asked for in words, or `diff`, as a unified diff. Gold: the edited text, which
    `ast.parse` accepts. Raises ValueError if no file of the library gives the size.
    """
    rng = random.Random(seed)
    style = ("instruction", "diff")[seed % 2]
    twins = seed % _TWINS == _TWINS - 1
    drawn = 1 if twins else min(_COUNTS[seed % len(_COUNTS)], max(1, size // _TOKENS_PER_EDIT))
    wanted = max(each for each in _COUNTS if each <= drawn)
    fewer = [each for each in reversed(_COUNTS) if each < wanted or (twins and each == wanted)]
    tries = [(wanted, twins), *((each, False) for each in fewer)]
    for edits, with_twins in tries:  # a small prompt may have no room for what was drawn
        try:
            return _fit(rng, size, count, materials, edits, with_twins, style)
        except ValueError as error:
            refused = error
    raise refused


def _fit(
    rng: random.Random,
    size: int,
    count: CountTokens,
    materials: Materials,
    wanted: int,
    twins: bool,
    style: str,
) -> Draft:
    def change(attempt: random.Random, source: Source, n: int) -> Draft | None:
        before = source.start(n)
        only = None
        if twins:
            doubled = _twins(attempt, before)
            if doubled is None:
                return None
            before, only = doubled
        edits = _edits(attempt, before, wanted, only)
        if len(edits) < wanted:
            return None
        after = apply(before, edits)
        if not parses(after):
            return None
        request = _diff(before, after) if style == "diff" else _told(edits)
        text = f"Here is the file {source.name}:\n\n```python\n{before}```\n\n{request}"
        variant = f"{'twins' if twins else wanted} {style}"
        whole = user(f"{text}\nReturn the full changed file and nothing else.")
        return Draft(whole, after, (source.name,), n, variant)

    return fit_source("code_edit", rng, size, count, materials, change)


def _told(edits: list[Edit]) -> str:
    if len(edits) == 1:
        return edits[0].instruction
    return "Make these changes (line numbers are those of the file above):\n" + "\n".join(
        f"{i}. {edit.instruction}" for i, edit in enumerate(edits, 1)
    )


def _diff(before: str, after: str) -> str:
    lines = difflib.unified_diff(before.splitlines(keepends=True), after.splitlines(keepends=True), "before", "after")
    return "Apply this change:\n\n```diff\n" + "".join(lines) + "```"


def _edits(rng: random.Random, text: str, wanted: int, only: str | None) -> list[Edit]:
    """At most `wanted` edits at places that do not touch, top down; in the function `only`, if given."""
    functions = [f for f in functions_of(text) if only is None or f.name == only]
    rng.shuffle(functions)
    lines = tuple(text.splitlines(keepends=True))
    tree = ast.parse(text)
    found: list[Edit] = []
    for function in functions:
        kinds = list(KINDS)
        rng.shuffle(kinds)
        for kind in kinds:
            edit = kind(tree, lines, function)
            if edit is not None and not any(edit.touches(other) for other in found):
                found.append(edit)
                break
        if len(found) == wanted:
            break
    return sorted(found, key=lambda edit: edit.first)


def _twins(rng: random.Random, text: str) -> tuple[str, str] | None:
    """The text with a top-level function written a second time below itself, under another name and with one line
    more; and that name."""
    body = [node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)]
    fitting: list[Function] = [f for f in body if 4 <= (f.end_lineno or 0) - f.lineno <= 40 and "\n" not in f.name]
    names = {f.name for f in body}
    fitting = [f for f in fitting if f"{f.name}_again" not in names and f.body[0].lineno > f.lineno]
    if not fitting:
        return None
    function = rng.choice(fitting)
    lines = text.splitlines(keepends=True)
    first, last = first_line(function), function.end_lineno or 0
    copied = lines[first - 1 : last]
    at = function.lineno - first
    name = f"{function.name}_again"
    copied[at] = copied[at].replace(f"def {function.name}", f"def {name}", 1)
    indent = " " * function.body[-1].col_offset
    below = first_line(function.body[-1]) - first
    copied.insert(below, f"{indent}pass  # the second time\n")
    doubled = "".join([*lines[:last], "\n", "\n", *copied, *lines[last:]])
    return (doubled, name) if parses(doubled) else None
