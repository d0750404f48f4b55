"""/v1/chat/completions: a chat request as a `Call`, and its choices in OpenAI's form."""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence
from functools import partial

from exactspec.constraint import Constraint
from exactspec.results import Chunk, Completion
from exactspec.server import tools, translate
from exactspec.server.call import Call, Json
from exactspec.server.chat_schema import ChatMessage, ChatRequest, Tool
from exactspec.server.errors import ApiError, invalid, too_long
from exactspec.server.logprobs import Pieces, chat_form
from exactspec.server.service import Service
from exactspec.server.toolcalls import CallArguments, CallBegin, Piece, ToolParser
from exactspec.target.tokenizer import Tokenizer, TooManyTokens


def chat_call(body: ChatRequest, service: Service) -> Call:
    """Raises `ApiError` on a request that cannot be served. Templates and encodes: not for the event loop."""
    service.check_model(body.model)
    engine = service.engine
    limit = _limit(body)
    seen = tools.chosen(body)
    try:
        ids = templated_ids(body.messages, seen, engine.tokenizer, at_most=engine.target.max_length)
    except TooManyTokens as error:
        raise too_long(error, "messages") from None
    except ValueError as error:
        raise ApiError(str(error), param="messages") from None
    constraint_param, constraint = _constraint(body, seen) or (None, None)
    params = translate.sampling(
        body,
        seed=translate.seed_of(body, secrets.randbits(53)),
        max_tokens=limit,
        logprobs=_logprobs(body),
        constraint=constraint,
    )
    pieces = partial(piece, service)
    return Call(
        prompts=[ids],
        n=choices(body.n, service),
        params=params,
        speculation=translate.speculation(body, engine),
        prediction=translate.prediction(body, engine.tokenizer, at_most=engine.target.max_length),
        templated=True,
        stream=bool(body.stream),
        include_usage=bool(body.stream_options and body.stream_options.include_usage),
        trace=bool(body.speculative and body.speculative.trace),
        token_ids=bool(body.return_token_ids),
        kind="chat.completion",
        chunk_kind="chat.completion.chunk",
        prefix="chatcmpl",
        prompt_param="messages",
        constraint_param=constraint_param,
        show=lambda index: ChatChoice(
            pieces=pieces if params.logprobs is not None else None, parser=None if seen is None else ToolParser()
        ),
    )


def choices(n: int | None, service: Service, prompts: int = 1) -> int:
    """A valid `n`. Raises `ApiError`."""
    n = 1 if n is None else n
    most = service.settings.max_choices // prompts
    if not 1 <= n <= most:
        raise ApiError(f"n must be in [1, {most}], got {n}", param="n", code="invalid_value")
    return n


def piece(service: Service, token: int) -> bytes:
    """A model may have more rows than its tokenizer has ids; those stand for no text."""
    tokenizer = service.tokenizer
    data: bytes = tokenizer.token_bytes(token) if token < tokenizer.vocab_size else b""
    return data


def templated_ids(
    messages: Sequence[ChatMessage],
    seen: Sequence[Tool] | None,
    tokenizer: Tokenizer,
    *,
    at_most: int,
    add_generation_prompt: bool = True,
) -> list[int]:
    """Ids of a conversation with the tools that the model is to see. Raises what `Tokenizer.chat` does."""
    described = tools.described(seen)
    ids = tokenizer.chat(
        tools.templated(messages),
        add_generation_prompt=add_generation_prompt,
        at_most=at_most,
        **({} if described is None else {"tools": described}),
    )
    if len(ids) > at_most:
        raise TooManyTokens(len(ids), at_most, exact=True)
    return ids


def _limit(body: ChatRequest) -> int | None:
    if (most := body.max_completion_tokens) is None:
        return body.max_tokens
    if most < 0:
        raise ApiError(f"max_completion_tokens must be >= 0, got {most}", param="max_completion_tokens")
    return most


def _logprobs(body: ChatRequest) -> int | None:
    if body.top_logprobs is not None and not body.logprobs:
        raise ApiError("top_logprobs needs logprobs: true", param="top_logprobs")
    if not body.logprobs:
        return None
    top = body.top_logprobs or 0
    if not 0 <= top <= 20:
        raise ApiError(f"top_logprobs must be in [0, 20], got {top}", param="top_logprobs")
    return top


