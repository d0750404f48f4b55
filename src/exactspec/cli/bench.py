"""``exactspec bench``: measure draft modes against each other, the bars, and print what was measured."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, cast

import typer

from exactspec.bench.bar import Bar
from exactspec.bench.bars import BARS, PEER_MODELS, Bench, all_bars
from exactspec.bench.peers.error import PeerError
from exactspec.bench.provenance import collect, now
from exactspec.bench.report import latest, markdown, summarise, table
from exactspec.bench.runner import Case, EngineLike, Recorder, run_arms
from exactspec.bench.runtime_bars import LONG, PEER, REPEATS
from exactspec.bench.store import ResultFile
from exactspec.bench.workloads import RECIPES, build, workload_cases
from exactspec.cli import options as opt
from exactspec.cli.lazy import new_app
from exactspec.cli.services import CliError, Services
from exactspec.params import DRAFTS
from exactspec.target.cache_types import DEFAULT_CACHE_DTYPE
from exactspec.target.named import DEFAULT_MODEL
from exactspec.target.tokenizer import Tokenizer

_BAR_CONTEXT = LONG + 64
_KERNEL_CONTEXTS = (512, 2048, 8192)
_PEERS = ("none", PEER)
_EXTRAS = {"peers": ("llama_cpp", ("peer", "one-row", "prefill")), "hf": ("transformers", ("perplexity",))}
_BUSY = 0.5  # load average, over one minute, of the rest of the machine when a run starts
EXIT_FAILED = 1

bench = new_app(help="Measure speed and equality: results are JSON lines with their provenance.")

Out = Annotated[
    Path, typer.Option("--out", metavar="FILE", help="JSON lines, appended; measured rounds are not redone.")
]
Threads = Annotated[int, typer.Option("--threads", metavar="N", help="CPU threads of every engine.")]


@bench.command()
def run(
    context: typer.Context,
    model: Annotated[str, typer.Option("-m", "--model", metavar="NAME", help="Model to measure.")] = DEFAULT_MODEL,
    workloads: Annotated[
        str, typer.Option(metavar="LIST", help=f"Of {', '.join(RECIPES)}, or all.")
    ] = "no_copy,false_friend,code_edit",
    sizes: Annotated[str, typer.Option(metavar="LIST", help="Prompt lengths in tokens.")] = "512,2048",
    seeds: Annotated[int, typer.Option(metavar="N", help="Prompts of each workload and size.")] = 3,
    arms: Annotated[
        str, typer.Option(metavar="LIST", help=f"Draft modes ({', '.join(DRAFTS)}); the first is the baseline.")
    ] = "none,copy,auto",
    repeats: Annotated[int, typer.Option(metavar="N", help="Rounds of each prompt.")] = 3,
    max_tokens: Annotated[int, typer.Option("--max-tokens", metavar="N", help="Most tokens of an answer.")] = 256,
    temperature: Annotated[float, typer.Option(metavar="T", help="Above 0: sampled, with each prompt's seed.")] = 0.0,
    threads: Threads = 2,
    out: Out = Path("results/runs.jsonl"),
) -> None:
    """Answer the workloads' prompts with every draft mode in turn, compare the tokens, and print the table."""
    services: Services = context.obj
    names, modes = _recipes(workloads), _list(arms, "--arms", DRAFTS)
    if len(modes) < 2:
        raise CliError(f"--arms must name at least two draft modes, got {arms}")
    lengths = [_size(word) for word in sizes.split(",")]
    for value, option in ((seeds, "--seeds"), (repeats, "--repeats"), (max_tokens, "--max-tokens")):
        if value < 1:
            raise CliError(f"{option} must be at least 1, got {value}")
    if temperature < 0:
        raise CliError(f"--temperature must be at least 0, got {temperature:g}")
    recorder = _recorder(services, out, threads)
    engine = _open(services, model, threads, context=None)
    cases: list[Case] = []
    for name in names:
        for size in lengths:
            for seed in range(seeds):
                workload = build(name, tokenizer=engine.tokenizer, size=size, seed=seed)
                cases += workload_cases(engine.tokenizer, workload, max_tokens=max_tokens, temperature=temperature)
    run_arms(engine, cases, modes, model=_label(model), repeats=repeats, recorder=recorder)
    wanted = {case.work for case in cases}
    lines = [line for line in latest(recorder.out.lines) if line["work"] in wanted and line["arms"] == modes]
    _print(services, table(summarise(lines)))


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
    counts = _counts(rows, "--rows")
    lengths: Sequence[int] = _counts(contexts, "--contexts") if contexts else _KERNEL_CONTEXTS
    if on_gpu := device is not None and device != "cpu":
        if prefill or plot is not None or peer != "none":
            raise CliError("on a GPU forwards alone are timed: leave out --prefill, --plot and --peer")
        lengths = _counts(contexts, "--contexts") if contexts else _KERNEL_CONTEXTS[:2]
    recorder = _recorder(services, out, threads)
    engine = _open(services, model, threads, context=prefill or max(lengths) + max(counts), device=device)
    if on_gpu:
        from exactspec.cli.bench_gpu import measure_on_gpu  # not needed for --help

        told = measure_on_gpu(engine, _label(model), rows=counts, contexts=lengths, repeats=repeats, recorder=recorder)
        _print(services, told)
        return
    with _peer_errors():
        if prefill:
            told = measure_prefill(
                engine, model, _label(model), tokens=prefill, repeats=repeats, peer=peer, recorder=recorder
            )
        else:
            told = measure_forwards(
                engine,
                model,
                _label(model),
                rows=counts,
                contexts=sorted(lengths),
                what_fits=not contexts,
                repeats=repeats,
                peer=peer,
                recorder=recorder,
                plot=plot,
            )
    _print(services, told)


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
    names = _recipes(workloads)
    lengths = [_size(word) for word in sizes.split(",")]
    if seeds < 1:
        raise CliError(f"--seeds must be at least 1, got {seeds}")
    if out.exists():
        raise CliError(f"{out} is there already: give another --out, or remove it")
    from exactspec.bench.simulate import Answer, append_log
    from exactspec.bench.workloads import prompt_ids

    tokenizer = services.open_engine(
        model, draft="none", threads=None, context=None, cache_dtype="float32", progress=services.note
    ).tokenizer
    for name in names:
        for size in lengths:
            for seed in range(seeds):
                made = build(name, tokenizer=cast(Tokenizer, tokenizer), size=size, seed=seed)
                for turn in made.turns:
                    prompt = prompt_ids(cast(Tokenizer, tokenizer), made.messages[: turn.before])
                    reply = cast(Tokenizer, tokenizer).encode(turn.gold)
                    append_log(out, Answer(made.turn_id(turn), f"{name}-{size}", tuple(prompt), tuple(reply)))


