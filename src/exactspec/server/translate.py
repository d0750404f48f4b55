"""Request bodies to what the engine takes: `SamplingParams`, `Speculation`, a constraint, a prediction."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from exactspec.constraint import Constraint
from exactspec.draft_names import layer_draft, model_draft
from exactspec.engine import Engine
from exactspec.params import SamplingParams, Speculation
from exactspec.prompts import encode_prediction
from exactspec.server.errors import ApiError, invalid
from exactspec.server.schema import GenerateRequest, TextPart
from exactspec.target.chat import check_text
from exactspec.target.tokenizer import Tokenizer

MAX_STOPS = 16
MAX_STOP_CHARACTERS = 4096
"""Of all stop strings together: each answer follows them with some 300 bytes a character."""
MAX_STOP_IDS = 1024
OPENAI_TEMPERATURE = 1.0
"""What a request without a temperature gets: OpenAI's default, not the library's."""


def sampling(
    body: GenerateRequest,
    *,
    seed: int,
    max_tokens: int | None,
    logprobs: int | None,
    constraint: Constraint | None,
) -> SamplingParams:
    """Parameters of choice 0. Raises `ApiError` (400), naming the field."""
    stop = [body.stop] if isinstance(body.stop, str) else body.stop or []
    if len(stop) > MAX_STOPS:
        raise ApiError(f"stop must hold at most {MAX_STOPS} strings, got {len(stop)}", param="stop")
    if (size := sum(map(len, stop))) > MAX_STOP_CHARACTERS:
        raise ApiError(f"stop must hold at most {MAX_STOP_CHARACTERS} characters, got {size}", param="stop")
    stop_ids = tuple(dict.fromkeys(body.stop_token_ids or ()))
    if len(stop_ids) > MAX_STOP_IDS:
        raise ApiError(f"stop_token_ids must hold at most {MAX_STOP_IDS} ids", param="stop_token_ids")
    try:
        for text in stop:
            check_text(text, "stop")
        return SamplingParams(
            temperature=_or(body.temperature, OPENAI_TEMPERATURE),
            top_p=_or(body.top_p, 1.0),
            top_k=max(0, _or(body.top_k, 0)) if body.top_k == -1 else _or(body.top_k, 0),
            min_p=_or(body.min_p, 0.0),
            repetition_penalty=_or(body.repetition_penalty, 1.0),
            presence_penalty=_or(body.presence_penalty, 0.0),
            frequency_penalty=_or(body.frequency_penalty, 0.0),
            logit_bias=_bias(body.logit_bias),
            max_tokens=max_tokens,
            min_tokens=_or(body.min_tokens, 0),
            stop=tuple(stop),
            stop_token_ids=stop_ids,
            ignore_eos=bool(body.ignore_eos),
            seed=seed,
            logprobs=logprobs,
            constraint=constraint,
        )
    except ValueError as error:
        raise invalid(error, (*type(body).model_fields, "logprobs")) from None


def _or(value: Any, default: Any) -> Any:
    return default if value is None else value


def _bias(given: dict[str, float] | None) -> dict[int, float]:
    bias = {}
    for key, value in (given or {}).items():
        if not (key.isascii() and key.isdigit() and len(key) <= 10):
            raise ValueError(f"logit_bias must have token ids as keys, got {key[:40]!r}")
        bias[int(key)] = value
    return bias


def seed_of(body: GenerateRequest, drawn: int) -> int:
    """The request's seed, negative ones counted from 2**64 down; else the one that was drawn."""
    if body.seed is None:
        return drawn
    if not -(2**63) <= body.seed < 2**64:
        raise ApiError(f"seed must be a 64-bit integer, got {body.seed}", param="seed")
    return body.seed % 2**64


def constraint(body: GenerateRequest) -> tuple[str, Constraint] | None:
    """The one of vLLM's fields for constraints that is given, if any: its name, and what it asks for."""
    given: list[tuple[str, str, Any]] = [
        ("guided_json", "json", body.guided_json),
        ("guided_regex", "regex", body.guided_regex),
        ("guided_choice", "choice", body.guided_choice),
        ("guided_grammar", "grammar", body.guided_grammar),
    ]
    if (outer := body.structured_outputs) is not None:
        name = "structured_outputs"
        given += [(name, kind, getattr(outer, kind)) for kind in ("regex", "choice", "grammar")]
        given += [(name, "json", outer.json_), (name, "json_object", outer.json_object or None)]
    asked = [(name, kind, value) for name, kind, value in given if value is not None]
    if not asked:
        return None
    name, kind, value = asked[0]
    if len(asked) > 1:
        raise ApiError(f"give one constraint, not both {name} and {asked[1][0]}", param=asked[1][0])
    try:
        return name, _constraint(kind, value)
    except (ValueError, RecursionError) as error:
        raise ApiError(f"{name}: {error}", param=name) from None


def _constraint(kind: str, value: Any) -> Constraint:
    if kind == "json":
        return Constraint("json_schema", value if isinstance(value, str) else json.dumps(value))
    if kind == "json_object":
        return Constraint("json_object")
    return Constraint.choice(value) if kind == "choice" else Constraint(kind, value)


def speculation(body: GenerateRequest, engine: Engine) -> Speculation | None:
    """None: the engine's own. A drafter that would load something is the server's business, not a request's: what the
    engine has not opened is refused."""
    asked, default = body.speculative, engine.speculation
    if asked is None or (asked.draft is None and asked.max_nodes is None):
        return None
    draft = default.draft if asked.draft is None else asked.draft
    if draft != default.draft and not _named(draft) and (":" in draft or "/" in draft):
        raise ApiError(
            f"speculative.draft: {draft[:60]!r} is not what this server was started with ({default.draft})",
            param="speculative.draft",
        )
    if asked.max_nodes == 0:
        return replace(default, draft="none")
    try:
        chosen = replace(default, draft=draft, max_nodes=_or(asked.max_nodes, default.max_nodes))
        engine.drafter(chosen)
    except ValueError as error:
        raise ApiError(f"speculative: {error}", param="speculative") from None
    return chosen


def _named(draft: str) -> bool:
    return model_draft(draft) is not None or layer_draft(draft) is not None


def text_of(content: str | Sequence[Any] | None) -> str:
    """A content as one text; parts are joined as they are."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    parts: Sequence[Any] = content
    return "".join(part.text if isinstance(part, TextPart) else str(part.refusal) for part in parts)


def prediction(body: GenerateRequest, tokenizer: Tokenizer, *, at_most: int) -> list[int] | None:
    """Ids, those that can be of use: for a long text takes long to encode: not for the event loop."""
    if body.prediction is None:
        return None
    try:
        return encode_prediction(text_of(body.prediction.content), tokenizer, at_most=at_most)
    except ValueError as error:
        raise ApiError(str(error), param="prediction") from None
