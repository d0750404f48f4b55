"""Tools of a chat request: what the template sees of them, and how a call is forced."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from exactspec.constraint import Constraint
from exactspec.server.chat_schema import ChatMessage, ChatRequest, NamedTool, Tool
from exactspec.server.errors import ApiError
from exactspec.server.toolcalls import CLOSE, OPEN
from exactspec.server.translate import text_of
from exactspec.target.chat import check_text

Json = dict[str, Any]
_ROLES = {"developer": "system", "function": "tool"}  # OpenAI's newest and oldest names; templates know these


def chosen(body: ChatRequest) -> list[Tool] | None:
    """The tools that the model is to see; None if it is to call none. Raises `ApiError` on a choice that names none."""
    if not body.tools:
        if body.tool_choice not in (None, "none", "auto"):
            raise ApiError("tool_choice is given, but no tools", param="tool_choice")
        return None
    if body.tool_choice == "none":
        return None
    if isinstance(body.tool_choice, NamedTool):
        name = body.tool_choice.function.name
        if name not in (tool.function.name for tool in body.tools):
            raise ApiError(f"tool_choice names the function {name[:64]!r}, which is not in tools", param="tool_choice")
    return body.tools


def described(tools: Sequence[Tool] | None) -> list[Json] | None:
    """As the chat template gets them. Raises `ApiError` on what no template can write."""
    if tools is None:
        return None
    try:
        found = [{"type": "function", "function": tool.function.model_dump(exclude_none=True)} for tool in tools]
        text = json.dumps(found, ensure_ascii=False)
    except (ValueError, RecursionError):  # pydantic takes a depth that it does not expect for a circle
        raise ApiError("tools must not be nested this deeply", param="tools") from None
    try:
        check_text(text, "tools")
    except ValueError as error:
        raise ApiError(str(error), param="tools") from None
    return found


def forced(body: ChatRequest, tools: Sequence[Tool]) -> Constraint | None:
    """The constraint that makes the whole answer calls of the tools asked for; None where the model may choose."""
    choice = body.tool_choice
    if choice in (None, "auto", "none"):
        return None
    if isinstance(choice, NamedTool):
        tools = [tool for tool in tools if tool.function.name == choice.function.name]
    kinds = [
        {
            "type": "object",
            "properties": {
                "name": {"const": tool.function.name},
                "arguments": tool.function.parameters or {"type": "object"},
            },
            "required": ["name", "arguments"],
            "additionalProperties": False,
        }
        for tool in tools
    ]
    several = choice == "required" and body.parallel_tool_calls is not False
    try:
        schema = json.dumps({"anyOf": kinds} if len(kinds) > 1 else kinds[0])
        return Constraint(
            "grammar",
            f"start: call{' (_BREAK call)*' if several else ''}\n"
            f"call: {json.dumps(OPEN + chr(10))} body {json.dumps(chr(10) + CLOSE)}\n"
            f"_BREAK: {json.dumps(chr(10))}\n"
            f"body: %json {schema}",
        )
    except (ValueError, RecursionError) as error:
        raise ApiError(f"tools: {error}", param="tools") from None


def templated(messages: Sequence[ChatMessage]) -> list[Json]:
    """Messages as chat templates expect them: contents as texts, arguments of calls as objects."""
    return [_message(message) for message in messages]


def _message(message: ChatMessage) -> Json:
    out: Json = {"role": _ROLES.get(message.role, message.role), "content": text_of(message.content)}
    if message.name is not None:
        out["name"] = message.name
    if message.tool_call_id is not None:
        out["tool_call_id"] = message.tool_call_id
    if message.tool_calls:
        out["tool_calls"] = [
            {
                "id": call.id or "",
                "type": "function",
                "function": {"name": call.function.name, "arguments": _arguments(call.function.arguments)},
            }
            for call in message.tool_calls
        ]
    return out


def _arguments(text: str) -> Any:
    """Arguments travel as JSON in a text; templates write them as JSON themselves."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return value if isinstance(value, dict) else text
