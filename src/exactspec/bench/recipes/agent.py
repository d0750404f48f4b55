"""Agent with tools: a scripted agent edits library packages; the next call is wanted. Short replies, long context."""

from __future__ import annotations

import ast
import json
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from exactspec.bench.recipes.base import CountTokens, Draft, Message, Plan, fit_draft, pick
from exactspec.bench.recipes.materials import Materials, text_of

_PACKAGES: Final = ("json", "email", "http", "logging", "urllib", "xml", "importlib", "unittest", "multiprocessing")
_MEASURED = 3  # last replies, at most
_MOST_STEPS = 160
_MOST_FOUND, _MOST_LISTED = 12, 14  # lines of a result
_TOOLS: Final = (
    "You work on a copy of Python's library with four tools:\n"
    '{"tool": "list_dir", "path": P}\n'
    '{"tool": "read_file", "path": P, "start": N, "end": N}\n'
    '{"tool": "grep", "pattern": TEXT, "path": P}\n'
    '{"tool": "edit", "path": P, "old": TEXT, "new": TEXT}\n'
    "grep finds plain text. edit replaces old, quoted exactly, by new. Reply with one sentence and then one call, a "
    "JSON object on a line of its own; each result comes back to you."
)
_REASONS: Final = (
    "Without that, anything further would be guesswork.",
    "Names alone do not tell enough here.",
    "Small steps make mistakes easy to find.",
    "Should it fail, little is lost and another way is open.",
    "One thing at a time keeps the order clear.",
    "Nothing seen up to now speaks against it.",
    "Others rely on this code, so care is due.",
    "Half of the work consists of looking closely.",
    "It may well turn out simpler than expected.",
    "Whatever comes back decides how to go on.",
    "Afterwards there will be fewer open questions.",
    "Tests could catch a slip, but seeing it first is cheaper.",
    "Guessing line numbers has gone wrong before.",
    "Everything needed for it is at hand by now.",
    "Similar spots elsewhere will profit from it too.",
    "Better to be sure than to repair it later.",
    "Style and spacing around there must survive.",
    "My list grows shorter with each of these.",
    "Again no detour seems necessary.",
    "That much follows from the task itself.",
)
_RAISE: Final = re.compile(r"^(\s*)raise (\w+)\((['\"])([A-Za-z][^'\"\\%{}]*)\3\)$")


@dataclass(frozen=True, slots=True)
class _Step:
    said: str
    call: dict[str, str | int]
    result: str

    @property
    def reply(self) -> str:
        return f"{self.said}\n{json.dumps(self.call, ensure_ascii=False)}"


@dataclass(slots=True)
class Folder:
    """Files of a package as the agent sees them; edits stay in here."""

    files: dict[str, list[str]] = field(default_factory=dict)

    def list_dir(self, path: str) -> str:
        """Names below a folder, with their number of lines."""
        names = [f"{name} ({len(lines)} lines)" for name, lines in sorted(self.files.items()) if name.startswith(path)]
        more = [f"... and {len(names) - _MOST_LISTED} more"] if len(names) > _MOST_LISTED else []
        return "\n".join([*names[:_MOST_LISTED], *more])

    def read_file(self, path: str, start: int, end: int) -> str:
        """Lines `start` to `end`, from 1 on, each with its number."""
        lines = self.files[path][start - 1 : end]
        return "\n".join(f"{start + i:5d}  {line}" for i, line in enumerate(lines))

    def found(self, pattern: str, path: str) -> list[tuple[str, int]]:
        """Places of a text, file by file, line by line."""
        return [
            (name, i)
            for name, lines in sorted(self.files.items())
            if name.startswith(path)
            for i, line in enumerate(lines, 1)
            if pattern in line
        ]

    def grep(self, pattern: str, path: str) -> str:
        """Those places with their lines."""
        places = self.found(pattern, path)
        lines = [f"{name}:{i}: {self.files[name][i - 1].strip()}" for name, i in places[:_MOST_FOUND]]
        more = [f"... and {len(places) - _MOST_FOUND} more"] if len(places) > _MOST_FOUND else []
        return "\n".join([*lines, *more]) or "nothing found"

    def edit(self, path: str, old: str, new: str) -> str:
        """`old` must occur once."""
        text = "\n".join(self.files[path])
        if text.count(old) != 1:
            return f"error: old occurs {text.count(old)} times"
        self.files[path] = text.replace(old, new).split("\n")
        return f"{path}: 1 place changed"


