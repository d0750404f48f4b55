"""Requests of many megabytes: refused soon, in one line, while others are answered."""

from __future__ import annotations

import json
import socket
import threading
import time
from typing import Any

import pytest
from scripted import hash_target
from served import Running, Serve
from tiny_tokenizers import CHATML, metadata_of, train

from exactspec.engine import Engine
from exactspec.server.chat_schema import ChatRequest
from exactspec.server.text_schema import CompletionRequest, DetokenizeRequest
from exactspec.target.tokenizer_gguf import gguf_tokenizer

UNITS = ["the quick brown fox, ", "a", " ", "<", "你好"]


@pytest.fixture(scope="module")
def engine() -> Engine:
    metadata, size = metadata_of("qwen2", *train(), **{"tokenizer.chat_template": CHATML})
    return Engine(hash_target(vocab_size=size, max_length=2000), gguf_tokenizer(metadata, size))


def long(unit: str) -> str:
    return unit * (10_000_000 // len(unit.encode()))


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/tokenize", "/tokenize messages"])
def test_a_long_prompt_is_refused_soon(serve: Serve, engine: Engine, path: str, unit: str) -> None:
    running = serve(engine)
    route, _, messages = path.partition(" ")
    chat = messages or "chat" in route
    body = {"messages": [{"role": "user", "content": long(unit)}]} if chat else {"prompt": long(unit)}
    used = time.process_time()
    status, _, reply = running.post(route, json.dumps(body, ensure_ascii=False).encode())
    assert (status, reply["error"]["code"]) == (400, "context_length_exceeded")
    assert "at least" in reply["error"]["message"]
    assert reply["error"]["param"] == ("messages" if chat else "prompt")
    assert time.process_time() - used < 8  # the test's own JSON, too; encoding takes from 15 s to minutes
    assert running.idle()


def test_both_numbers_are_told_of_a_prompt_that_is_a_little_too_long(serve: Serve, engine: Engine) -> None:
    running = serve(engine)
    text = "the quick brown fox " * 150
    count = running.post("/tokenize", {"prompt": text})[2]["count"]
    assert 2000 < count < 4000
    message = running.post("/v1/completions", {"prompt": text})[2]["error"]["message"]
    assert message == (
        f"This model's maximum context length is 2000 tokens, but the prompt has {count}. Please shorten it."
    )


def test_a_long_prediction_is_cut(serve: Serve, engine: Engine) -> None:
    used = time.process_time()
    body = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 2}
    prediction = {"prediction": {"type": "content", "content": long("the quick brown fox, ")}}
    assert serve(engine).post("/v1/chat/completions", body | prediction)[0] == 200
    assert time.process_time() - used < 8


def test_long_requests_leave_a_thread_for_short_ones(serve: Serve, engine: Engine) -> None:
    """More of them than the pool has threads; each takes long (here: until the short one is answered)."""
    go = threading.Event()
    held: list[str] = []
    running = serve(engine)
    encode = type(engine.tokenizer).encode

    class Held:
        def __getattr__(self, name: str) -> Any:
            return getattr(engine.tokenizer, name)

        def encode(self, text: str, **options: Any) -> list[int]:
            if len(text) > 100_000:
                held.append(text)
                go.wait(60)
            return encode(engine.tokenizer, text, **options)

    engine_held = Engine(engine.target, Held())  # type: ignore[arg-type]
    running = serve(engine_held)
    body = {"prompt": "a b " * 50_000}
    threads = [threading.Thread(target=running.post, args=("/tokenize", body)) for _ in range(40)]
    for thread in threads:
        thread.start()
    while not held:
        time.sleep(0.01)
    time.sleep(0.3)
    try:
        assert running.post("/tokenize", {"prompt": "a"})[0] == 200
        assert running.get("/health")[0] == 200
        assert len(held) == 1
    finally:
        go.set()
        for thread in threads:
            thread.join(60)


