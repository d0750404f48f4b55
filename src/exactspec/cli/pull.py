"""``exactspec pull``: get a model, and say where it came from and under which licence."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from exactspec.cli.services import Services
from exactspec.target import hub
from exactspec.target.named import NAMED_MODELS


@contextlib.contextmanager
def pull_progress(services: Services) -> Iterator[hub.Progress]:
    """The `progress` of `ModelStore.pull` and `resolve`: a bar on stderr once something is pulled, or one line per
    stage where stderr is no terminal."""
    console = Console(file=services.stderr)
    if not console.is_terminal:
        yield hub.as_lines(services.note)
        return
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
    )
    task = bar.add_task("", total=None)

    def show(what: str, done: int, total: int) -> None:
        bar.start()  # does nothing when it has started
        bar.update(task, description=what, completed=done, total=total or None)

    try:
        yield show
    finally:
        bar.stop()


def pull(
    context: typer.Context,
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME", help=f"{', '.join(NAMED_MODELS)}, or org/name or org/name:file.gguf on Hugging Face."
        ),
    ],
) -> None:
    """Get a model into the cache, or verify the one that is there."""
    services: Services = context.obj
    try:
        with pull_progress(services) as progress:
            model = hub.ModelStore().pull(name, progress=progress)
    except KeyboardInterrupt:
        services.note(f"'exactspec pull {name}' continues where this stopped")
        raise
    lines = [f"{model.name}: {model.path}", f"from: {model.source}", f"licence: {model.licence}"]
    if model.sha256:
        lines.append(f"sha256: {model.sha256}")
    if name in NAMED_MODELS and NAMED_MODELS[name].note:
        lines.append(f"note: {NAMED_MODELS[name].note}")
    print("\n".join(lines), file=services.stdout)
