"""Options that several commands share, and what they turn into. No command lives here."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from exactspec.cli.services import CliError, EngineLike, Services
from exactspec.draft_names import FORMS
from exactspec.params import SamplingParams, Speculation
from exactspec.target.cache_types import CACHE_TYPES

Model = Annotated[
    str,
    typer.Option(
        "-m",
        "--model",
        metavar="NAME",
        help="Named model, GGUF file, safetensors folder or hub id; see: exactspec models. "
        "hf:FOLDER runs it through transformers.",
    ),
]
Draft = Annotated[
    str,
    typer.Option("--draft", metavar="|".join(FORMS), help="How to draft. Never changes the answer."),
]
DraftLength = Annotated[
    int,
    typer.Option(
        "--draft-length",
        metavar="K",
        help="Where a model drafts: always chains of K tokens (0: trees, as deep and as often as pays).",
    ),
]
MaxNodes = Annotated[int, typer.Option("--max-nodes", metavar="N", help="Most drafted tokens verified in one step.")]
MaxTokens = Annotated[
    int | None,
    typer.Option("--max-tokens", metavar="N", help="Most tokens to answer (default: up to the context end)."),
]
MinTokens = Annotated[int, typer.Option("--min-tokens", metavar="N", help="No end of answer before that many tokens.")]
Temperature = Annotated[float, typer.Option("--temperature", metavar="T", help="0 takes the best token every time.")]
TopP = Annotated[float, typer.Option("--top-p", metavar="P", help="Sample from the best tokens that add up to P.")]
TopK = Annotated[int, typer.Option("--top-k", metavar="K", help="Sample from the best K tokens (0: all).")]
MinP = Annotated[
    float, typer.Option("--min-p", metavar="M", help="Drop tokens below M times the best one's probability.")
]
RepetitionPenalty = Annotated[
    float, typer.Option("--repetition-penalty", metavar="R", help="Divides scores of tokens seen in prompt or answer.")
]
PresencePenalty = Annotated[
    float, typer.Option("--presence-penalty", metavar="A", help="Subtracted once from tokens already in the answer.")
]
FrequencyPenalty = Annotated[
    float, typer.Option("--frequency-penalty", metavar="A", help="Subtracted per occurrence in the answer.")
]
Seed = Annotated[
    int | None, typer.Option("--seed", metavar="S", help="Seed for sampling (default: drawn and returned).")
]
Stop = Annotated[
    list[str] | None,
    typer.Option("--stop", metavar="S", help="End the answer before this text, taken literally; repeatable."),
]
PromptText = Annotated[
    str | None, typer.Option("-p", "--prompt", metavar="TEXT", help="The prompt; - reads stdin, as does a pipe.")
]
PromptFile = Annotated[Path | None, typer.Option("--prompt-file", metavar="F", help="File that holds the prompt.")]
MessagesFile = Annotated[
    Path | None, typer.Option("--messages", metavar="F.json", help='JSON list of {"role", "content"} objects.')
]
Raw = Annotated[bool, typer.Option("--raw", help="Continue the text, without the chat template.")]
PredictionFile = Annotated[
    Path | None,
    typer.Option("--prediction-file", metavar="F", help="Text the answer will resemble: copied from too."),
]
System = Annotated[str | None, typer.Option("--system", metavar="S", help="System message of the conversation.")]
Threads = Annotated[int | None, typer.Option("--threads", metavar="N", help="CPU threads (default: all cores).")]
ContextLength = Annotated[
    int | None,
    typer.Option("--context", metavar="N", help="Longest context in tokens (default: what the model states)."),
]
CacheDtype = Annotated[
    str, typer.Option("--cache-dtype", metavar="|".join(CACHE_TYPES), help="How keys and values are stored.")
]
Dtype = Annotated[
    str | None, typer.Option("--dtype", metavar="T", help="For hf: models: float32 (default) or bfloat16.")
]
Device = Annotated[
    str | None, typer.Option("--device", metavar="D", help="cpu (default), or cuda or cuda:N for a GPU.")
]
NoColor = Annotated[bool, typer.Option("--no-color", help="No colours (NO_COLOR and FORCE_COLOR are respected too).")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]


def check_text(text: str, what: str) -> str:
    """`text` unless it holds bytes that were not UTF-8 (Python carries those of an argument as lone surrogates)."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise CliError(f"{what} is not valid UTF-8: convert it first, for example with iconv -t utf-8") from None
    return text


def sampling_params(
    *,
    max_tokens: int | None,
    min_tokens: int,
    temperature: float,
    top_p: float,
    top_k: int,
    min_p: float,
    repetition_penalty: float,
    presence_penalty: float,
    frequency_penalty: float,
    seed: int | None,
    stop: list[str] | None,
    logprobs: int | None = None,
) -> SamplingParams:
    """Validated before any model is loaded; ValueError names the field."""
    return SamplingParams(
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
        stop=tuple(check_text(s, "--stop") for s in stop or ()),
        logprobs=logprobs,
    )


def load_engine(
    services: Services,
    model: str,
    speculation: Speculation,
    *,
    threads: int | None,
    context: int | None,
    cache_dtype: str,
    dtype: str | None = None,
    device: str | None = None,
) -> EngineLike:
    """Open the model; what takes long is said on stderr."""
    if threads is not None and threads < 1:
        raise CliError(f"--threads must be at least 1, got {threads}")
    if context is not None and context < 1:
        raise CliError(f"--context must be at least 1, got {context}")
    others: dict[str, Any] = {
        name: value for name, value in (("dtype", dtype), ("device", device)) if value is not None
    }
    return services.open_engine(
        model,
        draft=speculation.draft,
        threads=threads,
        context=context,
        cache_dtype=cache_dtype,
        progress=services.note,
        **others,
    )
