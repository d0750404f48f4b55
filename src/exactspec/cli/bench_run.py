"""``exactspec bench run``: arms against each other on workloads and questions, measured or replayed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Annotated

import typer

from exactspec.bench.arms import PEER_ARMS, Arm, parse_arms
from exactspec.bench.case import Case
from exactspec.bench.eta import Remaining
from exactspec.bench.plan import Asked, prompt_once, question_cases, recipe_cases
from exactspec.bench.questions import MAX_TOKENS, SECOND, TURNS, Question, choose, read_questions
from exactspec.bench.recorder import Recorder
from exactspec.bench.report import full_table, latest
from exactspec.bench.runner import Contest, ReplayPeer, contest, run_contest
from exactspec.bench.workloads import RECIPES
from exactspec.cli.bench_common import (
    Out,
    Threads,
    at_least_one,
    label,
    listed,
    new_recorder,
    open_engine,
    peer_errors,
    recipes,
    rows_cost,
    show,
    token_count,
)
from exactspec.cli.services import CliError, Services
from exactspec.draft_names import FORMS, models_of
from exactspec.target.named import DEFAULT_MODEL

_WORKLOADS = "no_copy,false_friend,code_edit"


def run(
    context: typer.Context,
    model: Annotated[str, typer.Option("-m", "--model", metavar="NAME", help="Model to measure.")] = DEFAULT_MODEL,
    workloads: Annotated[
        str,
        typer.Option(
            "--workloads",
            "--workload",
            metavar="LIST",
            help=f"all, or of {', '.join(RECIPES)}.  [default: {_WORKLOADS}, none with --questions]",
        ),
    ] = "",
    sizes: Annotated[
        str, typer.Option("--sizes", "--size", metavar="LIST", help="Prompt lengths in tokens.")
    ] = "512,2048",
    seeds: Annotated[int, typer.Option(metavar="N", help="Prompts of each workload and size.")] = 3,
    questions: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Questions of two turns, JSON lines in MT-Bench's form.")
    ] = None,
    turns: Annotated[str, typer.Option(metavar="LIST", help=f"Turns of questions: {', '.join(TURNS)}.")] = "second",
    categories: Annotated[str, typer.Option(metavar="LIST", help="Categories of questions.  [default: all]")] = "",
    per_category: Annotated[
        int | None, typer.Option(metavar="N", help="The first N questions of each category.  [default: all]")
    ] = None,
    arms: Annotated[
        str,
        typer.Option(
            metavar="LIST",
            help=f"plain, draft modes ({', '.join(FORMS)}), with options as in copyspec@gamma=5, "
            f"{', '.join(PEER_ARMS)}; the first is the baseline.",
        ),
    ] = "none,copy,auto",
    repeats: Annotated[int, typer.Option("--repeats", "--rounds", metavar="N", help="Rounds of each prompt.")] = 3,
    max_tokens: Annotated[
        int, typer.Option("--max-tokens", metavar="N", help="Most tokens of an answer.")
    ] = MAX_TOKENS,
    temperature: Annotated[float, typer.Option(metavar="T", help="Above 0: sampled, with each prompt's seed.")] = 0.0,
    reuse: Annotated[
        bool, typer.Option("--reuse/--no-reuse", help="Later turns start from a session that holds the earlier.")
    ] = True,
    once: Annotated[
        bool, typer.Option("--prompt-once", help="Read a prompt once for all arms and rounds; decoding alone is timed.")
    ] = False,
    replay: Annotated[
        bool, typer.Option("--replay", help="Measure nothing: accept drafts iff they agree with the ideal reply.")
    ] = False,
    equal_rows: Annotated[
        bool, typer.Option("--equal-rows", help="With --replay: no arm verifies more rows than the first.")
    ] = False,
    threads: Threads = 2,
    out: Out = Path("results/runs.jsonl"),
) -> None:
    """Answer prompts by every arm in turn, compare the tokens, and print the table.

    Questions' second turns hold the model's own plain greedy answer to the first, which is generated once and kept in
    the result file. With --replay no answer is made: drafts are held against the workloads' ideal replies and the
    questions' kept answers.
    """
    services: Services = context.obj
    names = _workloads(workloads, questions)
    try:
        parsed = parse_arms(arms)
    except ValueError as error:
        raise CliError(f"--arms: {error}") from None
    if len(parsed) < 2:
        raise CliError(f"--arms must name at least two draft modes, got {arms}")
    draft_models = models_of(*(arm.speculation.draft for arm in parsed if arm.speculation is not None))
    lengths = [token_count(word) for word in sizes.split(",")]
    at_least_one(seeds=seeds, repeats=repeats, max_tokens=max_tokens, per_category=per_category)
    if temperature < 0:
        raise CliError(f"--temperature must be at least 0, got {temperature:g}")
    if equal_rows and not replay:
        raise CliError("--equal-rows is for --replay")
    asked_turns = listed(turns, "--turns", TURNS)
    chosen = _questions(questions, categories, per_category, asked_turns)
    recorder = new_recorder(context, out, threads)
    engine = open_engine(services, model, threads, context=None, draft_models=draft_models)
    if names and not replay:
        _check_room(engine, label(model), max(lengths))
    asked = Asked(max_tokens=max_tokens, temperature=temperature, reuse=reuse)
    with _peer(model, parsed, threads) as peer, peer_errors():
        on = contest(engine, model=label(model), recorder=recorder, peer=peer)
        made = recipe_cases(engine.tokenizer, names, lengths, range(seeds), asked)
        cases: Iterator[Case] = chain(made, question_cases(on, chosen, asked_turns, asked))
        if once:
            cases = map(prompt_once, cases)
        if replay:
            from exactspec.bench.replay import replay_cases  # numba and drafters: not needed for --help
            from exactspec.bench.replay_report import replay_table

            cost = rows_cost(engine)
            lines = replay_cases(on, cases, parsed, equal_rows=equal_rows, recorder=recorder, cost=cost)
            show(services, replay_table(lines))
            return
        total = len(made) + len(chosen) * len(asked_turns)
        show(services, _measure(on, cases, parsed, repeats, recorder, total))


def _measure(
    on: Contest, cases: Iterator[Case], arms: Sequence[Arm], repeats: int, recorder: Recorder, total: int
) -> str:
    wanted = set()

    def noted() -> Iterator[Case]:
        for case in cases:
            wanted.add(case.work)
            yield case

    run_contest(on, noted(), arms, repeats=repeats, recorder=recorder, remaining=Remaining(total * repeats))
    names = [arm.name for arm in arms]
    return full_table([line for line in latest(recorder.out.lines) if line["work"] in wanted and line["arms"] == names])


def _check_room(engine: object, model: str, size: int) -> None:
    """Raises CliError, before the shorter ones are measured, where a prompt leaves no room for an answer."""
    most: int | None = getattr(getattr(engine, "target", None), "max_length", None)
    if most is not None and size >= most:
        raise CliError(f"--sizes: {size} tokens leave no room in the context of {model}, {most} tokens: name less")


def _workloads(text: str, questions: Path | None) -> list[str]:
    if not text:
        return [] if questions is not None else _WORKLOADS.split(",")
    return recipes(text)


def _questions(file: Path | None, categories: str, per_category: int | None, turns: Sequence[str]) -> list[Question]:
    if file is None:
        return []
    if not file.is_file():
        raise CliError(f"--questions: {file} is no file")
    names = [word.strip() for word in categories.split(",")] if categories else []
    try:
        chosen = choose(read_questions(file), categories=names, per_category=per_category)
    except ValueError as error:
        raise CliError(f"--questions: {error}") from None
    if SECOND in turns and (single := [question.id for question in chosen if len(question.turns) < 2]):
        raise CliError(f"--questions: question {single[0]} has no second turn: ask for --turns first")
    return chosen


@contextmanager
def _peer(model: str, arms: Sequence[Arm], threads: int) -> Iterator[ReplayPeer | None]:
    """llama.cpp on the model's file, if an arm needs it."""
    if not any(arm.peer for arm in arms):
        yield None
        return
    from exactspec.bench.peers.llama_cpp import LlamaCppPeer
    from exactspec.target.hub import ModelStore

    with peer_errors(), LlamaCppPeer(ModelStore().resolve(model).path, threads=threads) as peer:
        yield peer
