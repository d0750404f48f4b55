"""The trained layers that are part of the package, found by the hash of their target's weights."""

from __future__ import annotations

from pathlib import Path

from exactspec.drafters.layer.card import Card
from exactspec.drafters.layer.checkpoint import CARD

SHIPPED = Path(__file__).parent / "shipped"
"""A folder of folders, each with a layer."""


def cards(folder: Path = SHIPPED) -> dict[Path, Card]:
    """The cards of the layers below a folder. One that cannot be read is left out: it is as if it were not shipped."""
    found = {}
    for path in sorted(folder.glob(f"*/{CARD}")):
        try:
            found[path.parent] = Card.from_json(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
    return found


def shipped_layer(sha256: str, *, folder: Path = SHIPPED) -> Path:
    """The layer that is shipped for a target, by the SHA-256 of its weights. ValueError, one line, if there is none:
    what to do instead."""
    known = cards(folder)
    for path, card in known.items():
        if card.target.sha256 == sha256:
            return path
    others = f" (there are some for {', '.join(card.target.name for card in known.values())})" if known else ""
    raise ValueError(
        f"no draft layer is shipped for these weights, sha256 {sha256[:16]}...{others}: "
        "train one with 'exactspec train longspec' and name its folder, longspec:FOLDER"
    )
