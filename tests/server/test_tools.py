"""Calls of tools: taken out of the text wherever it is cut, and forced where the request says so."""

from __future__ import annotations

import json
import random
from typing import Any

import openai
import pytest
from scripted import EOS, ByteTokenizer, hash_target, script_target
from served import MODEL, Serve

from exactspec.engine import Engine
from exactspec.server.chat_schema import ChatRequest, Function, Tool
from exactspec.server.errors import ApiError
from exactspec.server.toolcalls import CallArguments, CallBegin, ToolParser
from exactspec.server.tools import described, forced

TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": f"<|im_end|> {name}",
            "parameters": {
                "type": "object",
                "properties": {"city": {"enum": ["Oslo", "Rome"]}},
                "required": ["city"],
                "additionalProperties": False,
            },
        },
    }
    for name in ("weather", "time_of-day")
]
USER: list[Any] = [{"role": "user", "content": "How is it in Oslo?"}]
ONE = '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo", "s": "a \\"} </tool_call> b"}}\n</tool_call>'


def parsed(text: str, cuts: list[int]) -> tuple[str, list[tuple[str, str]], int]:
    """Content, calls and the number of complete ones, the text coming in pieces."""
    parser = ToolParser()
    pieces = []
    for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True):
        pieces += parser.push(text[start:end])
    pieces += parser.finish()
    content, calls = "", []
    for piece in pieces:
        if isinstance(piece, CallBegin):
            assert piece.index == len(calls)
            calls.append([piece.name, ""])
        elif isinstance(piece, CallArguments):
            assert piece.index == len(calls) - 1
            calls[-1][1] += piece.text
        else:
            content += piece
    return content, [(name, arguments) for name, arguments in calls], parser.calls


@pytest.mark.parametrize(
    ("text", "content", "calls", "complete"),
    [
        ("No call here. \n", "No call here. \n", [], 0),
        ("a < b <tool", "a < b <tool", [], 0),
        (ONE, "", [("weather", '{"city": "Oslo", "s": "a \\"} </tool_call> b"}')], 1),
        (f"Let me see.\n\n{ONE}\n", "Let me see.", [("weather", '{"city": "Oslo", "s": "a \\"} </tool_call> b"}')], 1),
        (
            '<tool_call>{"name":"a","arguments":{}}</tool_call>\n<tool_call>\n{"name":"b","parameters":{"x":[{"y":1}]}}\n</tool_call>',
            "",
            [("a", "{}"), ("b", '{"x":[{"y":1}]}')],
            2,
        ),
        ('<tool_call>{"arguments": {"x": "é"}, "name": "late"}</tool_call>', "", [("late", '{"x": "é"}')], 1),
        ('<tool_call>{"name": "none"}</tool_call>', "", [("none", "{}")], 1),
        ('<tool_call>{"name": "text", "arguments": "{\\"x\\": 1}"}</tool_call>', "", [("text", '{"x": 1}')], 1),
        ("<tool_call>\nnonsense\n</tool_call> end", "<tool_call>\nnonsense\n</tool_call> end", [], 0),
        ('<tool_call>{"name": "cut', '<tool_call>{"name": "cut', [], 0),
        ('x <tool_call>{"name": "cut", "arguments": {"a": "b', "x", [("cut", '{"a": "b')], 0),
        ('<tool_call>{"name": "a", "arguments": {}}</tool_call> and more', " and more", [("a", "{}")], 1),
        # Half a surrogate pair, as JSON can name it: no text of a reply holds what is no character.
        (
            '<tool_call>{"name": "\\ud800", "arguments": {}}</tool_call>',
            '<tool_call>{"name": "\\ud800", "arguments": {}}</tool_call>',
            [],
            0,
        ),
        (
            '<tool_call>{"arguments": "\\ud800", "name": "a"}</tool_call>',
            '<tool_call>{"arguments": "\\ud800", "name": "a"}</tool_call>',
            [],
            0,
        ),
        (
            '<tool_call>{"arguments": {"é": "\\udfff"}, "name": "a"}</tool_call>',
            "",
            [("a", '{"\\u00e9": "\\udfff"}')],
            1,
        ),
        ('<tool_call>{"name": "a", "arguments": {"é": "\\udfff"}}</tool_call>', "", [("a", '{"é": "\\udfff"}')], 1),
    ],
)
def test_calls_are_found_however_the_text_is_cut(
    text: str, content: str, calls: list[tuple[str, str]], complete: int
) -> None:
    rng = random.Random(5)
    every = list(range(1, len(text)))
    some = [sorted(rng.sample(every, min(len(every), n))) for n in (1, 2, 3, 5, 9) for _ in range(6)]
    for cuts in [[], every, *some]:
        assert parsed(text, cuts) == (content, calls, complete), cuts


