"""``exactspec trace``: answer one prompt, and show what every step drafted, verified and accepted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from exactspec.cli import options as opt
from exactspec.cli.generate import EXIT_INTERRUPTED
from exactspec.cli.prompt import check_place, chomp, fit_to_model, read_file, read_prompt
from exactspec.cli.render import ReadingNote, use_color
from exactspec.cli.services import CliError, Services
from exactspec.cli.stream import Request, consume
from exactspec.params import Speculation
from exactspec.target.cache_types import DEFAULT_CACHE_DTYPE
from exactspec.target.named import DEFAULT_MODEL
from exactspec.trace.page import page
from exactspec.trace.steps import trace_of
from exactspec.trace.table import table


def trace(
    context: typer.Context,
    model: opt.Model = DEFAULT_MODEL,
    prompt: opt.PromptText = None,
    prompt_file: opt.PromptFile = None,
    messages: opt.MessagesFile = None,
    system: opt.System = None,
    raw: opt.Raw = False,
    draft: opt.Draft = "auto",
    draft_length: opt.DraftLength = 0,
    max_nodes: opt.MaxNodes = 48,
    prediction_file: opt.PredictionFile = None,
    max_tokens: opt.MaxTokens = None,
    min_tokens: opt.MinTokens = 0,
    temperature: opt.Temperature = 0.0,
    top_p: opt.TopP = 1.0,
    top_k: opt.TopK = 0,
    min_p: opt.MinP = 0.0,
    repetition_penalty: opt.RepetitionPenalty = 1.0,
    presence_penalty: opt.PresencePenalty = 0.0,
    frequency_penalty: opt.FrequencyPenalty = 0.0,
    seed: opt.Seed = None,
    stop: opt.Stop = None,
    threads: opt.Threads = None,
    context_length: opt.ContextLength = None,
    cache_dtype: opt.CacheDtype = DEFAULT_CACHE_DTYPE,
    dtype: opt.Dtype = None,
    device: opt.Device = None,
    html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Write a page to be read in a browser instead.")
    ] = None,
    nodes: Annotated[
        int, typer.Option("--nodes", metavar="N", help="Most nodes shown of a step's tree on the terminal (0: none).")
    ] = 12,
    json_output: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")] = False,
    no_color: opt.NoColor = False,
) -> None:
    """Answer one prompt and show every step: the context's length, the tree with sources and scores, what was accepted,
    rows, times, and tau so far.

    Options are those of generate. Ctrl-C shows the steps so far.
    """
    services: Services = context.obj
    params = opt.sampling_params(
        max_tokens=max_tokens,
        min_tokens=min_tokens,
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        min_p=min_p,
        repetition_penalty=repetition_penalty,
        presence_penalty=presence_penalty,
        frequency_penalty=frequency_penalty,
        seed=seed,
        stop=stop,
    )
    speculation = Speculation(draft=draft, draft_length=draft_length, max_nodes=max_nodes)
    if nodes < 0:
        raise CliError(f"--nodes must be at least 0, got {nodes}")
    if html is not None and json_output:
        raise CliError("--html and --json are two forms of the same: give one of them")
    if html is not None:
        check_place(html, "--html")
    text = read_prompt(services, text=prompt, prompt_file=prompt_file, messages_file=messages, system=system, raw=raw)
    prediction = None
    if prediction_file is not None:
        prediction = chomp(read_file(prediction_file, "--prediction-file", services))
    engine = opt.load_engine(
        services,
        model,
        speculation,
        threads=threads,
        context=context_length,
        cache_dtype=cache_dtype,
        dtype=dtype,
        device=device,
    )
    request = Request(
        prompt=fit_to_model(text, engine),
        params=params,
        speculation=speculation,
        prediction=prediction,
        record_steps=True,
    )
    reading = ReadingNote(services.stderr, services.environ)
    try:
        done = consume(request.start(engine, progress=reading), lambda chunk: reading.clear())
    finally:
        reading.clear()
    found = trace_of(done, draft=draft, token_bytes=engine.tokenizer.token_bytes)
    out = services.stdout
    if html is not None:
        with html.open("w", encoding="utf-8") as file:
            file.writelines(page(found))
        services.note(f"wrote {html}: {len(found.steps)} steps, tau {done.metrics.tau:.2f}")
    elif json_output:
        out.write(json.dumps(found.as_dict(), allow_nan=False) + "\n")
    else:
        for line in table(found, nodes=nodes, color=use_color(out, services.environ, no_color=no_color)):
            out.write(line + "\n")
    out.flush()
    raise typer.Exit(EXIT_INTERRUPTED if done.finish_reason == "cancelled" else 0)
