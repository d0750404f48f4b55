"""What every request passes: key, size, time, id; and errors in OpenAI's shape wherever they come from."""

from __future__ import annotations

import json
import socket
from typing import Any

import openai
import pytest
from scripted import ByteTokenizer, hash_target
from served import MODEL, Serve

from exactspec.engine import Engine
from exactspec.server.settings import ServerSettings

HEAD = b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
USER: list[Any] = [{"role": "user", "content": "hi"}]


def noise(**options: Any) -> Engine:
    return Engine(hash_target(vocab_size=260, **options), ByteTokenizer())


def test_keys(serve: Serve) -> None:
    running = serve(noise(), api_keys=("right", "second"))
    for key in ("right", "second"):
        running.client(key).chat.completions.create(model=MODEL, messages=USER, max_tokens=1)
    with pytest.raises(openai.AuthenticationError) as refused:
        running.client("wrong").chat.completions.create(model=MODEL, messages=USER, max_tokens=1)
    assert refused.value.code == "invalid_api_key"
    for headers in ({}, {"Authorization": "Basic right"}, {"Authorization": "right"}, {"Authorization": "Bearer righ"}):
        for path in ("/v1/models", "/metrics", "/openapi.json"):
            assert running.get(path, **headers)[0] == 401
        assert running.post("/tokenize", {"prompt": "a"}, **headers)[0] == 401
    assert running.get("/health")[0] == 200
    assert running.get("/v1/models", Authorization="bearer right")[0] == 200


