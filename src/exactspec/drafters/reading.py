"""A history of the target's tokens, as a drafting model reads it.

A `Reading` turns the history into ids of the drafting model, and what that model proposes into tokens of the target.
`SameTokens` is for two models of one vocabulary; another tokenizer needs `reencoding.Reencoded`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from exactspec.tree import DraftTree

SOURCE = "model"
"""Name of the source of every node."""


@dataclass(slots=True)
class Grown:
    """Proposals of the drafting model in its own ids, as lists: node i holds ``tokens[i]`` below ``parents[i]`` (an
    earlier node, -1 the root) and is reached with probability ``probs[i]``, never above its parent's."""

    tokens: list[int]
    parents: list[int]
    probs: list[float]


class Reading(Protocol):
    """One request's history. `ids`: in the drafting model's ids (to read only). `settled`: how many of them stay as
    they are while the history grows. `ready`: whether something may be proposed at its end."""

    @property
    def ids(self) -> list[int]: ...

    @property
    def settled(self) -> int: ...

    @property
    def ready(self) -> bool: ...

    def append(self, tokens: Sequence[int]) -> None:
        """The history goes on with these tokens of the target."""
        ...

    def truncate(self, n: int) -> None:
        """The history is its first n tokens, as if the others had never been there."""
        ...

    def fork(self) -> Reading: ...

    def translate(self, grown: Grown) -> DraftTree:
        """The proposals as tokens of the target."""
        ...


class SameTokens:
    """Both models mean the same text by the same id. Ids that the drafting model does not have (from `known` on) are
    left out of what it reads; those that the target does not have (from `offered` on) are not proposed."""

    __slots__ = ("_history", "_known", "_offered", "ids")

    def __init__(self, *, known: int, offered: int) -> None:
        self._known, self._offered = known, offered
        self._history: list[int] = []
        self.ids: list[int] = []

    @property
    def settled(self) -> int:
        return len(self.ids)

    @property
    def ready(self) -> bool:
        return True

    def append(self, tokens: Sequence[int]) -> None:
        self._history += tokens
        self.ids += [token for token in tokens if token < self._known]

    def truncate(self, n: int) -> None:
        del self._history[n:]
        self.ids = [token for token in self._history if token < self._known]

    def fork(self) -> SameTokens:
        twin = SameTokens(known=self._known, offered=self._offered)
        twin._history, twin.ids = self._history.copy(), self.ids.copy()
        return twin

    def translate(self, grown: Grown) -> DraftTree:
        place: list[int | None] = []
        rows: list[tuple[int, int, float]] = []
        for token, parent, prob in zip(grown.tokens, grown.parents, grown.probs, strict=True):
            above = -1 if parent < 0 else place[parent]
            if above is None or token >= self._offered:
                place.append(None)
                continue
            place.append(len(rows))
            rows.append((token, above, prob))
        return tree_of(rows)


def tree_of(rows: Sequence[tuple[int, int, float]]) -> DraftTree:
    """A tree of (token, parent, probability)."""
    if not rows:
        return DraftTree.empty()
    tokens, parents, probs = zip(*rows, strict=True)
    n = len(rows)
    return DraftTree(
        np.array(tokens, dtype=np.int64),
        np.array(parents, dtype=np.int64),
        np.zeros(n, dtype=np.int64),
        np.array(probs, dtype=np.float32),
        np.full(n, -1, dtype=np.int64),
        (SOURCE,),
    )
