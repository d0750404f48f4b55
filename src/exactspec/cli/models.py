"""``exactspec models``: what can be pulled, what is on the disk, and how to delete it."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from exactspec.cli.services import Services
from exactspec.drafters.layer.footprint import told, weight_bytes
from exactspec.drafters.layer.shipped import cards
from exactspec.target.hub import DiskUse, ModelStore
from exactspec.target.named import NAMED_MODELS
from exactspec.target.packed_store import PackedStore, PackedUse


def models(
    context: typer.Context,
    delete: Annotated[
        list[str] | None, typer.Option("--delete", metavar="NAME", help="Delete this model (may be repeated).")
    ] = None,
    delete_packed: Annotated[
        bool,
        typer.Option("--delete-packed", help="Delete all packed weights; a model's next load makes them."),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print what is stored as one JSON object.")] = False,
) -> None:
    """List named models and what is on the disk, or delete some of it."""
    services: Services = context.obj
    store = ModelStore()
    packed = PackedStore(store.home)
    for name in delete or ():
        folders = [use.path for use in store.list() if use.name == name]
        freed = store.delete(name)
        for use in packed.list():
            if any(use.belongs_to(folder) for folder in folders):
                freed += packed.delete(use)
        services.note(f"deleted {name}: {_size(freed)} freed")
    if delete_packed:
        freed = sum(packed.delete(use) for use in packed.list())
        services.note(f"deleted all packed weights: {_size(freed)} freed")
    if as_json:
        value = {"home": str(store.home), "models": _plain(store.list()), "packed": _plain(packed.list())}
        print(json.dumps(value, indent=2), file=services.stdout)
    elif not delete and not delete_packed:
        models, kept = store.list(), packed.list()
        _print_table(models, kept, services)
        total = _size(sum(use.bytes for use in models) + sum(use.bytes for use in kept))
        print(f"{total} in {store.home}", file=services.stdout)


def _plain(uses: Sequence[DiskUse | PackedUse]) -> list[dict[str, Any]]:
    return [{**asdict(use), "path": str(use.path)} for use in uses]


def _print_table(stored: tuple[DiskUse, ...], packed: tuple[PackedUse, ...], services: Services) -> None:
    table = Table("name", "size", "state", "licence", "from", box=None, pad_edge=False)
    for use in stored:
        table.add_row(use.name, _size(use.bytes), "stored" if use.complete else "unfinished", use.licence, use.source)
    for kept in packed:
        name = next((use.name for use in stored if kept.belongs_to(use.path)), kept.origin or kept.path.name)
        state = "packed" if kept.current else "packed, of another version" if kept.sha256 else "packed, unfinished"
        table.add_row(name, _size(kept.bytes), state, "", "")
    for card in cards().values():
        table.add_row(card.target.name, _size(weight_bytes(card)), "draft layer", "", told(card))
    complete = {use.name for use in stored if use.complete}
    for model in NAMED_MODELS.values():
        if model.name not in complete:
            table.add_row(model.name, _size(model.bytes), "can be pulled", model.licence, model.note)
    console = Console(file=services.stdout)
    if console.is_terminal:
        console.print(table, highlight=False, markup=False)
        return
    # Into a pipe: one line a model, whatever its width, and no padding behind it.
    console = Console(file=io.StringIO(), width=300)
    with console.capture() as text:
        console.print(table, highlight=False, markup=False)
    print("\n".join(line.rstrip() for line in text.get().splitlines()), file=services.stdout)


def _size(count: int) -> str:
    return f"{count / 1e6:.0f} MB" if count < 1e9 else f"{count / 1e9:.2f} GB"
