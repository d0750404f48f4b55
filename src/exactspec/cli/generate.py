"""``exactspec generate``: answer one prompt."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from exactspec.cli import options as opt
from exactspec.cli.compare import Comparison, compare, median_run
from exactspec.cli.prompt import check_place, chomp, fit_to_model, read_file, read_prompt
from exactspec.cli.render import Painter, ReadingNote, is_terminal, summary, use_color
from exactspec.cli.services import CliError, EngineLike, Services
from exactspec.cli.stream import Request, consume
from exactspec.params import Speculation
from exactspec.results import Chunk, Completion
from exactspec.target.cache_types import DEFAULT_CACHE_DTYPE
from exactspec.target.named import DEFAULT_MODEL
from exactspec.target.tokenizer import Tokenizer

EXIT_DIFFERENT = 1
EXIT_INTERRUPTED = 130


def generate(
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
    logprobs: Annotated[
        int | None,
        typer.Option(
            "--logprobs", metavar="K", help="With --json or --log: log-probabilities of each token and the K best."
        ),
    ] = None,
    threads: opt.Threads = None,
    context_length: opt.ContextLength = None,
    cache_dtype: opt.CacheDtype = DEFAULT_CACHE_DTYPE,
    dtype: opt.Dtype = None,
    device: opt.Device = None,
    json_output: opt.Json = False,
    log: Annotated[
        Path | None,
        typer.Option("--log", metavar="F.jsonl", help="Append prompt and answer as ids, for 'exactspec simulate'."),
    ] = None,
    compare_runs: Annotated[
        bool,
        typer.Option("--compare", help="Run plain and drafted: are the tokens equal, how much faster? Exit 1 if not."),
    ] = False,
    pairs: Annotated[int, typer.Option("--pairs", metavar="N", help="Pairs of runs for --compare.")] = 3,
    no_color: opt.NoColor = False,
) -> None:
    """Answer one prompt.

    The prompt is one user turn through the model's chat template (plain completion for a model without one). The
    answer alone goes to stdout; notes go to stderr. Ctrl-C keeps the text so far.
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
        logprobs=logprobs,
    )
    speculation = Speculation(draft=draft, draft_length=draft_length, max_nodes=max_nodes)
    if logprobs is not None and not json_output and log is None:
        raise CliError("--logprobs are only shown in JSON: add --json")
    if log is not None:
        check_place(log, "--log")
    if compare_runs and draft == "none":
        raise CliError("--compare needs a drafter to compare with plain decoding: leave --draft none out")
    if not 1 <= pairs <= 1000:
        raise CliError(f"--pairs must be from 1 to 1000, got {pairs}")
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
    asked = fit_to_model(text, engine)
    request = Request(prompt=asked, params=params, speculation=speculation, prediction=prediction)
    painter = Painter(
        engine.tokenizer.token_bytes,
        color=use_color(services.stdout, services.environ, no_color=no_color),
        escape=is_terminal(services.stdout),
    )
    printer = None if json_output else painter
    if compare_runs:
        completion, code = _compare(services, engine, request, pairs=pairs, printer=printer)
    else:
        completion, code = _answer(services, engine, request, printer=printer)
    if log is not None:
        _append(log, engine, request, completion)
    raise typer.Exit(code)


def _append(log: Path, engine: EngineLike, request: Request, completion: Completion) -> None:
    from exactspec.bench.simulate import Answer, append_log
    from exactspec.prompts import encode_prediction

    prediction = encode_prediction(request.prediction, cast(Tokenizer, engine.tokenizer))
    # With --logprobs also what the target found likeliest: log-probabilities are logits up to a constant.
    best = tuple(token.top for token in completion.tokens) if request.params.logprobs else ()
    prompt = tuple(engine.encode(request.prompt))
    answer = Answer("generate", "generate", prompt, completion.token_ids, tuple(prediction), best)
    append_log(log, [answer])


def _answer(
    services: Services, engine: EngineLike, request: Request, *, printer: Painter | None
) -> tuple[Completion, int]:
    """Stream one answer (`printer` None: as JSON when it is complete); the answer and the exit code."""

    reading = ReadingNote(services.stderr, services.environ)

    def show(chunk: Chunk) -> None:
        reading.clear()
        if printer is not None:
            services.stdout.write(printer.paint(chunk))
            services.stdout.flush()

    try:
        completion = consume(request.start(engine, progress=reading), show)
    finally:
        reading.clear()
    if printer is None:
        _print_json(services, as_dict(completion, logprobs=request.params.logprobs is not None))
    else:
        _close(services, completion)
    return completion, EXIT_INTERRUPTED if completion.finish_reason == "cancelled" else 0


def _compare(
    services: Services, engine: EngineLike, request: Request, *, pairs: int, printer: Painter | None
) -> tuple[Completion, int]:
    # Nothing is shown while the clock runs: writing to a terminal would count as decoding.
    result = compare(engine, request, pairs=pairs, progress=services.note)
    completion = median_run(result.drafted) if isinstance(result, Comparison) else result
    if printer is None:
        extra = {"compare": result.as_dict()} if isinstance(result, Comparison) else {}
        _print_json(services, as_dict(completion, logprobs=request.params.logprobs is not None) | extra)
    else:
        services.stdout.write(printer.paint(Chunk(completion.text, completion.tokens, completion)))
        _close(services, completion)
    if not isinstance(result, Comparison):
        services.note("stopped before the comparison was complete")
        return completion, EXIT_INTERRUPTED
    if printer is not None:
        for line in result.lines():
            print(line, file=services.stderr, flush=True)
    return completion, 0 if result.equal else EXIT_DIFFERENT


def _close(services: Services, completion: Completion) -> None:
    """End the answer's last line, and say on a terminal how it was made."""
    if completion.text and not completion.text.endswith("\n"):
        services.stdout.write("\n")
    services.stdout.flush()
    if is_terminal(services.stdout) or is_terminal(services.stderr):
        services.note(summary(completion))


def as_dict(completion: Completion, *, logprobs: bool) -> dict[str, Any]:
    """The object that ``--json`` prints."""
    value: dict[str, Any] = {
        "text": completion.text,
        "token_ids": list(completion.token_ids),
        "finish_reason": completion.finish_reason,
        "seed": completion.seed,
        "identity": completion.identity,
        "exact": completion.exact,
        "metrics": completion.metrics.as_dict(),
    }
    if logprobs:
        value["logprobs"] = [
            {
                "id": token.id,
                "text": token.text,
                "logprob": _finite(token.logprob),
                "top": [{"id": id_, "logprob": _finite(logprob)} for id_, logprob in token.top],
            }
            for token in completion.tokens
        ]
    return value


def _finite(value: float | None) -> float | None:
    """JSON has no infinity."""
    return value if value is not None and math.isfinite(value) else None


def _print_json(services: Services, value: dict[str, Any]) -> None:
    utf8 = (services.stdout.encoding or "").lower().replace("-", "") == "utf8"
    # Escaped where the terminal's encoding would lose characters: JSON must stay what it is.
    services.stdout.write(json.dumps(value, ensure_ascii=not utf8, allow_nan=False) + "\n")
    services.stdout.flush()