def make(seed: int, size: int, count: CountTokens, materials: Materials) -> Draft:
    """A conversation of real calls on a copy of a package, results included; the last replies, up to three, are
    measured, each the next call in its place.

    Variants: `message`, every place where an error is raised gets another message; `parameter`, functions and their
    callers get a parameter more. Raises ValueError if no number of steps gives the size.
    """
    rng = random.Random(seed)
    variant = pick(("message", "parameter"), seed)
    files = materials.library_files()
    return fit_draft("agent", rng, size, count, lambda attempt: _plan(attempt, size, files, variant), attempts=64)


def _plan(rng: random.Random, size: int, files: Sequence[tuple[str, Path]], variant: str) -> Plan | None:
    package = rng.choice(_PACKAGES)
    folder = Folder()
    for name, path in files:
        text = text_of(path) if name.startswith(f"{package}/") else None
        if text is not None:
            folder.files[name] = text.splitlines()
    if not folder.files:
        return None
    task, script = (_messages if variant == "message" else _parameters)(rng, folder, package, _around(size))
    steps: list[_Step] = []
    for step in script:
        steps.append(step)
        if len(steps) == _MOST_STEPS:
            break
    opening = f"{_TOOLS}\n\nTask: {task}"

    def build(n: int) -> Draft:
        """n results are shown, and the call after them is asked for."""
        messages: list[Message] = [{"role": "user", "content": opening}]
        for step in steps[:n]:
            messages.append({"role": "assistant", "content": step.reply})
            messages.append({"role": "user", "content": f"Result:\n{step.result}"})
        earlier = tuple(2 * i + 1 for i in range(max(1, n - _MEASURED + 1), n))
        seen = {str(step.call["path"]) for step in steps[:n]} & set(folder.files)
        return Draft(tuple(messages), steps[n].reply, tuple(sorted(seen)), n, variant, earlier)

    return len(steps) - 1, build


