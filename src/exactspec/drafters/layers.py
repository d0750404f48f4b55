"""Opening a trained layer when it is first wanted."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from exactspec.budget import Cost
from exactspec.drafters.layer.checkpoint import read_card
from exactspec.drafters.worth import chain_rate
from exactspec.target.base import Target

if TYPE_CHECKING:
    from exactspec.drafters.longspec import LongSpecDrafter


class OpenLayer:
    """A layer that is opened when its drafter is first asked for, and then kept; requests share it. `clock`: by which
    it times itself."""

    def __init__(
        self,
        folder: Path,
        target: Target,
        *,
        progress: Callable[[str], None] | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.folder = folder
        self._target = target
        self._progress = progress
        self._clock = clock
        self._lock = threading.Lock()
        self._drafter: LongSpecDrafter | None = None

    def expected_gain(self, cost: Cost) -> float:
        """By how much its chains are expected to be faster than plain decoding (`worth.chain_rate`), by the acceptance
        that its card states. Infinite where that states none: only trying tells. Reads the card alone. Raises as
        `drafter` does."""
        held_out = read_card(self.folder).training.get("held_out")
        shares = held_out.get("acceptance_by_depth") if isinstance(held_out, dict) else None
        return math.inf if not shares else chain_rate([float(share) for share in shares], cost)

    def drafter(self) -> LongSpecDrafter:
        """Raises ValueError, one line, if the folder holds no layer, or one of another target."""
        from exactspec.drafters.longspec import LongSpecDrafter  # numba and the kernels: not for who drafts otherwise

        with self._lock:
            if self._drafter is None:
                self._drafter = LongSpecDrafter.open(
                    self.folder, self._target, progress=self._progress, clock=self._clock
                )
            return self._drafter
