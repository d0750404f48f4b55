"""Hidden states of the end of a prompt, kept until the drafter begins."""

from __future__ import annotations

import numpy as np

from exactspec.target.base import FloatArray


class PromptFeatures:
    """What `add` was given last, as one piece of the positions before a prompt's last token."""

    __slots__ = ("_next", "_parts")

    def __init__(self) -> None:
        self._parts: list[FloatArray] = []
        self._next = 0  # position that would go on from the parts

    def add(self, start: int, hidden: FloatArray, *, most: int, end: int) -> None:
        """Rows [n, hidden_size] of the positions from `start` on, of a prompt of `end` tokens: those of its last `most`
        positions but the very last are copied. Rows that do not go on from the earlier ones take their place (a
        prompt that is read anew)."""
        if most < 1:
            return
        if start != self._next:
            self._parts.clear()
        self._next = start + len(hidden)
        if (new := hidden[max(0, end - 1 - most - start) :]).size:
            self._parts.append(new.copy())

    def take(self) -> FloatArray | None:
        """All of it, [m, hidden_size], which is then let go; None where there is nothing."""
        parts, self._parts = self._parts, []
        return np.concatenate(parts) if parts else None