def _around(size: int) -> int:
    """Most lines that are read above a place, and below it: long prompts have few steps, with much to read."""
    return max(8, size // 160)


def _call(rng: random.Random, folder: Folder, said: str, tool: str, path: str, **more: str | int) -> _Step:
    call: dict[str, str | int] = {"tool": tool, "path": path, **more}
    if tool == "list_dir":
        result = folder.list_dir(path)
    elif tool == "read_file":
        result = folder.read_file(path, int(more["start"]), int(more["end"]))
    elif tool == "grep":
        call = {"tool": tool, "pattern": more["pattern"], "path": path}
        result = folder.grep(str(more["pattern"]), path)
    else:
        result = folder.edit(path, str(more["old"]), str(more["new"]))
    return _Step(f"{said} {rng.choice(_REASONS)}", call, result)


def _messages(rng: random.Random, folder: Folder, package: str, around: int) -> tuple[str, Iterator[_Step]]:
    """Every `raise Error("text")` on one line, error by error."""
    places: dict[str, list[tuple[str, str]]] = {}
    for name, lines in sorted(folder.files.items()):
        for line in lines:
            found = _RAISE.match(line)
            if found and lines.count(line) == 1:
                places.setdefault(found[2], []).append((name, line))
    errors = sorted(places)
    rng.shuffle(errors)
    ending = rng.choice((" (see the manual)", "; try again", ", which is not supported", " in this version"))
    task = (
        f"in the package {package}, find every place where {', '.join(errors[:6])} and other errors are raised with "
        f'a fixed message, and add "{ending}" to the end of the message.'
    )

    def script() -> Iterator[_Step]:
        yield _call(rng, folder, "I look at the files first.", "list_dir", package)
        for error in errors:
            places[error].sort()
            yield _call(rng, folder, f"Where is {error} raised?", "grep", package, pattern=f"raise {error}(")
            for name, line in places[error]:
                yield from _look_and_edit(rng, folder, around, name, line, _longer(line, ending))
            yield _call(rng, folder, "I check the result.", "grep", package, pattern=ending)

    return task, script()


def _longer(line: str, ending: str) -> str:
    return line[:-2] + ending + line[-2:]


def _look_and_edit(rng: random.Random, folder: Folder, around: int, name: str, line: str, new: str) -> Iterator[_Step]:
    """Reads around the line, and edits it with as much around it as makes it unique."""
    at = folder.files[name].index(line) + 1
    start, end = max(1, at - rng.randint(2, around)), min(len(folder.files[name]), at + rng.randint(1, around))
    yield _call(rng, folder, f"I read the place in {name}.", "read_file", name, start=start, end=end)
    above = folder.files[name][at - 2] if at >= 2 else ""
    old = f"{above}\n{line}" if above.strip() and rng.random() < 0.5 else line
    changed = old[: len(old) - len(line)] + new
    yield _call(rng, folder, "Now I change it.", "edit", name, old=old, new=changed)


def _parameters(rng: random.Random, folder: Folder, package: str, around: int) -> tuple[str, Iterator[_Step]]:
    """Functions whose signature is one line that occurs once; calls of them that are one line and occur once."""
    signatures: list[tuple[str, str, str]] = []
    for name, lines in sorted(folder.files.items()):
        try:
            tree = ast.parse("\n".join(lines))
        except (SyntaxError, ValueError):
            continue
        for node in ast.walk(tree):
            if (
                isinstance(node, ast.FunctionDef)
                and node.lineno < node.body[0].lineno
                and not node.name.startswith("__")
            ):
                line = lines[node.lineno - 1]
                fits = line.endswith("):") and node.args.args and node.args.kwarg is None and not node.args.kwonlyargs
                if fits and node.args.vararg is None and lines.count(line) == 1:
                    signatures.append((name, node.name, line))
    rng.shuffle(signatures)
    parameter = rng.choice(("strict", "verbose", "timeout", "context"))
    listed = ", ".join(function for _, function, _ in signatures[:5])
    task = (
        f"in the package {package}, give the functions {listed} and then all others with a parameter of their own a "
        f"last parameter {parameter}=None, and pass {parameter}=None where they are called."
    )

    def script() -> Iterator[_Step]:
        yield _call(rng, folder, "I look at the files first.", "list_dir", package)
        for name, function, line in signatures:
            if folder.files[name].count(line) != 1:
                continue
            yield _call(rng, folder, f"Where is {function} used?", "grep", package, pattern=f"{function}(")
            yield from _look_and_edit(rng, folder, around, name, line, f"{line[:-2]}, {parameter}=None):")
            for place, call, new in _calls(folder, function, package, parameter):
                yield from _look_and_edit(rng, folder, around, place, call, new)

    return task, script()


def _calls(folder: Folder, function: str, package: str, parameter: str) -> Sequence[tuple[str, str, str]]:
    """(file, line, new line) of calls with all their plain arguments on one line, at most three."""
    call = re.compile(rf"\b{re.escape(function)}\(([^()]+)\)")
    found: list[tuple[str, str, str]] = []
    for name, i in folder.found(f"{function}(", package):
        line = folder.files[name][i - 1]
        hit = call.search(line)
        if hit is None or "def " in line or "class " in line or "#" in line or folder.files[name].count(line) != 1:
            continue
        if parameter in hit[1]:
            continue
        found.append((name, line, f"{line[: hit.end() - 1]}, {parameter}=None{line[hit.end() - 1 :]}"))
    return found[:3]
