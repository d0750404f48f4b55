"""Requests that nobody would write: made from the server's own description, and from bytes.

No reply is a 5xx, every error has OpenAI's shape, and afterwards nothing is left running. The number of requests is
small here; ``make fuzz`` (EXACTSPEC_FUZZ=10000) sends as many as it is told.
"""

from __future__ import annotations

import json
import os
import random
import socket
from collections import Counter
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from scripted import ByteTokenizer, hash_target
from served import Running, Serve

from exactspec.engine import Engine

REQUESTS = int(os.environ.get("EXACTSPEC_FUZZ", "200"))
PATHS = ("/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize")
CHAT: dict[str, Any] = {
    "messages": [{"role": "system", "content": "s"}, {"role": "user", "content": [{"type": "text", "text": "é"}]}],
    "temperature": 0.5,
    "top_p": 0.9,
    "n": 1,
    "seed": 4,
    "stop": ["zz"],
    "stream": False,
    "stream_options": {"include_usage": True},
    "logprobs": True,
    "top_logprobs": 2,
    "logit_bias": {"65": 3},
    "max_tokens": 4,
    "presence_penalty": 0.1,
    "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object"}}},
    "tools": None,
    "speculative": {"draft": "copy", "max_nodes": 4},
    "prediction": {"type": "content", "content": "abc"},
}
TEXT: dict[str, Any] = {
    "prompt": ["ab", "cd"],
    "max_tokens": 4,
    "logprobs": 1,
    "guided_regex": "[a-z]{1,4}",
    "top_k": 3,
    "stop_token_ids": [65],
}
ODD: list[Any] = [
    None, True, False, 0, -1, 1, 2**31, 2**63, 2**64, -(2**63) - 1, 10**40, 0.5, -0.0, 1e308, 1e-320, float("nan"),
    float("inf"), "", "a", "\x00", "\ud800", "🧭", "none", "[" * 300, "a" * 5000, [], [[]], [None], {}, {"": {}},
    {"type": "text"}, {"type": "function"}, [{"role": "user"}], {"$ref": "#"}, [1, "a"], [[1], ["a"]], "(?:",
    "start: a",
]  # fmt: skip


@pytest.fixture
def running(serve: Serve) -> Running:
    engine = Engine(hash_target(vocab_size=260, max_length=64), ByteTokenizer(), draft="copyspec")
    return serve(engine, scheduler={"max_running": 4}, body_limit_s=5.0, time_limit_s=20.0, max_body_bytes=200_000)


def check(status: int, body: Any) -> None:
    assert status in (200, 400, 404, 405, 413, 415, 421, 429), (status, body)
    if status != 200:
        assert set(body["error"]) == {"message", "type", "param", "code"}, body


def healthy(running: Running) -> None:
    assert running.idle(20)
    status, _, reply = running.post("/v1/completions", {"prompt": "a", "max_tokens": 3, "temperature": 0})
    assert (status, reply["usage"]["completion_tokens"]) == (200, 3)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Of everything in a JSON value."""
    found = [path]
    for key, item in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        found += places(item, (*path, key))
    return found


def changed(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    if not path:
        return new
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = changed(copy[path[0]], path[1:], new)
    return copy


def test_one_value_replaced(running: Running) -> None:
    """Every place of a full request gets values of every kind, in an order that a seed fixes."""
    trials = [
        (path, place, odd)
        for path, body in (("/v1/chat/completions", CHAT), ("/v1/completions", TEXT))
        for place in places(body)
        for odd in ODD
    ]
    random.Random(1).shuffle(trials)
    seen: Counter[int] = Counter()
    for path, place, odd in trials[:REQUESTS]:
        body = changed(CHAT if "chat" in path else TEXT, place, odd)
        data = json.dumps(body).encode()
        status, _, reply = running.post(path, data)
        seen[status] += 1
        if status != 200 or isinstance(reply, dict):
            check(status, reply)
    assert set(seen) >= {200, 400}
    healthy(running)


def test_bytes(running: Running) -> None:
    """Bodies and whole requests that were cut, spliced, and changed at random."""
    rng = random.Random(2)
    for i in range(REQUESTS):
        path = rng.choice(PATHS)
        data = bytearray(json.dumps(rng.choice((CHAT, TEXT, {"tokens": [1, 2]}, {"prompt": "a"}))).encode())
        for _ in range(rng.randrange(1, 6)):
            at = rng.randrange(len(data) + 1)
            kind = rng.randrange(4)
            if kind == 0:
                data[at:at] = rng.randbytes(rng.randrange(1, 9))
            elif kind == 1:
                del data[at : at + rng.randrange(1, 40)]
            elif kind == 2 and at < len(data):
                data[at] = rng.randrange(256)
            else:
                data[at:at] = rng.choice((b"{", b"]", b'"', b",", b"\\ud800", b"1e999", b"null"))
        if i % 4:
            status, _, reply = running.post(path, bytes(data))
            if status != 200 or isinstance(reply, dict):
                check(status, reply)
            continue
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        head += f"Content-Length: {len(data)}\r\n\r\n"
        raw = bytearray(head.encode() + data)
        for _ in range(rng.randrange(4)):
            raw[rng.randrange(len(head))] = rng.randrange(256)
        with socket.create_connection(("127.0.0.1", running.port), timeout=20) as s:
            try:
                s.sendall(raw)
                s.shutdown(socket.SHUT_WR)
                reply = s.recv(200)
            except ConnectionError:
                reply = b""
        assert not reply or int(reply.split()[1]) < 500, (bytes(raw), reply)
    healthy(running)


@pytest.mark.parametrize("path", PATHS)
def test_from_the_description(running: Running, path: str) -> None:
    """schemathesis makes requests that fit the OpenAPI description; most of them mean nothing."""
    description = json.loads(running.get("/openapi.json")[1])
    operation = schemathesis.openapi.from_dict(description)[path]["POST"]

    @seed(3)
    @settings(
        max_examples=max(5, REQUESTS // (48 if "chat" in path else 16)),  # a large schema is slow to draw from
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy())
    def send(case: Any) -> None:
        try:
            data = json.dumps(case.body).encode()
        except (TypeError, ValueError):  # no JSON can hold it
            return
        status, _, reply = running.post(path, data)
        if status != 200 or isinstance(reply, dict):
            check(status, reply)

    send()
    healthy(running)