def _constraint(body: ChatRequest, seen: list[Tool] | None) -> tuple[str, Constraint] | None:
    """The one constraint among ``response_format``, a forced call and vLLM's fields, and the field it came from."""
    form, call = _response_format(body), None if seen is None else tools.forced(body, seen)
    asked = [
        given
        for given in (
            None if form is None else ("response_format", form),
            None if call is None else ("tools", call),
            translate.constraint(body),
        )
        if given is not None
    ]
    if len(asked) > 1:
        raise ApiError(f"{asked[1][0]} cannot be kept beside {asked[0][0]}: give one", param=asked[1][0])
    if asked and seen is not None and call is None:
        raise ApiError(
            f"{asked[0][0]} cannot be kept beside tools, which it would not let be called: "
            'give one, or tool_choice "none"',
            param=asked[0][0],
        )
    return asked[0] if asked else None


def _response_format(body: ChatRequest) -> Constraint | None:
    form = body.response_format
    if form is None or form.type == "text":
        return None
    if form.type == "json_object":
        return Constraint("json_object")
    schema = None if form.json_schema is None else form.json_schema.schema_
    if schema is None:
        raise ApiError("response_format.json_schema.schema is missing", param="response_format.json_schema.schema")
    try:
        return Constraint("json_schema", json.dumps(schema))
    except (ValueError, RecursionError) as error:
        raise invalid(ValueError(f"response_format: {error}"), ["response_format"]) from None


class ChatChoice:
    """A `Choice`. `pieces`: of tokens, where log-probabilities are shown. `parser`: where tools may be called."""

    __slots__ = ("_parser", "_pieces")

    def __init__(self, *, pieces: Pieces | None, parser: ToolParser | None) -> None:
        self._pieces = pieces
        self._parser = parser

    def begin(self) -> list[Json]:
        return [_choice({"role": "assistant", "content": "", "refusal": None})]

    def chunk(self, chunk: Chunk) -> list[Json]:
        if self._parser is None:
            deltas: list[Json] = [{"content": chunk.text}] if chunk.text else []
        else:
            deltas = [_delta(p) for p in self._parser.push(chunk.text)]
        shown = [_choice(delta) for delta in deltas]
        if self._pieces is not None and chunk.tokens:
            shown = shown or self.blank()
            shown[0]["logprobs"] = chat_form(chunk.tokens, self._pieces)
        return shown

    def blank(self) -> list[Json]:
        return [_choice({})]

    def end(self, completion: Completion, reason: str) -> list[Json]:
        rest = [] if self._parser is None else [_choice(_delta(p)) for p in self._parser.finish()]
        return [*rest, _choice({}) | {"finish_reason": self._finish(reason)}]

    def whole(self, completion: Completion, reason: str) -> Json:
        message: Json = {"role": "assistant", "content": completion.text, "refusal": None}
        if self._parser is not None:
            pieces = [*self._parser.push(completion.text), *self._parser.finish()]
            content, calls = _gathered(pieces)
            message["content"] = content or (None if calls else "")
            if calls:
                message["tool_calls"] = calls
        logprobs = None if self._pieces is None else chat_form(completion.tokens, self._pieces)
        return {"message": message, "logprobs": logprobs, "finish_reason": self._finish(reason)}

    def _finish(self, reason: str) -> str:
        return "tool_calls" if reason == "stop" and self._parser is not None and self._parser.calls else reason


def _choice(delta: Json) -> Json:
    return {"delta": delta, "logprobs": None, "finish_reason": None}


def _delta(piece: Piece) -> Json:
    if isinstance(piece, str):
        return {"content": piece}
    if isinstance(piece, CallBegin):
        return {"tool_calls": [{"index": piece.index, **_call(piece)}]}
    return {"tool_calls": [{"index": piece.index, "function": {"arguments": piece.text}}]}


def _call(begin: CallBegin) -> Json:
    return {"id": begin.id, "type": "function", "function": {"name": begin.name, "arguments": ""}}


def _gathered(pieces: list[Piece]) -> tuple[str, list[Json]]:
    """Content and calls of a whole answer."""
    content = ""
    calls: list[Json] = []
    for one in pieces:
        if isinstance(one, str):
            content += one
        elif isinstance(one, CallBegin):
            calls.append(_call(one))
        elif isinstance(one, CallArguments):
            calls[one.index]["function"]["arguments"] += one.text
    return content, calls
