"""What recipes share: the shape of their result, and the search for the number of units that gives a size."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

T = TypeVar("T")

Message: TypeAlias = Mapping[str, str]
CountTokens: TypeAlias = Callable[[Sequence[Message]], int]
"""Prompt length in tokens of a conversation, chat template included."""

TOLERANCE = 0.05
"""A prompt's length may differ from the size asked for by this share."""

_WINDOW = 4  # numbers of units tried on each side of the nearest


@dataclass(frozen=True, slots=True)
class Draft:
    """What a recipe makes. `messages`: all of the conversation before the last reply. `gold`: that reply as it should
    be, known by construction. `files`: materials, by name. `units`: whole units in the prompt (words, lines, ...).
    `variant`: which of the recipe's kinds this is, "" if it has one only. `earlier`: replies that are measured
    too: how many messages come before each; the reply itself is the message at that place."""

    messages: tuple[Message, ...]
    gold: str
    files: tuple[str, ...]
    units: int
    variant: str = ""
    earlier: tuple[int, ...] = ()


Plan: TypeAlias = tuple[int, Callable[[int], Draft | None]]
"""Units there are, and what n of them make: always the same for the same n; None if n units have no room for it."""


def user(content: str) -> tuple[Message, ...]:
    """A conversation of one user turn."""
    return ({"role": "user", "content": content},)


def pick(variants: Sequence[T], seed: int) -> T:
    """The variant of a seed: in turn, so that a few seeds show different ones."""
    return variants[seed % len(variants)]


def fit_units(available: int, size: int, length: Callable[[int], int]) -> int | None:
    """How many whole units bring a prompt nearest to `size` tokens; None if none comes within `TOLERANCE`.

    `length(n)`: tokens of the prompt with n units, not falling in n. Calls it O(log available) times, and
    never with a prompt more than about twice as long.

    >>> fit_units(100, 50, lambda n: 10 + 4 * n)
    10
    """
    low = _first_at_least(available, size, length)
    near = [n for n in (low - 1, low) if 1 <= n <= available]
    if not near:
        return None
    best = min(near, key=lambda n: abs(length(n) - size))
    return best if abs(length(best) - size) <= TOLERANCE * size else None


def fit_draft(
    recipe: str,
    rng: random.Random,
    size: int,
    count: CountTokens,
    plan: Callable[[random.Random], Plan | None],
    *,
    attempts: int = 32,
) -> Draft:
    """The first draft within `TOLERANCE` of `size` tokens, of plans made with seeded generators one after the other.

    A plan may be None: nothing there to try. Raises ValueError if no attempt gives the size.
    """
    for _ in range(attempts):
        made = plan(random.Random(rng.getrandbits(64)))
        found = None if made is None else _nearest(*made, size, count)
        if found is not None:
            return found
    raise ValueError(f"{recipe}: no materials give a prompt of {size} tokens within 5%: ask for another size")


def _nearest(available: int, build: Callable[[int], Draft | None], size: int, count: CountTokens) -> Draft | None:
    drafts: dict[int, Draft | None] = {}
    lengths: dict[int, int] = {}

    def length(n: int) -> int:
        if n not in lengths:
            drafts[n] = draft = build(n)
            lengths[n] = 0 if draft is None else count(draft.messages)
        return lengths[n]

    if available < 1:
        return None
    middle = _first_at_least(available, size, length)
    # What is asked for belongs to the prompt and differs between n and n + 1: the length may fall a little.
    for n in sorted(
        range(max(1, middle - _WINDOW), min(available, middle + _WINDOW) + 1), key=lambda n: abs(n - middle)
    ):
        if abs(length(n) - size) <= TOLERANCE * size:
            return drafts[n]
    return None


def _first_at_least(available: int, size: int, length: Callable[[int], int]) -> int:
    """The least n with length(n) >= size, or `available`."""
    low, high = 1, 1
    while high < available and length(high) < size:
        low, high = high + 1, min(available, 2 * high)
    while low < high:
        middle = (low + high) // 2
        if length(middle) < size:
            low = middle + 1
        else:
            high = middle
    return low