def says(text: str) -> Engine:
    tools = [{"type": "function", "function": t["function"]} for t in TOOLS]
    length = len(ByteTokenizer().chat(USER, tools=tools))
    return Engine(script_target(length, [*text.encode(), EOS]), ByteTokenizer())


def test_a_call_whole_and_streamed(serve: Serve) -> None:
    text = 'I look.\n<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
    client = serve(says(text)).client()
    reply = client.chat.completions.create(model=MODEL, messages=USER, tools=TOOLS, temperature=0)
    choice = reply.choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == "I look."
    (call,) = choice.message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == ("weather", {"city": "Oslo"})
    content = arguments = ""
    names, ids, reasons = [], [], []
    for event in client.chat.completions.create(model=MODEL, messages=USER, tools=TOOLS, temperature=0, stream=True):
        delta = event.choices[0].delta
        content += delta.content or ""
        reasons += [event.choices[0].finish_reason] if event.choices[0].finish_reason else []
        for piece in delta.tool_calls or ():
            assert piece.index == 0
            names += [piece.function.name] if piece.function.name else []
            ids += [piece.id] if piece.id else []
            arguments += piece.function.arguments or ""
    assert (content, names, json.loads(arguments)) == ("I look.", ["weather"], {"city": "Oslo"})
    assert len(ids) == 1
    assert reasons == ["tool_calls"]


@pytest.mark.parametrize("name", ["\\ud800", "weather"])
def test_a_call_with_half_a_surrogate_pair_is_answered(serve: Serve, name: str) -> None:
    text = f'<tool_call>{{"arguments": {{"city": "\\ud83d"}}, "name": "{name}"}}</tool_call>'
    running = serve(says(text))
    body = {"messages": USER, "tools": TOOLS, "temperature": 0}
    status, _, reply = running.post("/v1/chat/completions", body)
    assert status == 200, reply
    message = reply["choices"][0]["message"]
    assert (message["content"] == text) if name != "weather" else (len(message["tool_calls"]) == 1)
    events = running.events("/v1/chat/completions", body)
    "".join(json.dumps(event, ensure_ascii=False) for event in events).encode()


def test_without_tools_the_text_stays(serve: Serve) -> None:
    text = '<tool_call>\n{"name": "weather", "arguments": {}}\n</tool_call>'
    length = len(ByteTokenizer().chat(USER))
    client = serve(Engine(script_target(length, [*text.encode(), EOS]), ByteTokenizer())).client()
    for extra in ({}, {"tools": TOOLS, "tool_choice": "none"}):
        choice = client.chat.completions.create(model=MODEL, messages=USER, temperature=0, **extra).choices[0]
        assert (choice.message.content, choice.message.tool_calls, choice.finish_reason) == (text, None, "stop")


