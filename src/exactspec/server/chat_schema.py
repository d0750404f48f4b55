"""The body of /v1/chat/completions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BeforeValidator, Field

from exactspec.server.schema import GenerateRequest, Items, Strict, TextPart, Tolerant, at_most, named_values

MAX_PIECES = 20_000
"""Messages, content parts and calls of one request. Each becomes an object of its own: a body full of empty ones would
take the event loop seconds, and fifty times its size of memory."""
MAX_TOOLS = 1000


def _not_too_many(messages: Any) -> Any:
    """Raises ValueError before any of them is looked at."""
    if not isinstance(messages, list):
        return messages
    pieces = len(messages)
    for message in messages if pieces <= MAX_PIECES else ():
        for name in ("content", "tool_calls") if isinstance(message, Mapping) else ():
            pieces += len(message[name]) if isinstance(message.get(name), list) else 0
    if pieces > MAX_PIECES:
        raise ValueError(f"at most {MAX_PIECES} messages, content parts and tool calls are taken, got {pieces}")
    return messages


class FunctionOfCall(Tolerant):
    name: str
    arguments: str = ""


class ToolCallMessage(Tolerant):
    """A call that the assistant made earlier."""

    id: str | None = None
    type: Literal["function"] = "function"
    function: FunctionOfCall


class RefusalPart(Tolerant):
    type: Literal["refusal"]
    refusal: str


class ChatMessage(Tolerant):
    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | Items[TextPart | RefusalPart] | None = None
    name: str | None = None
    tool_calls: Items[ToolCallMessage] | None = None
    tool_call_id: str | None = None


Messages: TypeAlias = Annotated[Items[ChatMessage], Field(min_length=1), BeforeValidator(_not_too_many)]


class Function(Tolerant):
    name: str = Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(Tolerant):
    type: Literal["function"]
    function: Function


Tools: TypeAlias = Annotated[Items[Tool], at_most(MAX_TOOLS, "tools")]


class FunctionName(Tolerant):
    name: str


class NamedTool(Tolerant):
    type: Literal["function"]
    function: FunctionName


class JsonSchema(Strict):
    name: str | None = None
    description: str | None = None
    schema_: dict[str, Any] | None = Field(default=None, alias="schema")
    strict: bool | None = None


class ResponseFormat(Strict):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


class ChatRequest(GenerateRequest):
    """OpenAI's chat request. `max_tokens` is the older name of `max_completion_tokens`."""

    messages: Messages
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    response_format: ResponseFormat | None = None
    tools: Tools | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    parallel_tool_calls: bool | None = None

    # Taken and without effect here.
    modalities: Items[Literal["text"]] | None = Field(default=None, description="Text alone.")
    metadata: Annotated[dict[str, str], Field(max_length=16), named_values(str)] | None = Field(
        default=None, description="No effect."
    )
    store: bool | None = Field(default=None, description="No effect.")
    service_tier: str | None = Field(default=None, description="No effect.")
    reasoning_effort: str | None = Field(default=None, description="No effect.")
    verbosity: str | None = Field(default=None, description="No effect.")
    safety_identifier: str | None = Field(default=None, description="No effect.")
    prompt_cache_key: str | None = Field(default=None, description="No effect: prefixes are found by themselves.")
    prompt_cache_retention: str | None = Field(default=None, description="No effect.")
