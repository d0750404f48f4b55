"""``exactspec bench bars``: what must hold for a release, measured."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from exactspec.bench.asking import EngineLike
from exactspec.bench.bar import Bar
from exactspec.bench.bars import BARS, PEER_BARS, PEER_MODELS, QUESTION_BARS, Bench, all_bars
from exactspec.bench.report import markdown
from exactspec.bench.runtime_bars import LONG, REPEATS
from exactspec.bench.serving.bars import LIMITS as SERVER_BARS
from exactspec.bench.serving.bars import NEED_PEER as SERVER_PEER_BARS
from exactspec.bench.serving.bars import Sizes
from exactspec.bench.speed_bars import Effort
from exactspec.cli.bench_common import (
    Out,
    Threads,
    at_least_one,
    listed,
    new_recorder,
    open_engine,
    peer_errors,
    rows_cost,
    show,
)
from exactspec.cli.bench_serve import NO_PEER, PeerServer, serve_tools
from exactspec.cli.services import CliError, Services

_BAR_CONTEXT = LONG + 64
_EXTRAS = {
    "peers": ("llama_cpp", PEER_BARS),
    "hf": ("transformers", ("perplexity",)),
    "server": ("uvicorn", tuple(SERVER_BARS)),
}
EXIT_FAILED = 1


def bars(
    context: typer.Context,
    only: Annotated[
        str,
        typer.Option(metavar="LIST", help=f"Which bars, of {', '.join(BARS)}.  [default: all that can be measured]"),
    ] = "",
    models: Annotated[str, typer.Option(metavar="LIST", help="Leave out what needs another model.")] = ",".join(
        PEER_MODELS
    ),
    rounds: Annotated[
        int | None, typer.Option(metavar="N", help="Rounds of every pair.  [default: each bar's own]")
    ] = None,
    seeds: Annotated[
        int | None, typer.Option(metavar="N", help="Prompts of each workload.  [default: each bar's own]")
    ] = None,
    questions: Annotated[
        Path | None, typer.Option(metavar="FILE", help=f"Questions of two turns, for {', '.join(QUESTION_BARS)}.")
    ] = None,
    per_category: Annotated[
        int | None, typer.Option(metavar="N", help="Questions of each category.  [default: each bar's own]")
    ] = None,
    max_tokens: Annotated[
        int | None, typer.Option(metavar="N", help="Longest answer of the bars of drafting.  [default: each bar's own]")
    ] = None,
    demo_prompt: Annotated[Path, typer.Option(metavar="FILE", help="The demo's prompt.")] = Path(
        "examples/copy-heavy.txt"
    ),
    repeats: Annotated[int, typer.Option(metavar="N", help="Rounds of the runtime's bars.")] = REPEATS,
    text: Annotated[Path, typer.Option(metavar="FILE", help="The perplexity's text.")] = Path(
        "tests/texts/eight_thousand.txt"
    ),
    peer_server: PeerServer = NO_PEER,
    threads: Threads = 2,
    out: Out = Path("results/bars.jsonl"),
) -> None:
    """Measure the bars of a release and say which hold. Exit code 1 if one does not."""
    services: Services = context.obj
    names = listed(models, "--models", PEER_MODELS)
    chosen = _chosen(services, only, questions, peer_server)
    at_least_one(rounds=rounds, repeats=repeats, seeds=seeds, per_category=per_category, max_tokens=max_tokens)
    if "demo" in chosen and not demo_prompt.is_file():
        raise CliError(f"{demo_prompt} is no file: run in a checkout, or name the demo's prompt with --demo-prompt")
    if "perplexity" in chosen and not text.is_file():
        raise CliError(f"{text} is no file: run in a checkout, or name a text with --text")
    for extra, (module, its) in _EXTRAS.items():  # said now, and not after an hour of measuring
        needing = [name for name in chosen if name in its]
        if needing and find_spec(module) is None:
            raise CliError(
                f"{', '.join(needing)} cannot be measured without {module}: pip install 'exactspec[{extra}]', or leave "
                "them out with --only"
            )

    from exactspec.cli.bench_kernels import runtime_tools  # not needed for --help
    from exactspec.drafters import make_drafter
    from exactspec.params import Speculation
    from exactspec.target.hub import ModelStore

    drafter = make_drafter(Speculation(draft="copy"))
    assert drafter is not None
    measured: list[Bar] = []
    recorder = new_recorder(context, out, threads)
    sizes = Sizes() if rounds is None else Sizes(rounds=rounds)
    tools = Bench(
        open_engine=partial(_open, services, threads),
        model_path=lambda model: ModelStore().resolve(model).path,
        recorder=recorder,
        threads=threads,
        effort=Effort(
            rounds=rounds, seeds=seeds, per_category=per_category, max_tokens=max_tokens, questions=questions
        ),
        rows_cost=rows_cost,
        serving=serve_tools(threads=threads, peer=peer_server, sizes=sizes),
    )
    runtime = runtime_tools(recorder, threads=threads, text=text, repeats=repeats)
    found = all_bars(tools, only=chosen, models=names, demo_prompt=demo_prompt, drafter=drafter, runtime=runtime)
    with peer_errors():
        for bar in found:
            measured.append(bar)
            services.note(f"{'passed' if bar.passed else 'FAILED'}: {bar.name}: {bar.told_value} ({bar.detail})")
    if not measured:
        raise CliError("no bar is measured with these --only and --models: add some")
    rows = [
        ("passed" if bar.passed else "FAILED", bar.name, bar.told_value, bar.told_limit, _yes_no(bar.equal), bar.detail)
        for bar in measured
    ]
    show(services, markdown(("", "bar", "measured", "limit", "same tokens", "detail"), rows))
    if not all(bar.passed for bar in measured):
        raise typer.Exit(EXIT_FAILED)


def _chosen(services: Services, only: str, questions: Path | None, peer_server: str) -> list[str]:
    """The bars to measure; without a file of questions, or a peer's server, those that need one are left out, unless
    they are named."""
    if questions is not None and not questions.is_file():
        raise CliError(f"--questions: {questions} is no file")
    chosen = listed(only, "--only", BARS) if only else list(BARS)
    for there, its, what, how in (
        (questions is not None, QUESTION_BARS, "questions", "name a file with --questions"),
        (peer_server != NO_PEER, SERVER_PEER_BARS, "llama.cpp's server", "say where it lies with --peer-server"),
    ):
        needing = [name for name in chosen if name in its]
        if needing and not there:
            if only:
                raise CliError(f"{', '.join(needing)} need {what}: {how}")
            services.note(f"left out without {what} ({how}): {', '.join(needing)}")
            chosen = [name for name in chosen if name not in needing]
    return chosen


def _open(services: Services, threads: int, model: str, *, draft_models: Sequence[str] = ()) -> EngineLike:
    return open_engine(services, model, threads, context=_BAR_CONTEXT, draft_models=draft_models)


def _yes_no(value: bool | None) -> str:
    return "" if value is None else "yes" if value else "NO"
