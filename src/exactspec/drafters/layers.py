"""The trained layers of a target: which are shipped, and opening one when it is first wanted."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from exactspec.drafters.layer.card import Card
from exactspec.drafters.layer.checkpoint import CARD
from exactspec.drafters.longspec import LongSpecDrafter
from exactspec.target.base import Target
from exactspec.target.exact import ExactTarget

SHIPPED = Path(__file__).parent / "layer" / "shipped"
"""A folder of folders, each with a layer."""


class OpenLayer:
    """A layer that is opened when its drafter is first asked for, and then kept; requests share it."""

    def __init__(self, folder: Path, target: Target, *, progress: Callable[[str], None] | None = None) -> None:
        self.folder = folder
        self._target = target
        self._progress = progress
        self._lock = threading.Lock()
        self._drafter: LongSpecDrafter | None = None

    def drafter(self) -> LongSpecDrafter:
        """Raises ValueError, one line, if the folder holds no layer, or one of another target."""
        with self._lock:
            if self._drafter is None:
                self._drafter = LongSpecDrafter.open(self.folder, self._target, progress=self._progress)
            return self._drafter


def cards(folder: Path = SHIPPED) -> dict[Path, Card]:
    """The cards of the layers below a folder. One that cannot be read is left out: it is as if it were not shipped."""
    found = {}
    for path in sorted(folder.glob(f"*/{CARD}")):
        try:
            found[path.parent] = Card.from_json(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
    return found


def shipped_layer(target: Target, *, folder: Path = SHIPPED) -> Path:
    """The layer that is shipped for a target, found by the SHA-256 of its weights. ValueError, one line, if there is
    none: what to do instead."""
    if not isinstance(target, ExactTarget):
        raise ValueError("longspec drafts for models run by the exact runtime on the CPU: leave out hf: and device")
    known = cards(folder)
    for path, card in known.items():
        if card.target.sha256 == target.sha256:
            return path
    others = f" (there are some for {', '.join(card.target.name for card in known.values())})" if known else ""
    raise ValueError(
        f"no draft layer is shipped for these weights, sha256 {target.sha256[:16]}...{others}: "
        "train one with 'exactspec train longspec' and name its folder, longspec:FOLDER"
    )