def test_a_long_request_that_waits_is_watched(serve: Serve, engine: Engine) -> None:
    """It is not read once its client is gone, and not waited for past the time limit."""
    go = threading.Event()
    held: list[str] = []

    class Held:
        def __getattr__(self, name: str) -> Any:
            return getattr(engine.tokenizer, name)

        def encode(self, text: str, **options: Any) -> list[int]:
            held.append(text[:1])
            go.wait(60)
            return [1]

    running = serve(Engine(engine.target, Held()), time_limit_s=3.0)  # type: ignore[arg-type]

    def body(text: str, **more: int) -> bytes:
        return json.dumps({"prompt": text * 100_000, **more}).encode()

    def lines() -> str:
        return running.get("/metrics")[1]

    first = threading.Thread(target=running.post, args=("/v1/completions", body("a", max_tokens=1)))
    first.start()
    while not held:
        time.sleep(0.01)
    for path in ("/v1/completions", "/tokenize"):
        gone = socket.create_connection(("127.0.0.1", running.port))
        data = body("b")
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        gone.sendall(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
        time.sleep(0.3)
        gone.close()
        end = time.monotonic() + 60
        while f'http_requests_total{{path="{path}",status="499"}} 1.0' not in lines():
            assert time.monotonic() < end
            time.sleep(0.01)
    status, _, reply = running.post("/v1/completions", body("c", max_tokens=1))
    assert (status, reply["error"]["code"]) == (504, "timeout")
    go.set()
    first.join()
    assert running.post("/v1/completions", body("d", max_tokens=1))[0] == 200
    assert held == ["a", "d"]


def test_too_many_ids_to_be_shown_as_text(serve: Serve, engine: Engine) -> None:
    running = serve(engine)
    assert running.post("/detokenize", {"tokens": [1] * 8000})[0] == 200
    status, _, reply = running.post("/detokenize", {"tokens": [1] * 8001})
    assert (status, reply["error"]["param"]) == (400, "tokens")


MANY = 200_000


@pytest.mark.parametrize(
    ("model", "body"),
    [
        (CompletionRequest, {"prompt": [None] * MANY}),
        (CompletionRequest, {"prompt": [[None]] * MANY}),
        (CompletionRequest, {"prompt": [1, *["a"] * MANY]}),
        (CompletionRequest, {"prompt": "a", "stop": [1] * MANY}),
        (CompletionRequest, {"prompt": "a", "stop_token_ids": ["a"] * MANY}),
        (CompletionRequest, {"prompt": "a", "guided_choice": [1] * MANY}),
        (CompletionRequest, {"prompt": "a", "logit_bias": {str(i): None for i in range(MANY)}}),
        (CompletionRequest, {"prompt": "a", **{str(i): 1 for i in range(MANY)}}),
        (CompletionRequest, {"prompt": "a", "stream_options": {str(i): 1 for i in range(MANY)}}),
        (CompletionRequest, {"prompt": "a", "prediction": {"type": "content", "content": [{}] * MANY}}),
        (DetokenizeRequest, {"tokens": [None] * MANY}),
        (ChatRequest, {"messages": [{}] * MANY}),
        (ChatRequest, {"messages": [{"role": "user", "content": [{}] * MANY}]}),
        (ChatRequest, {"messages": [{"role": "user", "tool_calls": [{}] * MANY}]}),
        (ChatRequest, {"messages": [{"role": "user"}], "tools": [{}] * MANY}),
        (ChatRequest, {"messages": [{"role": "user"}], "metadata": {str(i): 1 for i in range(MANY)}}),
        (ChatRequest, {"messages": [{"role": "user"}], "modalities": ["audio"] * MANY}),
    ],
)
def test_of_many_mistakes_only_the_first_is_described(model: Any, body: dict[str, Any]) -> None:
    from pydantic import ValidationError

    with pytest.raises(ValidationError) as refused:
        model.model_validate(json.loads(json.dumps(body)))
    assert 1 <= refused.value.error_count() <= 8  # one for each form that the value may have


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user"}] * 20_001}, "messages"),
        ("/tokenize", {"messages": [{"role": "user"}] * 20_001}, "messages"),
        ("/v1/chat/completions",
         {"messages": [{"role": "user", "content": [{"type": "text", "text": ""}] * 10_000}] * 2}, "messages"),
        ("/v1/chat/completions",
         {"messages": [{"role": "user", "tool_calls": [{"function": {"name": "a"}}] * 20_000}]}, "messages"),
        ("/v1/chat/completions",
         {"messages": [{"role": "user"}], "tools": [{"type": "function", "function": {"name": "a"}}] * 1001}, "tools"),
        ("/v1/completions", {"prompt": "a", "prediction": {"type": "content", "content": [{}] * 1001}},
         "prediction.content"),
        ("/v1/completions", {"prompt": [""] * 1025}, "prompt"),
        ("/v1/completions", {"prompt": [[]] * 1025}, "prompt"),
    ],
)  # fmt: skip
def test_more_objects_than_anybody_sends_are_refused(
    serve: Serve, engine: Engine, path: str, body: dict[str, Any], param: str
) -> None:
    status, _, reply = serve(engine).post(path, body)
    assert (status, reply["error"]["param"]) == (400, param)
    assert "at most" in reply["error"]["message"]


def test_others_are_answered_meanwhile(serve: Serve, engine: Engine) -> None:
    """A long text, and the worst of one: no cut is possible in it. Neither holds the event loop for long."""
    running: Running = serve(engine)
    done = threading.Event()
    bodies = [json.dumps({"prompt": long(unit)}, ensure_ascii=False).encode() for unit in UNITS]

    def send() -> None:
        for data in bodies:
            running.post("/v1/completions", data)
        done.set()

    thread = threading.Thread(target=send)
    thread.start()
    longest, asked = 0.0, 0
    while not done.is_set():
        start = time.monotonic()
        assert running.get("/health")[0] == 200
        longest, asked = max(longest, time.monotonic() - start), asked + 1
    thread.join()
    assert asked > 3
    assert longest < 5  # a hundred times less on a machine with nothing else to do; encoding held it for 20
