"""What recipes share: the shape of their result, the size search, and the materials of the Python library."""

from __future__ import annotations

import sysconfig
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

Message: TypeAlias = Mapping[str, str]
CountTokens: TypeAlias = Callable[[Sequence[Message]], int]
"""Prompt length in tokens of a conversation, chat template included."""

TOLERANCE = 0.05
"""A prompt's length may differ from the size asked for by this share."""

_SKIPPED_FOLDERS = frozenset({"test", "tests", "idlelib", "lib2to3", "site-packages", "dist-packages", "turtledemo"})


@dataclass(frozen=True, slots=True)
class Draft:
    """What a recipe makes. `gold`: the ideal reply, known by construction. `files`: materials, by name.
    `units`: whole units in the prompt (words, lines, statements)."""

    messages: tuple[Message, ...]
    gold: str
    files: tuple[str, ...]
    units: int


def user(content: str) -> tuple[Message, ...]:
    """A conversation of one user turn."""
    return ({"role": "user", "content": content},)


def fit_units(available: int, size: int, length: Callable[[int], int]) -> int | None:
    """How many whole units bring a prompt nearest to `size` tokens; None if none comes within `TOLERANCE`.

    `length(n)`: tokens of the prompt with n units, not falling in n. Calls it O(log available) times.

    >>> fit_units(100, 50, lambda n: 10 + 4 * n)
    10
    """
    low, high = 1, available
    while low < high:
        middle = (low + high) // 2
        if length(middle) < size:
            low = middle + 1
        else:
            high = middle
    near = [n for n in (low - 1, low) if 1 <= n <= available]
    if not near:
        return None
    best = min(near, key=lambda n: abs(length(n) - size))
    return best if abs(length(best) - size) <= TOLERANCE * size else None


def library_files(smallest: int = 0, largest: int | None = None) -> Iterator[tuple[str, str]]:
    """(name, text) of the Python library's own files within a size range in bytes, in the order of their names.

    Tests and folders that some distributions leave out are skipped, so that one Python version gives one list.
    """
    root = Path(sysconfig.get_path("stdlib"))
    for path in sorted(root.rglob("*.py")):
        relative = path.relative_to(root)
        if _SKIPPED_FOLDERS & set(relative.parts[:-1]):
            continue
        size = path.stat().st_size
        if size < smallest or (largest is not None and size > largest):
            continue
        try:
            yield relative.as_posix(), path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue


def read_lines(path: str) -> list[str]:
    """Lines of a system file that slim installations lack; empty if it is not there."""
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
