"""``exactspec train longspec``: train a draft layer for a model."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from exactspec.cli.lazy import new_app
from exactspec.cli.services import CliError, Services

if TYPE_CHECKING:
    from exactspec.training.config import Config

app = new_app(help="Train drafters. Needs: pip install 'exactspec[train]'.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Train drafters. Needs: pip install 'exactspec[train]'."""


@app.command()
def longspec(
    context: typer.Context,
    model: Annotated[str, typer.Option("-m", "--model", metavar="NAME", help="The target: a name, file or folder.")],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder of the run; it goes on where it stopped.")],
    config: Annotated[
        Path | None, typer.Option("--config", metavar="F", help="TOML with [data], [layer] and [train].")
    ] = None,
    self_generate: Annotated[
        tuple[str, int],
        typer.Option("--self-generate", metavar="PROMPTS N", help="'recipes' or a file of prompts, and how many."),
    ] = ("", 0),
    only: Annotated[
        str, typer.Option("--only", metavar="PART", help="'features' (data alone) or 'layer' (features are there).")
    ] = "",
    features: Annotated[
        list[Path] | None,
        typer.Option("--features", metavar="DIR", help="Features made by other runs, instead of the run's own."),
    ] = None,
    threads: Annotated[int | None, typer.Option("--threads", metavar="N", help="Threads; default: all cores.")] = None,
    stop_after: Annotated[
        int | None, typer.Option("--stop-after", metavar="STEPS", help="End this sitting after so many steps.")
    ] = None,
) -> None:
    """Let the target write and read texts, train a layer on what it computed, and write it to DIR/layer.

    A run that was stopped, however hard, goes on with the same command. docs/training.md tells the parts and options.
    """
    services: Services = context.obj
    if only not in ("", "features", "layer"):
        raise CliError(f"--only is 'features' or 'layer', got {only!r}")
    if features and only == "features":
        raise CliError("--features names features that are there: leave out --only features")
    try:
        from exactspec.training.run import train_layer
    except ModuleNotFoundError as error:
        raise CliError(f"training needs the package {error.name}: pip install 'exactspec[train]'") from None
    from exactspec.target.hub import ModelStore
    from exactspec.target.load import open_model
    from exactspec.target.packed_store import PackedStore

    options = _config(config, self_generate, threads)
    tell = _tell(services)
    found = ModelStore().resolve(model)
    folders = list(features or [out / "features"])
    if only != "layer" and not features:
        _features(found.path, found.sha256, options, folders[0], threads, tell)
    if only == "features":
        return
    with closing(open_model(found.path, sha256=found.sha256, packed=PackedStore()).source) as source:
        progress = train_layer(
            source,
            Path(model).name,
            options,
            out,
            features=folders,
            max_position=source.config.max_position,
            tell=tell,
            stop_after=stop_after,
        )
    if progress.best_step >= 0:
        print(
            f"{out / 'layer'}: tau {progress.best:.3f} (chain, held out), step {progress.best_step}",
            file=services.stdout,
        )


def _config(path: Path | None, self_generate: tuple[str, int], threads: int | None) -> Config:
    from exactspec.training.config import Config, read_config

    options = Config() if path is None else read_config(path)
    prompts, count = self_generate
    if prompts:
        options = replace(options, data=replace(options.data, prompts=prompts, self_prompts=count))
    if threads is not None:
        options = replace(options, train=replace(options.train, threads=threads))
    return options


def _features(
    path: Path, sha256: str | None, options: Config, folder: Path, threads: int | None, tell: Callable[[str], None]
) -> None:
    from exactspec.target.exact import ExactTarget
    from exactspec.target.load import open_model
    from exactspec.target.packed_store import PackedStore
    from exactspec.training.features import make_features

    model = open_model(path, sha256=sha256, packed=PackedStore())
    with closing(model.source):
        target = ExactTarget(model.source, threads=threads, progress=tell)
    with closing(target):
        make_features(target, model.tokenizer, options.data, folder, tell=tell)


def _tell(services: Services) -> Callable[[str], None]:
    return lambda text: services.note(f"{time.strftime('%H:%M:%S')} {text}")
