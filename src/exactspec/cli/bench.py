"""``exactspec bench``: measure draft modes against each other, the bars, and print what was measured."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from exactspec.bench.report import full_table, latest
from exactspec.bench.runtime_bars import PEER, REPEATS
from exactspec.bench.store import Line, ResultFile
from exactspec.bench.workloads import RECIPES, build
from exactspec.cli import options as opt
from exactspec.cli.bench_acceptance import acceptance
from exactspec.cli.bench_bars import bars
from exactspec.cli.bench_common import (
    Out,
    Threads,
    at_least_one,
    counts,
    label,
    new_recorder,
    open_engine,
    peer_errors,
    recipes,
    show,
    token_count,
)
from exactspec.cli.bench_run import run
from exactspec.cli.bench_serve import serve, soak
from exactspec.cli.lazy import new_app
from exactspec.cli.prompt import check_place
from exactspec.cli.services import CliError, Services
from exactspec.target.named import DEFAULT_MODEL

_KERNEL_CONTEXTS = (512, 2048, 8192)
_PEERS = ("none", PEER)

bench = new_app(help="Measure speed and equality: results are JSON lines with their provenance.")

bench.command()(run)
bench.command()(bars)
bench.command()(acceptance)
bench.command()(serve)
bench.command()(soak)


@bench.command()
def kernels(
    context: typer.Context,
    model: Annotated[str, typer.Option("-m", "--model", metavar="NAME", help="Model to measure.")] = DEFAULT_MODEL,
    rows: Annotated[str, typer.Option(metavar="LIST", help="Rows of one forward.")] = "1,2,4,8,12,16,24,32,64",
    contexts: Annotated[
        str, typer.Option(metavar="LIST", help="Tokens in the cache before it  [default: of 512,2048,8192 what fits]")
    ] = "",
    prefill: Annotated[
        int, typer.Option(metavar="N", help="Read a prompt of N tokens instead: tokens a second.", show_default=False)
    ] = 0,
    peer: Annotated[str, typer.Option(metavar="NAME", help=f"Measured in turn: {', '.join(_PEERS)}.")] = "none",
    repeats: Annotated[int, typer.Option(metavar="N", help="Rounds; medians count.")] = REPEATS,
    threads: Threads = 2,
    device: opt.Device = None,
    plot: Annotated[
        Path | None, typer.Option("--plot", metavar="FILE", help="Draw time by rows: .png, .svg or .pdf.")
    ] = None,
    out: Out = Path("results/kernels.jsonl"),
) -> None:
    """Time one forward by its rows and context, beside what the machine can do at most, or the reading of a prompt."""
    from exactspec.cli.bench_kernels import measure_forwards, measure_prefill  # numba: not needed for --help

    services: Services = context.obj
    if peer not in _PEERS:
        raise CliError(f"--peer: {peer!r} is none of {', '.join(_PEERS)}")
    if repeats < 1:
        raise CliError(f"--repeats must be at least 1, got {repeats}")
    if prefill < 0:
        raise CliError(f"--prefill must be at least 1 token, got {prefill}")
    if prefill and plot is not None:
        raise CliError("--plot draws forwards: leave out --prefill")
    row_counts = counts(rows, "--rows")
    lengths: Sequence[int] = counts(contexts, "--contexts") if contexts else _KERNEL_CONTEXTS
    if on_gpu := device is not None and device != "cpu":
        if prefill or plot is not None or peer != "none":
            raise CliError("on a GPU forwards alone are timed: leave out --prefill, --plot and --peer")
        lengths = counts(contexts, "--contexts") if contexts else _KERNEL_CONTEXTS[:2]
    recorder = new_recorder(context, out, threads)
    engine = open_engine(services, model, threads, context=prefill or max(lengths) + max(row_counts), device=device)
    if on_gpu:
        from exactspec.cli.bench_gpu import measure_on_gpu  # not needed for --help

        told = measure_on_gpu(
            engine, label(model), rows=row_counts, contexts=lengths, repeats=repeats, recorder=recorder
        )
        show(services, told)
        return
    with peer_errors():
        if prefill:
            told = measure_prefill(
                engine, model, label(model), tokens=prefill, repeats=repeats, peer=peer, recorder=recorder
            )
        else:
            told = measure_forwards(
                engine,
                model,
                label(model),
                rows=row_counts,
                contexts=sorted(lengths),
                what_fits=not contexts,
                repeats=repeats,
                peer=peer,
                recorder=recorder,
                plot=plot,
            )
    show(services, told)


@bench.command()
def layer(
    context: typer.Context,
    model: Annotated[str, typer.Option("-m", "--model", metavar="NAME", help="The layer's target.")] = DEFAULT_MODEL,
    folder: Annotated[
        Path | None, typer.Option("--layer", metavar="FOLDER", help="The layer.  [default: one of random weights]")
    ] = None,
    contexts: Annotated[str, typer.Option(metavar="LIST", help="Tokens in the cache.")] = "1024,4096,8000",
    recent: Annotated[
        int, typer.Option(metavar="N", help="The target's last keys that a row sees; 0: all that there are.")
    ] = 1024,
    top_chunks: Annotated[
        int, typer.Option(metavar="N", help="Chunks of 128 keys before these that a row sees, those it weighs most.")
    ] = 0,
    repeats: Annotated[int, typer.Option(metavar="N", help="Rounds; medians count.")] = 21,
    threads: Threads = 2,
    out: Out = Path("results/layer.jsonl"),
) -> None:
    """Bytes of a draft layer and time of its passes by context, beside a plain step of its target."""
    services: Services = context.obj
    lengths = counts(contexts, "--contexts")
    at_least_one(repeats=repeats)
    if recent < 0:
        raise CliError(f"--recent must be at least 0, got {recent}")
    recorder = new_recorder(context, out, threads)
    engine = open_engine(services, model, threads, context=max(lengths) + 1)

    from exactspec.cli.bench_layer import measure  # numba: not needed for --help

    try:
        told = measure(
            engine,
            label(model),
            folder,
            contexts=lengths,
            recent=recent or None,
            top_chunks=top_chunks,
            repeats=repeats,
            recorder=recorder,
        )
    except ValueError as error:
        raise CliError(str(error)) from None
    show(services, told)


@bench.command()
def gold(
    context: typer.Context,
    out: Annotated[Path, typer.Option("--out", metavar="LOG.jsonl", help="The log to write; it must not exist.")],
    model: Annotated[str, typer.Option("-m", "--model", metavar="NAME", help="Whose tokenizer.")] = DEFAULT_MODEL,
    workloads: Annotated[str, typer.Option(metavar="LIST", help=f"Of {', '.join(RECIPES)}, or all.")] = "all",
    sizes: Annotated[str, typer.Option(metavar="LIST", help="Prompt lengths in tokens.")] = "2048",
    seeds: Annotated[int, typer.Option(metavar="N", help="Prompts of each workload and size.")] = 3,
) -> None:
    """Write the workloads' prompts with their ideal replies as a log for 'exactspec simulate'."""
    services: Services = context.obj
    names = recipes(workloads)
    lengths = [token_count(word) for word in sizes.split(",")]
    if seeds < 1:
        raise CliError(f"--seeds must be at least 1, got {seeds}")
    if out.exists():
        raise CliError(f"{out} is there already: give another --out, or remove it")
    check_place(out, "--out")
    from exactspec.bench.simulate import Answer, append_log
    from exactspec.bench.workloads import prompt_ids

    tokenizer = services.open_tokenizer(model, progress=services.note)
    answers = []  # all before the first is written: a workload may have no prompt of a size
    for name in names:
        for size in lengths:
            for seed in range(seeds):
                made = build(name, tokenizer=tokenizer, size=size, seed=seed)
                for turn in made.turns:
                    prompt = prompt_ids(tokenizer, made.messages[: turn.before])
                    reply = tokenizer.encode(turn.gold)
                    answers.append(Answer(made.turn_id(turn), f"{name}-{size}", tuple(prompt), tuple(reply)))
    append_log(out, answers)


