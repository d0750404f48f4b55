"""``exactspec bench bars``: what must hold for a release, measured."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from exactspec.bench.bar import Bar
from exactspec.bench.bars import BARS, PEER_MODELS, Bench, all_bars
from exactspec.bench.report import markdown
from exactspec.bench.runtime_bars import LONG, REPEATS
from exactspec.cli.bench_common import Out, Threads, listed, new_recorder, open_engine, peer_errors, show
from exactspec.cli.services import CliError, Services

_BAR_CONTEXT = LONG + 64
_EXTRAS = {"peers": ("llama_cpp", ("peer", "one-row", "prefill")), "hf": ("transformers", ("perplexity",))}
EXIT_FAILED = 1


def bars(
    context: typer.Context,
    only: Annotated[str, typer.Option(metavar="LIST", help="Which bars.")] = ",".join(BARS),
    models: Annotated[str, typer.Option(metavar="LIST", help="Leave out what needs another model.")] = ",".join(
        PEER_MODELS
    ),
    rounds: Annotated[int, typer.Option(metavar="N", help="Rounds of every pair.")] = 5,
    demo_prompt: Annotated[Path, typer.Option(metavar="FILE", help="The demo's prompt.")] = Path(
        "examples/copy-heavy.txt"
    ),
    repeats: Annotated[int, typer.Option(metavar="N", help="Rounds of the runtime's bars.")] = REPEATS,
    text: Annotated[Path, typer.Option(metavar="FILE", help="The perplexity's text.")] = Path(
        "tests/texts/eight_thousand.txt"
    ),
    threads: Threads = 2,
    out: Out = Path("results/bars.jsonl"),
) -> None:
    """Measure the bars of a release and say which hold. Exit code 1 if one does not."""
    services: Services = context.obj
    chosen, names = listed(only, "--only", BARS), listed(models, "--models", PEER_MODELS)
    for value, option in ((rounds, "--rounds"), (repeats, "--repeats")):
        if value < 1:
            raise CliError(f"{option} must be at least 1, got {value}")
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
    recorder = new_recorder(services, out, threads)
    tools = Bench(
        open_engine=lambda model: open_engine(services, model, threads, context=_BAR_CONTEXT),
        model_path=lambda model: ModelStore().resolve(model).path,
        recorder=recorder,
        threads=threads,
        rounds=rounds,
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


def _yes_no(value: bool | None) -> str:
    return "" if value is None else "yes" if value else "NO"