def test_size_of_the_body(serve: Serve) -> None:
    running = serve(noise(), max_body_bytes=2000)
    assert running.post("/tokenize", {"prompt": "a" * 1900})[0] == 200
    status, headers, body = running.post("/tokenize", {"prompt": "a" * 2000})
    assert (status, body["error"]["code"]) == (413, "request_too_large")
    assert headers["connection"] == "close"
    with socket.create_connection(("127.0.0.1", running.port), timeout=10) as s:  # no length stated: chunks
        s.sendall(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
        s.sendall(b"fa0\r\n" + b"a" * 4000 + b"\r\n0\r\n\r\n")
        assert s.recv(100).startswith(b"HTTP/1.1 413")
    assert running.post("/tokenize", {"prompt": "a"})[0] == 200


def test_a_body_that_does_not_come(serve: Serve) -> None:
    running = serve(noise(), body_limit_s=0.2)
    with socket.create_connection(("127.0.0.1", running.port), timeout=10) as s:
        s.sendall(HEAD + b'Content-Length: 50\r\n\r\n{"prompt"')
        assert s.recv(100).startswith(b"HTTP/1.1 408")
    assert running.post("/tokenize", {"prompt": "a"})[0] == 200


def test_request_ids(serve: Serve) -> None:
    running = serve(noise())
    assert running.post("/tokenize", {"prompt": "a"}, **{"X-Request-Id": "a-B.9"})[1]["x-request-id"] == "a-B.9"
    for bad in ("a b", "x" * 65, "<>"):
        given = running.post("/tokenize", {"prompt": "a"}, **{"X-Request-Id": bad})[1]["x-request-id"]
        assert given.startswith("req_")


def test_other_origins_read_nothing_unless_allowed(serve: Serve) -> None:
    closed = serve(noise())
    opened = serve(noise(), cors_origins=("http://ok.example",), api_keys=("k",))
    for running, origin, allowed in (
        (closed, "http://ok.example", None),
        (opened, "http://ok.example", "http://ok.example"),
        (opened, "http://other.example", None),
    ):
        headers = running.post("/tokenize", {"prompt": "a"}, Origin=origin, Authorization="Bearer k")[1]
        assert headers.get("access-control-allow-origin") == allowed
    # A refusal can be read by the page as well, and a page may ask beforehand without a key.
    status, headers, _ = opened.post("/tokenize", {"prompt": "a"}, Origin="http://ok.example")
    assert (status, headers["access-control-allow-origin"]) == (401, "http://ok.example")


def test_a_queue_that_is_full(serve: Serve) -> None:
    """One runs, one waits; of a request for two answers none is left behind when the second is refused."""
    import threading

    go = threading.Event()
    running = serve(noise(before=lambda forwards: go.wait(60)), scheduler={"max_running": 1, "max_queue": 1})
    replies: list[int] = []

    def ask() -> None:
        replies.append(running.post("/v1/completions", {"prompt": "a", "max_tokens": 2})[0])

    threads = [threading.Thread(target=ask) for _ in range(2)]
    for n, thread in enumerate(threads, start=1):
        thread.start()
        while True:
            stats = running.service.scheduler.stats()
            if stats.running + stats.waiting == n:
                break
    status, headers, body = running.post("/v1/completions", {"prompt": "a", "n": 2})
    assert (status, body["error"]["code"]) == (429, "queue_full")
    assert int(headers["retry-after"]) >= 1
    status, headers, body = running.post("/v1/completions", {"prompt": "a", "stream": True})
    assert status == 429
    with pytest.raises(openai.RateLimitError):
        running.client().completions.create(model=MODEL, prompt="a")
    go.set()
    for thread in threads:
        thread.join(60)
    assert replies == [200, 200]
    assert running.idle()
    text = running.get("/metrics")[1]  # what was refused is no answer that failed, nor one that took no time
    assert 'finished_reason="error"' not in text
    assert "exactspec:e2e_request_latency_seconds_count 2.0" in text
    assert running.post("/v1/completions", {"prompt": "a", "n": 2, "max_tokens": 1})[0] == 200


@pytest.mark.parametrize("stream", [False, True])
def test_the_time_limit_cuts_an_answer(serve: Serve, stream: bool) -> None:
    import time

    running = serve(noise(before=lambda forwards: time.sleep(0.01), max_length=100_000), time_limit_s=0.5)
    body = {"prompt": "a", "max_tokens": 50_000, "temperature": 0}
    if stream:
        events = running.events("/v1/completions", body)
        assert events[-1] == "[DONE]"
        assert events[-2]["choices"][0]["finish_reason"] == "length"
        assert events[-2]["exactspec"]["time_limit_reached"] is True
    else:
        status, _, reply = running.post("/v1/completions", body)
        assert status == 200
        assert reply["choices"][0]["finish_reason"] == "length"
        assert 0 < reply["usage"]["completion_tokens"] < 5000
    assert running.idle()


def test_no_token_within_the_time_limit(serve: Serve) -> None:
    import time

    running = serve(noise(before=lambda forwards: time.sleep(0.4)), time_limit_s=0.1)
    for stream in (False, True):
        status, _, reply = running.post("/v1/completions", {"prompt": f"{stream} abc", "stream": stream})
        assert (status, reply["error"]["code"]) == (504, "timeout")
    assert running.idle()


def test_a_failing_model_fails_its_request_alone(serve: Serve) -> None:
    def before(forwards: int) -> None:
        if forwards == 3:
            raise RuntimeError("secret detail")

    running = serve(noise(before=before))
    status, _, reply = running.post("/v1/completions", {"prompt": "a", "max_tokens": 9, "temperature": 0})
    assert (status, reply["error"]["type"]) == (500, "server_error")
    assert "secret" not in json.dumps(reply)
    assert running.post("/v1/completions", {"prompt": "a", "max_tokens": 9})[0] == 200
    assert running.idle()


def test_a_stream_that_fails_ends_with_the_error(serve: Serve) -> None:
    def before(forwards: int) -> None:
        if forwards == 3:
            raise RuntimeError("broken")

    running = serve(noise(before=before))
    events = running.events("/v1/completions", {"prompt": "a", "max_tokens": 9, "temperature": 0})
    assert events[-1]["error"]["type"] == "server_error"
    assert running.idle()


def test_an_answer_that_its_own_parameters_forbid_is_a_400(serve: Serve) -> None:
    running = serve(noise())
    body = {"prompt": "a", "guided_regex": "[0-9]+", "logit_bias": {str(c): -100 for c in range(48, 58)}}
    for stream in (False, True):
        status, _, reply = running.post("/v1/completions", {**body, "stream": stream})
        assert status == 400, reply
        assert "masked" in reply["error"]["message"]


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/chat/completions", {"messages": USER, "temperature": "1"}, "temperature"),
        ("/v1/chat/completions", {"messages": USER, "temperature": -1}, "temperature"),
        ("/v1/chat/completions", {"messages": USER, "top_p": 0}, "top_p"),
        ("/v1/chat/completions", {"messages": USER, "repetition_penalty": 1e-308}, "repetition_penalty"),
        ("/v1/chat/completions", {"messages": USER, "repetition_penalty": 1e308}, "repetition_penalty"),
        ("/v1/chat/completions", {"messages": USER, "n": 0}, "n"),
        ("/v1/chat/completions", {"messages": USER, "n": 17}, "n"),
        ("/v1/chat/completions", {"messages": USER, "n": 1.5}, "n"),
        ("/v1/chat/completions", {"messages": USER, "max_tokens": -1}, "max_tokens"),
        ("/v1/chat/completions", {"messages": USER, "seed": 2**64}, "seed"),
        ("/v1/chat/completions", {"messages": USER, "stop": ["a"] * 17}, "stop"),
        ("/v1/chat/completions", {"messages": USER, "stop": ""}, "stop"),
        ("/v1/chat/completions", {"messages": USER, "stop": "\ud800"}, "stop"),
        ("/v1/chat/completions", {"messages": USER, "stop": ["a" * 4000, "b" * 97]}, "stop"),
        ("/v1/chat/completions", {"messages": USER, "stop_token_ids": [*range(1025)]}, "stop_token_ids"),
        ("/v1/chat/completions", {"messages": USER, "max_completion_tokens": -1}, "max_completion_tokens"),
        ("/v1/chat/completions", {"messages": USER, "speculative": {"draft": "model:absent"}}, "speculative"),
        ("/v1/chat/completions", {"messages": USER, "guided_regex": "("}, "guided_regex"),
        ("/v1/chat/completions", {"messages": USER, "guided_regex": "\ud800"}, "guided_regex"),
        ("/v1/chat/completions", {"messages": USER, "structured_outputs": {"grammar": "x: y"}}, "structured_outputs"),
        ("/v1/completions", {"prompt": "a", "guided_json": {"type": "wizard"}}, "guided_json"),
        (
            "/v1/chat/completions",
            {"messages": USER, "response_format": {"type": "json_object"}, "guided_regex": "a"},
            "guided_regex",
        ),
        (
            "/v1/chat/completions",
            {"messages": USER, "response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "elf"}}}},
            "response_format",
        ),
        (
            "/v1/chat/completions",
            {
                "messages": USER,
                "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "elf"}}}],
                "tool_choice": "required",
            },
            "tools",
        ),
        ("/v1/chat/completions", {"messages": USER, "logit_bias": {"a": 1}}, "logit_bias"),
        ("/v1/chat/completions", {"messages": USER, "logit_bias": {"65": 101}}, "logit_bias"),
        ("/v1/chat/completions", {"messages": USER, "logit_bias": {"999": 1}}, "logit_bias"),
        ("/v1/chat/completions", {"messages": USER, "top_logprobs": 2}, "top_logprobs"),
        ("/v1/chat/completions", {"messages": USER, "logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ("/v1/chat/completions", {"messages": USER, "functions": []}, "functions"),
        ("/v1/chat/completions", {"messages": USER, "unknown": 1}, "unknown"),
        (
            "/v1/chat/completions",
            {"messages": USER, "response_format": {"type": "json_schema"}},
            "response_format.json_schema.schema",
        ),
        ("/v1/chat/completions", {"messages": USER, "guided_json": "{"}, "guided_json"),
        ("/v1/chat/completions", {"messages": USER, "guided_regex": "a", "guided_choice": ["a"]}, "guided_choice"),
        ("/v1/chat/completions", {"messages": []}, "messages"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "\ud800"}]}, "messages"),
        ("/v1/chat/completions", {"messages": [{"role": "wizard", "content": "a"}]}, "messages.0.role"),
        ("/v1/chat/completions", {"messages": [*USER, {"role": "User", "content": "a"}]}, "messages.1.role"),
        ("/v1/chat/completions", {"messages": [{"role": "", "content": "a"}]}, "messages.0.role"),
        ("/tokenize", {"messages": [{"role": "wizard", "content": "a"}]}, "messages.0.role"),
        ("/v1/chat/completions", {}, "messages"),
        ("/v1/completions", {}, "prompt"),
        ("/v1/completions", {"prompt": ""}, "prompt"),
        ("/v1/completions", {"prompt": []}, "prompt"),
        ("/v1/completions", {"prompt": [[]]}, "prompt"),
        ("/v1/completions", {"prompt": [999]}, "prompt"),
        ("/v1/completions", {"prompt": [-1]}, "prompt"),
        ("/v1/completions", {"prompt": "a", "logprobs": 21}, "logprobs"),
        ("/v1/completions", {"prompt": "a", "echo": True}, "echo"),
        ("/v1/completions", {"prompt": "a", "best_of": 2}, "best_of"),
        ("/v1/completions", {"prompt": ["a"] * 17}, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": USER}, "prompt"),
        ("/tokenize", {}, "prompt"),
    ],
)
def test_mistakes_name_their_field(serve: Serve, path: str, body: Any, param: str) -> None:
    running = serve(noise())
    for stream in (False, True):
        sent = body if path == "/tokenize" or not stream else {**body, "stream": True}
        status, headers, reply = running.post(path, sent)
        assert status == 400
        assert headers["content-type"] == "application/json"
        assert set(reply["error"]) == {"message", "type", "param", "code"}
        assert reply["error"]["type"] == "invalid_request_error"
        assert (reply["error"]["param"] or "").startswith(param), reply
    assert not running.service.scheduler.stats().steps


