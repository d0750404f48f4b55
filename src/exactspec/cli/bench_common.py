"""What the commands of ``exactspec bench`` share: result files, engines, lists of names and numbers."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from exactspec.bench.asking import EngineLike
from exactspec.bench.peers.error import PeerError
from exactspec.bench.provenance import collect, now
from exactspec.bench.recorder import Recorder
from exactspec.bench.store import ResultFile
from exactspec.bench.workloads import EXTRAS, RECIPES
from exactspec.budget import Cost
from exactspec.cli.services import CliError, Services
from exactspec.target.cache_types import DEFAULT_CACHE_DTYPE

Out = Annotated[
    Path, typer.Option("--out", metavar="FILE", help="JSON lines, appended; measured rounds are not redone.")
]
Threads = Annotated[int, typer.Option("--threads", metavar="N", help="CPU threads of every engine.")]

_BUSY = 0.5  # load average, over one minute, of the rest of the machine when a run starts


@contextmanager
def peer_errors() -> Iterator[None]:
    """A peer that is missing or fails is one line; what was measured before is in the file."""
    try:
        yield
    except PeerError as error:
        raise CliError(str(error)) from None


def new_recorder(context: typer.Context, out: Path, threads: int) -> Recorder:
    """Appends to `out`, which no other run writes until the command ends; notes go to the person."""
    services: Services = context.obj
    if threads < 1:
        raise CliError(f"--threads must be at least 1, got {threads}")
    start = collect(threads=threads)
    if start.load_average > _BUSY:
        services.note(f"the machine is busy (load average {start.load_average}): only an idle one gives times to keep")
    file = ResultFile(out)
    file.claim()
    context.call_on_close(file.release)
    return Recorder(file, lambda: now(start), services.note)


def open_engine(
    services: Services,
    model: str,
    threads: int,
    *,
    context: int | None,
    device: str | None = None,
    draft_models: Sequence[str] = (),
) -> EngineLike:
    """The model, drafting nothing by itself. `draft_models`: models that some requests will draft with."""
    options: dict[str, Any] = {} if device is None else {"device": device}
    if draft_models:
        options["draft_models"] = tuple(draft_models)
    engine = services.open_engine(
        model,
        draft="none",
        threads=threads,
        context=context,
        cache_dtype=DEFAULT_CACHE_DTYPE,
        progress=services.note,
        **options,
    )
    # The command line's own protocol names less of the engine than is measured here.
    return cast(EngineLike, engine)


def rows_cost(engine: EngineLike) -> Cost | None:
    """What rows cost on this machine, as measured for the engine's target; None where nothing was."""
    from exactspec.measured_cost import kept_cost
    from exactspec.target.exact import ExactTarget

    target = getattr(engine, "target", None)
    return kept_cost(target, threads=target.threads) if isinstance(target, ExactTarget) else None


def label(model: str) -> str:
    """A path is shortened to its name: where it lies on one machine means nothing on another."""
    return Path(model).name if os.sep in model else model


def listed(text: str, option: str, known: Iterable[str]) -> list[str]:
    """Known names with commas between."""
    words = [word.strip() for word in text.split(",")]
    names = list(known)
    for word in words:
        if word not in names:
            raise CliError(f"{option}: {word!r} is none of {', '.join(names)}")
    if len(set(words)) != len(words):
        raise CliError(f"{option} names one twice: {text}")
    return words


def recipes(text: str) -> list[str]:
    """Names of workloads with commas between, or "all"."""
    return list(RECIPES) if text.strip() == "all" else listed(text, "--workloads", (*RECIPES, *EXTRAS))


def token_count(word: str) -> int:
    """One of --sizes."""
    try:
        return int(word)
    except ValueError:
        raise CliError(f"--sizes: {word!r} is not a number of tokens") from None


def counts(text: str, option: str) -> list[int]:
    """Different whole numbers of at least 1 with commas between."""
    try:
        found = [int(word) for word in text.split(",")]
    except ValueError:
        raise CliError(f"{option} must be whole numbers with commas between, got {text!r}") from None
    if min(found) < 1 or len(set(found)) != len(found):
        raise CliError(f"{option} must be different numbers of at least 1, got {text}")
    return found


def at_least_one(**options: int | None) -> None:
    """Raises CliError naming the first option below 1."""
    for name, value in options.items():
        if value is not None and value < 1:
            raise CliError(f"--{name.replace('_', '-')} must be at least 1, got {value}")


def show(services: Services, text: str) -> None:
    """The command's answer."""
    print(text, file=services.stdout, flush=True)