@pytest.mark.parametrize("seed", range(4))
def test_a_forced_call_is_one(serve: Serve, seed: int) -> None:
    """A model of noise calls what it must, with arguments of the right form."""
    client = serve(Engine(hash_target(vocab_size=260), ByteTokenizer())).client()
    options: Any = {"model": MODEL, "messages": USER, "tools": TOOLS, "seed": seed, "max_tokens": 2000}
    named = client.chat.completions.create(
        tool_choice={"type": "function", "function": {"name": "time_of-day"}}, **options
    ).choices[0]
    required = client.chat.completions.create(tool_choice="required", parallel_tool_calls=False, **options).choices[0]
    for choice in (named, required):
        assert choice.finish_reason == "tool_calls"
        assert choice.message.content is None
        (call,) = choice.message.tool_calls
        assert json.loads(call.function.arguments)["city"] in ("Oslo", "Rome")
    assert named.message.tool_calls[0].function.name == "time_of-day"
    assert required.message.tool_calls[0].function.name in ("weather", "time_of-day")


def test_earlier_calls_and_results_go_back_through_the_template(serve: Serve) -> None:
    """Contents that are null or in parts become texts; roles have their older names."""
    seen: list[Any] = []

    class Watching(ByteTokenizer):
        def chat(self, messages: Any, **options: Any) -> list[int]:
            seen.append((list(messages), options))
            return super().chat(messages, **options)

    client = serve(Engine(hash_target(vocab_size=260), Watching())).client()
    client.chat.completions.create(
        model=MODEL,
        max_tokens=1,
        tools=TOOLS,
        messages=[
            {"role": "developer", "content": [{"type": "text", "text": "be "}, {"type": "text", "text": "short"}]},
            *USER,
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [
                    {
                        "id": "call_1",
                        "type": "function",
                        "function": {"name": "weather", "arguments": '{"city": "Oslo"}'},
                    }
                ],
                "refusal": None,
                "annotations": [],
            },
            {"role": "tool", "tool_call_id": "call_1", "content": "rain"},
        ],
    )
    messages, options = seen[-1]
    assert messages[0] == {"role": "system", "content": "be short"}
    assert messages[2]["content"] == ""
    assert messages[2]["tool_calls"][0]["function"] == {"name": "weather", "arguments": {"city": "Oslo"}}
    assert messages[3] == {"role": "tool", "content": "rain", "tool_call_id": "call_1"}
    assert options["tools"][0]["function"]["name"] == "weather"


@pytest.mark.parametrize(
    "fields",
    [
        {"tool_choice": "required"},
        {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "unknown"}}},
        {"tools": TOOLS, "response_format": {"type": "json_object"}},
        {"tools": [{"type": "function", "function": {"name": "bad name"}}]},
        {"tools": [{"type": "retrieval"}]},
        {"tools": TOOLS, "tool_choice": "required", "guided_regex": "a"},
    ],
)
def test_what_does_not_fit_together_is_refused(serve: Serve, fields: dict[str, Any]) -> None:
    running = serve(Engine(hash_target(vocab_size=260), ByteTokenizer()))
    with pytest.raises(openai.BadRequestError) as refused:
        running.client().chat.completions.create(model=MODEL, messages=USER, max_tokens=1, extra_body=fields)
    assert refused.value.param


def test_tools_that_no_template_can_write_are_named(serve: Serve) -> None:
    running = serve(Engine(hash_target(vocab_size=260), ByteTokenizer()))
    tools = [{"type": "function", "function": {"name": "a", "description": "\ud800"}}]
    for path in ("/v1/chat/completions", "/tokenize"):
        status, _, reply = running.post(path, {"messages": USER, "tools": tools})
        assert (status, reply["error"]["param"]) == (400, "tools")
    deep: dict[str, Any] = {}
    for _ in range(20_000):  # deeper than this interpreter's JSON goes, as that of later ones does
        deep = {"a": deep}
    tool = Tool(type="function", function=Function(name="a", parameters=deep))
    for work in (lambda: described([tool]), lambda: forced(ChatRequest(messages=USER, tool_choice="required"), [tool])):
        with pytest.raises(ApiError, match="tools") as refused:
            work()
        assert refused.value.param == "tools"
