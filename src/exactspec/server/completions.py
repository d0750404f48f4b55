"""/v1/completions: texts or ids to continue, and their choices in OpenAI's older form."""

from __future__ import annotations

import secrets
from functools import partial

from exactspec.prompts import encode_prompt
from exactspec.results import Chunk, Completion
from exactspec.server import translate
from exactspec.server.call import Call, Json
from exactspec.server.chat import choices, piece
from exactspec.server.errors import ApiError, too_long
from exactspec.server.logprobs import Pieces, TextForm
from exactspec.server.service import Service
from exactspec.server.text_schema import CompletionRequest
from exactspec.target.tokenizer import TooManyTokens

DEFAULT_TOKENS = 16
"""OpenAI's default of ``max_tokens`` here."""


def text_call(body: CompletionRequest, service: Service) -> Call:
    """Raises `ApiError` on a request that cannot be served. Encodes: not for the event loop."""
    service.check_model(body.model)
    engine = service.engine
    for name, given in (("echo", body.echo), ("suffix", body.suffix)):
        if given:
            raise ApiError(f"{name} is not supported: leave it out", param=name, code="unsupported_parameter")
    if body.best_of is not None and body.best_of != (body.n or 1):
        raise ApiError("best_of other than n is not supported: leave it out", param="best_of")
    asked = _prompts(body)
    if len(asked) > service.settings.max_choices:
        raise ApiError(f"at most {service.settings.max_choices} prompts, got {len(asked)}", param="prompt")
    prompts = [_encoded(prompt, service) for prompt in asked]
    constraint_param, constraint = translate.constraint(body) or (None, None)
    params = translate.sampling(
        body,
        seed=translate.seed_of(body, secrets.randbits(53)),
        max_tokens=DEFAULT_TOKENS if body.max_tokens is None else body.max_tokens,
        logprobs=body.logprobs,
        constraint=constraint,
    )
    pieces = partial(piece, service) if params.logprobs is not None else None
    return Call(
        prompts=prompts,
        n=choices(body.n, service, len(prompts)),
        params=params,
        speculation=translate.speculation(body, engine),
        prediction=translate.prediction(body, engine.tokenizer, at_most=engine.target.max_length),
        templated=False,
        stream=bool(body.stream),
        include_usage=bool(body.stream_options and body.stream_options.include_usage),
        trace=bool(body.speculative and body.speculative.trace),
        token_ids=bool(body.return_token_ids),
        kind="text_completion",
        chunk_kind="text_completion",
        prefix="cmpl",
        prompt_param="prompt",
        constraint_param=constraint_param,
        show=lambda index: TextChoice(pieces),
    )


def _prompts(body: CompletionRequest) -> list[str] | list[list[int]]:
    given = body.prompt
    if isinstance(given, str):
        return [given]
    if not given:
        raise ApiError("prompt must not be empty", param="prompt")
    if isinstance(given[0], int):
        return [given]
    return given


def _encoded(prompt: str | list[int], service: Service) -> list[int]:
    engine = service.engine
    try:
        return engine.encode(encode_prompt(prompt, engine.tokenizer, at_most=engine.target.max_length))  # checks them
    except TooManyTokens as error:
        raise too_long(error, "prompt") from None
    except ValueError as error:
        raise ApiError(str(error), param="prompt") from None


class TextChoice:
    """A `Choice`. `pieces`: of tokens, where log-probabilities are shown."""

    __slots__ = ("_logprobs",)

    def __init__(self, pieces: Pieces | None) -> None:
        self._logprobs = None if pieces is None else TextForm(pieces)

    def begin(self) -> list[Json]:
        return []

    def chunk(self, chunk: Chunk) -> list[Json]:
        if self._logprobs is None or not chunk.tokens:
            return [self._choice(chunk.text)] if chunk.text else []
        return [self._choice(chunk.text) | {"logprobs": self._logprobs.show(chunk.tokens)}]

    def blank(self) -> list[Json]:
        return [self._choice("")]

    def end(self, completion: Completion, reason: str) -> list[Json]:
        return [self._choice("") | {"finish_reason": reason}]

    def whole(self, completion: Completion, reason: str) -> Json:
        logprobs = None if self._logprobs is None else self._logprobs.show(completion.tokens)
        return {"text": completion.text, "logprobs": logprobs, "finish_reason": reason}

    def _choice(self, text: str) -> Json:
        return {"text": text, "logprobs": None, "finish_reason": None}
