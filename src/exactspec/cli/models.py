"""``exactspec models``: what can be pulled, what is on the disk, and how to delete it."""

from __future__ import annotations

import io
import json
from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from exactspec.cli.services import Services
from exactspec.target.hub import DiskUse, ModelStore
from exactspec.target.named import NAMED_MODELS


def models(
    context: typer.Context,
    delete: Annotated[
        list[str] | None, typer.Option("--delete", metavar="NAME", help="Delete this model (may be repeated).")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print what is stored as one JSON object.")] = False,
) -> None:
    """List named models and what is on the disk, or delete some of it."""
    services: Services = context.obj
    store = ModelStore()
    for name in delete or ():
        services.note(f"deleted {name}: {_size(store.delete(name))} freed")
    if as_json:
        stored = [{**asdict(use), "path": str(use.path)} for use in store.list()]
        print(json.dumps({"home": str(store.home), "models": stored}, indent=2), file=services.stdout)
    elif not delete:
        _print_table(store.list(), services)
        total = _size(sum(use.bytes for use in store.list()))
        print(f"{total} in {store.home}", file=services.stdout)


def _print_table(stored: tuple[DiskUse, ...], services: Services) -> None:
    table = Table("name", "size", "state", "licence", "from", box=None, pad_edge=False)
    for use in stored:
        table.add_row(use.name, _size(use.bytes), "stored" if use.complete else "unfinished", use.licence, use.source)
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
