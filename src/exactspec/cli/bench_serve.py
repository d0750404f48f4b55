"""``exactspec bench serve`` and ``exactspec bench soak``: our server as a process, and its clients."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from exactspec.bench.runner import contest, plain_answer
from exactspec.bench.serving.bars import PARTS, ServeTools, Sizes, measure
from exactspec.bench.serving.processes import ServerProcess, llama_server, our_server
from exactspec.bench.serving.report import tables
from exactspec.cli.bench_common import (
    Out,
    Threads,
    at_least_one,
    counts,
    label,
    listed,
    new_recorder,
    open_engine,
    peer_errors,
    show,
)
from exactspec.cli.services import CliError, Services
from exactspec.target.named import DEFAULT_MODEL

EXIT_FAILED = 1
PEER_NAME = "llama-server"
NO_PEER = "none"
_DEFAULTS = Sizes()

Model = Annotated[str, typer.Option("-m", "--model", metavar="NAME", help="Model to serve.")]
_PEER_HELP = f"llama.cpp's server, measured in turn: {PEER_NAME}, or where it lies; or {NO_PEER}."
Peer = Annotated[str, typer.Option("--peer", metavar="CMD", help=_PEER_HELP)]
PeerServer = Annotated[str, typer.Option("--peer-server", metavar="CMD", help=_PEER_HELP)]


def serve(
    context: typer.Context,
    model: Model = DEFAULT_MODEL,
    only: Annotated[str, typer.Option(metavar="LIST", help=f"Of {', '.join(PARTS)}.")] = ",".join(PARTS),
    clients: Annotated[int, typer.Option(metavar="N", help="Clients at once.")] = _DEFAULTS.clients,
    requests: Annotated[
        int | None, typer.Option(metavar="N", help="Requests of a round.  [default: one of each client]")
    ] = None,
    rounds: Annotated[
        int, typer.Option("--rounds", "--repeats", metavar="N", help="Rounds of each contest.")
    ] = _DEFAULTS.rounds,
    plain_tokens: Annotated[int, typer.Option(metavar="N", help="Tokens of a plain answer.")] = _DEFAULTS.plain_tokens,
    copy_tokens: Annotated[
        int, typer.Option(metavar="N", help="Most tokens of a copy-heavy answer.")
    ] = _DEFAULTS.copy_tokens,
    sizes: Annotated[str, typer.Option(metavar="LIST", help="Lengths of copy-heavy prompts, in tokens.")] = ",".join(
        map(str, _DEFAULTS.sizes)
    ),
    history: Annotated[int, typer.Option(metavar="N", help="Tokens before the second turn.")] = _DEFAULTS.history,
    peer: Peer = NO_PEER,
    threads: Threads = 2,
    out: Out = Path("results/serve.jsonl"),
) -> None:
    """Measure our server as clients see it: several at once, what HTTP adds, second turns; beside llama.cpp's.

    Every answer of ours is compared with the library's own. Exit code 1 if one differs.
    """
    services: Services = context.obj
    chosen = listed(only, "--only", PARTS)
    requests = clients if requests is None else requests
    at_least_one(
        clients=clients, requests=requests, rounds=rounds, plain_tokens=plain_tokens, copy_tokens=copy_tokens,
        history=history,
    )  # fmt: skip
    if requests < clients:
        raise CliError(f"--requests must be at least --clients ({clients}), got {requests}")
    asked = Sizes(
        clients=clients,
        requests=requests,
        rounds=rounds,
        plain_tokens=plain_tokens,
        copy_tokens=copy_tokens,
        sizes=tuple(counts(sizes, "--sizes")),
        history=history,
    )
    tools = serve_tools(threads=threads, peer=peer, sizes=asked, model=model)
    recorder = new_recorder(context, out, threads)
    engine = open_engine(services, model, threads, context=None)
    with peer_errors(), _server_errors():
        on = contest(engine, model=label(model), recorder=recorder)
        lines = measure(on, chosen, tools=tools, recorder=recorder)
    show(services, tables(lines))
    if wrong := sum(line.get("wrong_replies", 0) + ("tokens" in line["flags"]) for line in lines):
        services.note(f"{wrong} answers were not those of a lone run")
        raise typer.Exit(EXIT_FAILED)


def soak(
    context: typer.Context,
    model: Model = DEFAULT_MODEL,
    minutes: Annotated[float, typer.Option(metavar="M", help="How long clients ask.")] = 30.0,
    clients: Annotated[int, typer.Option(metavar="N", help="Clients at once.")] = 4,
    disconnects: Annotated[
        float, typer.Option(metavar="SHARE", help="Share of answers that are left before their end.")
    ] = 0.3,
    max_tokens: Annotated[int, typer.Option(metavar="N", help="Tokens of an answer.")] = 96,
    seeds: Annotated[int, typer.Option(metavar="N", help="Seeds of every sampled question.")] = 2,
    room: Annotated[int, typer.Option("--context", metavar="N", help="The server's longest context.")] = 2048,
    cache_mb: Annotated[int, typer.Option(metavar="MB", help="What the server may keep of keys and values.")] = 256,
    sizes: Annotated[str, typer.Option(metavar="LIST", help="Lengths of copy-heavy prompts, in tokens.")] = "512",
    threads: Threads = 2,
    out: Out = Path("results/soak.jsonl"),
) -> None:
    """Let clients ask, leave and come back for a long time: no wrong answer, no lost place, no growing memory.

    Prints one line. Exit code 1 if an answer was not that of its lone run, a request failed, one was left running, or
    memory moved by more than 5% between the second and the last fifth of the time.
    """
    from exactspec.bench.serving import soak as soaking
    from exactspec.bench.serving.cases import copy_cases, plain_cases

    services: Services = context.obj
    at_least_one(clients=clients, max_tokens=max_tokens, seeds=seeds, context=room, cache_mb=cache_mb)
    try:
        plan = soaking.SoakPlan(
            clients=clients, seconds=60 * minutes, disconnects=disconnects, sample_s=min(2.0, 60 * minutes / 50)
        )
    except ValueError as error:
        raise CliError(str(error)) from None
    lengths = counts(sizes, "--sizes")
    recorder = new_recorder(context, out, threads)
    engine = open_engine(services, model, threads, context=None)
    options = ["--context", str(room), "--cache-bytes", str(cache_mb * 1_000_000), "--log-level", "warning"]
    with peer_errors(), _server_errors():
        on = contest(engine, model=label(model), recorder=recorder)
        asked = plain_cases(engine.tokenizer, 4, max_tokens=max_tokens)
        asked += copy_cases(engine.tokenizer, 4, sizes=lengths, max_tokens=max_tokens)
        services.note(f"{len(asked) * (1 + seeds)} questions: their lone answers come first")
        questions = soaking.questions_of(asked, partial(plain_answer, on), seeds=seeds)
        with our_server(model, threads=threads, options=options) as server:
            result = soaking.soak(server, questions, plan, progress=services.note)
    line: dict[str, Any] = {
        "kind": "soak",
        "model": label(model),
        "plan": asdict(plan),
        "server": server.about,
        "questions": len(questions),
        "held": result.holds,
        "memory_percent": result.memory_percent,
        "stuck": result.stuck,
        "cache": list(result.cache),
        "resident": [list(pair) for pair in result.resident],
        **{key: value for key, value in asdict(result.counts).items() if key != "errors"},
        "errors": result.counts.errors[:20],
        "provenance": asdict(recorder.provenance()),
    }
    recorder.out.append([line])
    show(services, f"soak of {label(model)} {result.told}")
    if not result.holds:
        raise typer.Exit(EXIT_FAILED)


def serve_tools(*, threads: int, peer: str, sizes: Sizes, model: str | None = None) -> ServeTools:
    """Our server and the peer's. `model`: what to serve, where that is not the name in result lines.

    Raises CliError if the peer cannot be found.
    """
    program = None if peer == NO_PEER else shutil.which(peer)
    if peer != NO_PEER and program is None:
        raise CliError(f"there is no program {peer}: build llama.cpp's server, and say where it lies")

    def open_ours(name: str) -> ServerProcess:
        return our_server(model or name, threads=threads)

    def open_peer(name: str, sizes: Sizes) -> ServerProcess:
        from exactspec.target.hub import ModelStore

        assert program is not None
        path = ModelStore().resolve(model or name).path
        return llama_server(program, path, threads=threads, slots=sizes.clients, context=sizes.slot_tokens)

    return ServeTools(server=open_ours, peer=None if program is None else open_peer, sizes=sizes)


@contextmanager
def _server_errors() -> Iterator[None]:
    """Values that do not fit a model (a prompt too long for its context) are one line."""
    try:
        yield
    except ValueError as error:
        raise CliError(str(error)) from None
