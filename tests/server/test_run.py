"""The process around the application: when it says that it is ready, what it logs and counts."""

from __future__ import annotations

import io
import json
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from scripted import ByteTokenizer, hash_target
from served import Serve

from exactspec.engine import Engine
from exactspec.scheduling import Scheduler
from exactspec.server import logs, run
from exactspec.server.settings import ServerSettings


def noise(**options: Any) -> Engine:
    return Engine(hash_target(vocab_size=260, **options), ByteTokenizer(eos=()), draft="none")


class Over(Exception):
    """Ends a server of `run.serve`, which otherwise waits for a signal."""


def test_it_is_ready_once_it_is_warm() -> None:
    """What a first request would wait for has run by then: greedy and sampled steps, the library of constraints."""
    engine = Engine(hash_target(vocab_size=260), ByteTokenizer())
    seen: list[tuple[int, bool]] = []

    def ready() -> None:
        seen.append((len(engine.target.rows), engine.grammars._vocab is not None))  # type: ignore[attr-defined]
        raise Over

    with pytest.raises(Over):
        run.serve(
            ServerSettings(name="tiny", port=0, grace_s=0.0),
            lambda: Scheduler(engine),
            bound=lambda url: None,
            ready=ready,
        )
    ((forwards, prepared),) = seen
    assert forwards >= 2
    assert prepared


def test_a_port_that_is_taken() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        for host in ("127.0.0.1", "0.0.0.0", "localhost"):
            with pytest.raises(OSError, match=f"cannot listen on {host}:{port}: .*; give another --port"):
                run.listen(host, port)


@pytest.mark.parametrize("asked", [False, True])
def test_no_text_is_logged_unless_asked_for(serve: Serve, asked: bool) -> None:
    stream = io.StringIO()
    running = serve(noise(before=_fails_at(40)), log_prompts=asked)
    handler = logs.start(stream)
    try:
        text = running.post("/v1/completions", {"prompt": "a secret", "max_tokens": 30, "temperature": 0})[2]
        answer = text["choices"][0]["text"]
        running.post("/v1/completions", {"prompt": "a secret", "max_tokens": -1})
        running.post("/v1/completions", {"prompt": "a secret", "a secret": 1})
        running.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "a secret"}], "max_tokens": 90})
        assert running.idle()
        end = time.monotonic() + 60
        while stream.getvalue().count('"event": "request"') < 4:  # a line comes after its reply
            assert time.monotonic() < end
            time.sleep(0.01)
    finally:
        logs.stop(handler)
    entries = [json.loads(line) for line in stream.getvalue().splitlines()]
    requests = [entry for entry in entries if entry["event"] == "request"]
    assert [entry["status"] for entry in requests] == [200, 400, 400, 500]
    assert all(entry["request_id"] for entry in requests)
    assert ("secret" in stream.getvalue()) is asked
    assert (json.dumps(answer)[1:12] in stream.getvalue()) is asked


def _fails_at(forward: int) -> Callable[[int], None]:
    def before(forwards: int) -> None:
        if forwards == forward:
            raise RuntimeError("broken")

    return before


def test_a_prompt_that_was_seen_is_told_as_cached(serve: Serve) -> None:
    running = serve(noise())
    body = {"prompt": "the same beginning of two requests", "max_tokens": 2, "temperature": 0}
    cached = [
        running.post("/v1/completions", body)[2]["usage"]["prompt_tokens_details"]["cached_tokens"] for _ in range(2)
    ]
    assert cached == [0, len(body["prompt"]) - 1]  # type: ignore[arg-type]
    found = lines(running.get("/metrics")[1])
    assert found["exactspec:prompt_tokens_cached_total"] == cached[1]
    assert found["exactspec:prefix_cache_hits_total"] == 1
    assert found["exactspec:prefix_cache_queries_total"] == 2
    assert 0 < found["exactspec:prefix_cache_bytes"] <= found["exactspec:cache_bytes"]
    assert found["exactspec:cache_bytes"] <= found["exactspec:cache_bytes_limit"]
    assert found["exactspec:prefix_cache_entries"] == 1


def test_what_waits_and_what_was_refused_is_counted(serve: Serve) -> None:
    go = threading.Event()
    running = serve(noise(before=lambda forwards: go.wait(20)), scheduler={"max_running": 1, "max_queue": 1})
    body = {"prompt": "a", "max_tokens": 6, "stream": True}
    threads = [threading.Thread(target=running.post, args=("/v1/completions", body)) for _ in range(2)]
    for thread in threads:
        thread.start()
    end = time.monotonic() + 20
    while (found := lines(running.get("/metrics")[1]))["exactspec:num_requests_waiting"] < 1:
        assert time.monotonic() < end
    assert found["exactspec:num_requests_running"] == 1
    assert running.post("/v1/completions", body)[0] == 429
    go.set()
    for thread in threads:
        thread.join()
    assert running.idle()
    found = lines(running.get("/metrics")[1])
    assert found["exactspec:requests_refused_total"] == 1
    assert found["exactspec:generation_tokens_total"] == 12
    assert found["exactspec:inter_token_latency_seconds_count"] == 10  # two first tokens have none before them
    assert found["exactspec:time_to_first_token_seconds_count"] == 2
    assert found["exactspec:rows_total"] >= found["exactspec:forwards_total"] >= found["exactspec:num_steps_total"] / 2


def lines(text: str) -> dict[str, float]:
    """Metrics without labels."""
    found = (line.rsplit(" ", 1) for line in text.splitlines() if line[0] != "#" and "{" not in line)
    return {name: float(value) for name, value in found}


def test_health_tells_of_a_fault_that_ends_everything(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    running = serve(noise())
    assert running.get("/health")[0] == 200
    monkeypatch.setattr(running.service.scheduler, "_admit", lambda: 1 / 0)
    assert running.post("/v1/completions", {"prompt": "a"})[0] == 500
    assert running.get("/health") == (503, '{"status":"broken"}')
    status, _, reply = running.post("/v1/completions", {"prompt": "a"})
    assert (status, reply["error"]["code"]) == (503, "internal_error")