def test_an_unknown_role_is_told_the_known_ones(serve: Serve) -> None:
    running = serve(noise())
    reply = running.post("/v1/chat/completions", {"messages": [{"role": "wizard", "content": "a"}]})[2]
    for role in ("system", "developer", "user", "assistant", "tool", "function"):
        assert f"'{role}'" in reply["error"]["message"]
        known = {"messages": [{"role": role, "content": "a", "name": "f", "tool_call_id": "1"}], "max_tokens": 1}
        assert running.post("/v1/chat/completions", known)[0] == 200


@pytest.mark.parametrize("name", ["a", "\ud800", "model"])
def test_a_mistake_of_megabytes_is_told_in_a_line(serve: Serve, name: str) -> None:
    long = name * (1_000_000 // len(name))
    running = serve(noise())
    for fields in ({long: 1}, {"speculative": {"draft": long}}, {"model": long}, {"logit_bias": {long: 1}}):
        status, _, reply = running.post("/v1/completions", {"prompt": "a", **fields})
        assert status in (400, 404)
        assert len(json.dumps(reply)) < 30_000  # a character may take up to six


def test_of_a_name_that_stands_twice_the_last_value_counts(serve: Serve) -> None:
    body = b'{"prompt": "a", "max_tokens": 1, "max_tokens": 3, "ignore_eos": true}'
    assert serve(noise()).post("/v1/completions", body)[2]["usage"]["completion_tokens"] == 3


@pytest.mark.parametrize("body", [b"[" * 100_000, b'{"a":' * 100_000, b"[" * 90_000 + b"]" * 90_000, b"{", b"\xff"])
def test_a_body_that_is_no_json(serve: Serve, body: bytes) -> None:
    status, _, reply = serve(noise()).post("/v1/completions", body)
    assert (status, reply["error"]["code"]) == (400, "invalid_json")
    assert "not valid JSON" in reply["error"]["message"]


def test_no_route(serve: Serve) -> None:
    running = serve(noise())
    for method_path in ("/v1/unknown", "/chat", "/v1/chat"):
        status, _, reply = running.post(method_path, {})
        assert (status, reply["error"]["code"]) == (404, "unknown_url")
    assert running.get("/v1/completions")[0] == 405


@pytest.mark.parametrize(
    "field",
    [
        {"port": -1},
        {"name": "caf\udce9"},
        {"api_keys": ("",)},
        {"api_keys": ("clé",)},
        {"max_body_bytes": 1},
        {"time_limit_s": float("nan")},
        {"grace_s": -1.0},
        {"idle_limit_s": 0.0},
        {"allowed_hosts": ("http://a",)},
        {"max_choices": 0},
    ],
)
def test_settings_out_of_range(field: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(field))):
        ServerSettings(**{"name": "m", **field})
