"""What is measured: one prompt, its sampling parameters, and what a session has read of it before the clocks start."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from exactspec.params import SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One prompt to measure. `ids`: with the chat template. `params`: the same for every arm. `meta`: what the
    result lines say about it (workload, size, seed, copy share, ...).

    `held`: how many of the first ids a session holds before a clock starts, fewer than all; 0: the prompt is read
    anew by every arm in every round. `drafter_held`: the drafter has seen them too, as in a conversation; else its
    preparation falls into the decode clock, as that of any request. `gold`: the ideal reply, where one is known.
    Raises ValueError if `held` leaves no id to be read.
    """

    id: str
    ids: tuple[int, ...]
    params: SamplingParams
    meta: Mapping[str, Any] = field(default_factory=dict)
    held: int = 0
    drafter_held: bool = False
    gold: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not 0 <= self.held < max(len(self.ids), 1):
            raise ValueError(f"a session must leave a prompt's last id to be read: {self.held} of {len(self.ids)}")

    @property
    def asked(self) -> str:
        """Hash of prompt and parameters: equal ones have equal answers."""
        return _hash(self.ids, self.params)

    @property
    def work(self) -> str:
        """Hash of what is measured: a case that keeps its name but not its prompt is another one."""
        if not self.held:
            return self.asked
        return _hash(self.ids, self.params, self.held, self.drafter_held)


def _hash(*what: object) -> str:
    return hashlib.sha256(repr(what).encode()).hexdigest()[:12]