@bench.command("table")
def print_table(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="JSON lines that run, kernels or bars wrote.")],
    baseline: Annotated[
        str | None, typer.Option(metavar="ARM", help="Arm that runs are compared with, instead of their first one.")
    ] = None,
) -> None:
    """Print a result file as a markdown table: per model its newest configuration."""
    if not file.is_file():
        raise CliError(f"{file} is no file: give one that 'exactspec bench run', 'kernels' or 'bars' wrote")
    lines = ResultFile(file).lines
    try:
        told = _tables(lines, baseline)
    except CliError:
        raise
    except Exception as error:  # what is told of is what the lines say, whoever wrote them
        what = f"{type(error).__name__}: {error}"
        raise CliError(
            f"{file} holds a line that this version's 'exactspec bench' does not write ({what}): remove it"
        ) from error
    if not told:
        raise CliError(f"{file} holds no runs")
    show(context.obj, "\n\n".join(told))


def _tables(lines: Sequence[Line], baseline: str | None) -> list[str]:
    from exactspec.bench import kernels_report, prefill
    from exactspec.bench.replay_report import newest_replays, replay_table
    from exactspec.bench.serving import report as serving_report

    told = []
    runs = latest(lines)
    if baseline is not None:
        arms = sorted({line["arm"] for line in runs})
        if baseline not in arms:
            raise CliError(f"no run has an arm {baseline!r}: give one of {', '.join(arms) or 'a file with runs'}")
        return [full_table(runs, baseline=baseline)]
    if runs:
        told.append(full_table(runs))
    if replays := newest_replays(lines):
        told.append(replay_table(replays))
    if forwards := kernels_report.newest(lines):
        told.append(kernels_report.table(forwards))
    if prompts := prefill.newest(lines):
        told.append(prefill.table(prompts))
    if servers := serving_report.tables(lines):
        told.append(servers)
    return told