@bench.command("table")
def print_table(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="JSON lines that run, kernels or bars wrote.")],
) -> None:
    """Print a result file as a markdown table: per model its newest configuration."""
    if not file.is_file():
        raise CliError(f"{file} is no file: give one that 'exactspec bench run', 'kernels' or 'bars' wrote")
    from exactspec.bench import kernels_report, prefill

    everything = ResultFile(file).lines
    told = []
    if runs := latest(everything):
        told.append(table(summarise(runs)))
    if forwards := kernels_report.newest(everything):
        told.append(kernels_report.table(forwards))
    if prompts := prefill.newest(everything):
        told.append(prefill.table(prompts))
    if not told:
        raise CliError(f"{file} holds no runs")
    _print(context.obj, "\n\n".join(told))


@bench.command()
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
    chosen, names = _list(only, "--only", BARS), _list(models, "--models", PEER_MODELS)
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
    recorder = _recorder(services, out, threads)
    tools = Bench(
        open_engine=lambda model: _open(services, model, threads, context=_BAR_CONTEXT),
        model_path=lambda model: ModelStore().resolve(model).path,
        recorder=recorder,
        threads=threads,
        rounds=rounds,
    )
    runtime = runtime_tools(recorder, threads=threads, text=text, repeats=repeats)
    found = all_bars(tools, only=chosen, models=names, demo_prompt=demo_prompt, drafter=drafter, runtime=runtime)
    with _peer_errors():
        for bar in found:
            measured.append(bar)
            services.note(f"{'passed' if bar.passed else 'FAILED'}: {bar.name}: {bar.told_value} ({bar.detail})")
    if not measured:
        raise CliError("no bar is measured with these --only and --models: add some")
    rows = [
        ("passed" if bar.passed else "FAILED", bar.name, bar.told_value, bar.told_limit, _yes_no(bar.equal), bar.detail)
        for bar in measured
    ]
    _print(services, markdown(("", "bar", "measured", "limit", "same tokens", "detail"), rows))
    if not all(bar.passed for bar in measured):
        raise typer.Exit(EXIT_FAILED)


@contextmanager
def _peer_errors() -> Iterator[None]:
    """A peer that is missing or fails is one line; what was measured before is in the file."""
    try:
        yield
    except PeerError as error:
        raise CliError(str(error)) from None


def _recorder(services: Services, out: Path, threads: int) -> Recorder:
    if threads < 1:
        raise CliError(f"--threads must be at least 1, got {threads}")
    start = collect(threads=threads)
    if start.load_average > _BUSY:
        services.note(f"the machine is busy (load average {start.load_average}): only an idle one gives times to keep")
    return Recorder(ResultFile(out), lambda: now(start), services.note)


def _open(
    services: Services, model: str, threads: int, *, context: int | None, device: str | None = None
) -> EngineLike:
    engine = services.open_engine(
        model,
        draft="none",
        threads=threads,
        context=context,
        cache_dtype=DEFAULT_CACHE_DTYPE,
        progress=services.note,
        **({} if device is None else {"device": device}),
    )
    # The command line's own protocol names less of the engine than is measured here.
    return cast(EngineLike, engine)


def _label(model: str) -> str:
    """A path is shortened to its name: where it lies on one machine means nothing on another."""
    return Path(model).name if os.sep in model else model


def _list(text: str, option: str, known: Iterable[str]) -> list[str]:
    words = [word.strip() for word in text.split(",")]
    names = list(known)
    for word in words:
        if word not in names:
            raise CliError(f"{option}: {word!r} is none of {', '.join(names)}")
    if len(set(words)) != len(words):
        raise CliError(f"{option} names one twice: {text}")
    return words


def _recipes(text: str) -> list[str]:
    return list(RECIPES) if text.strip() == "all" else _list(text, "--workloads", RECIPES)


def _size(word: str) -> int:
    try:
        return int(word)
    except ValueError:
        raise CliError(f"--sizes: {word!r} is not a number of tokens") from None


def _counts(text: str, option: str) -> list[int]:
    try:
        counts = [int(word) for word in text.split(",")]
    except ValueError:
        raise CliError(f"{option} must be whole numbers with commas between, got {text!r}") from None
    if min(counts) < 1 or len(set(counts)) != len(counts):
        raise CliError(f"{option} must be different numbers of at least 1, got {text}")
    return counts


def _print(services: Services, text: str) -> None:
    print(text, file=services.stdout, flush=True)


def _yes_no(value: bool | None) -> str:
    return "" if value is None else "yes" if value else "NO"
