"""``exactspec serve`` as a process: listens at once, is ready later, ends in an orderly way."""

from __future__ import annotations

import contextlib
import http.client
import io
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from exactspec.cli.main import main
from exactspec.cli.services import Services

TINY = """
import sys
from scripted import ByteTokenizer, hash_target
from exactspec.cli.main import main
from exactspec.cli.services import Services
from exactspec.engine import Engine
import dataclasses, os, time

class Reading(ByteTokenizer):
    def encode(self, text, **options):
        time.sleep(60 if len(text) > 100_000 else 0)
        return super().encode(text)

def open_engine(name, **options):
    if name == "broken":
        raise ValueError("this model cannot be opened")
    time.sleep(float(os.environ.get("TINY_LOAD_S", "0.3")))
    slow = lambda forwards: time.sleep(0.005)
    target = hash_target(vocab_size=260, max_length=100_000, before=slow)
    return Engine(target, Reading(eos=()), speculation=options["speculation"])

sys.exit(main(sys.argv[1:], services=dataclasses.replace(Services.of_process(), open_engine=open_engine)))
"""


class Process:
    def __init__(self, *argv: str, env: dict[str, str] | None = None) -> None:
        tests = str(Path(__file__).parent.parent)
        path = os.pathsep.join([tests, os.environ.get("PYTHONPATH", "")])
        self.child = subprocess.Popen(
            [sys.executable, "-c", TINY, "serve", *argv],
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": path} | (env or {}),
        )
        self.lines: list[str] = []

    def until(self, pattern: str) -> re.Match[str]:
        assert self.child.stderr is not None
        for line in self.child.stderr:
            self.lines.append(line)
            if found := re.search(pattern, line):
                return found
        raise AssertionError(f"no {pattern!r} in {self.lines}")

    def listening(self) -> int:
        return int(self.until(r"listening on http://127.0.0.1:(\d+)")[1])

    def end(self, signal_: int) -> int:
        self.child.send_signal(signal_)
        assert self.child.stderr is not None
        self.lines += self.child.stderr.readlines()
        return self.child.wait(60)


@pytest.fixture
def start() -> Iterator[Any]:
    started: list[Process] = []

    def run(*argv: str, env: dict[str, str] | None = None) -> Process:
        started.append(Process(*argv, env=env))
        return started[-1]

    yield run
    for process in started:
        process.child.kill()
        process.child.wait()
        assert process.child.stderr is not None
        process.child.stderr.close()


HEADERS = {"Content-Type": "application/json", "Authorization": "Bearer k2", "X-Request-Id": "mine-1"}


def ask(port: int, method: str, path: str, body: Any = None, **headers: str) -> tuple[http.client.HTTPConnection, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    connection.request(method, path, json.dumps(body) if body else None, HEADERS | headers)
    return connection, connection.getresponse()


def test_a_process_from_start_to_end(start: Any) -> None:
    """Settings from variables; 503 while loading; a stream that is cut at the end of the grace time; the log."""
    env = {"EXACTSPEC_PORT": "0", "EXACTSPEC_NAME": "my-model", "EXACTSPEC_GRACE": "0.3", "EXACTSPEC_API_KEY": "k1 k2"}
    env["EXACTSPEC_ALLOWED_HOST"] = "my.box other.box"
    server = start("-m", "tiny", "--log-prompts", env=env)
    port = server.listening()
    connection, response = ask(port, "GET", "/health")
    assert (response.status, json.load(response)) == (503, {"status": "starting"})
    connection.close()
    connection, response = ask(port, "POST", "/v1/completions", {"prompt": "a"})
    assert response.status == 503
    assert response.getheader("Retry-After")
    assert json.load(response)["error"]["code"] == "not_ready"
    connection.close()
    server.until("ready: tiny as 'my-model'")
    connection, response = ask(port, "GET", "/health")
    assert response.status == 200
    connection.close()
    for name, status in (("my.box", 200), ("other.box:1", 200), ("evil.example", 421)):
        connection, response = ask(port, "GET", "/health", Host=name)
        assert response.status == status
        connection.close()
    body = {"prompt": "a secret", "max_tokens": 90_000, "stream": True, "model": "my-model"}
    connection, stream = ask(port, "POST", "/v1/completions", body)
    assert stream.getheader("X-Request-Id") == "mine-1"
    assert stream.readline().startswith(b"data: ")
    began = time.monotonic()
    assert server.end(signal.SIGTERM) == 0
    assert time.monotonic() - began < 60  # not the minutes that 90 000 tokens take
    rest = stream.read().decode()
    assert json.loads(rest.split("data: ")[-1])["error"]["code"] == "shutting_down"
    connection.close()
    assert server.lines[-1].strip() == "stopped"
    entries = [json.loads(line) for line in server.lines if line.startswith("{")]
    requests = [e for e in entries if e["event"] == "request"]
    assert [e["status"] for e in requests] == [503, 503, 200, 200, 200, 421, 200]
    assert {e["request_id"] for e in requests} == {"mine-1"}
    assert "a secret" in requests[-1]["body"]
    assert requests[-1]["finish_reasons"] == ["cancelled"]


@pytest.mark.parametrize("signal_", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_while_the_model_loads(start: Any, signal_: int) -> None:
    server = start("-m", "tiny", "--port", "0", env={"TINY_LOAD_S": "30"})
    port = server.listening()
    connection, response = ask(port, "GET", "/health")  # so the loop runs, and has taken over the signals
    assert response.status == 503
    connection.close()
    began = time.monotonic()
    assert server.end(signal_) == 0
    assert time.monotonic() - began < 15
    assert server.lines[-1].strip() == "stopped"


def test_a_signal_reaches_requests_that_run_and_wait(start: Any) -> None:
    """One reads its prompt; behind it, one waits for a place, and one of three answers is to be told in whole."""
    server = start("-m", "tiny", "--port", "0", "--grace", "0.5", "--max-running", "1")
    port = server.listening()
    server.until("ready: tiny")
    replies: dict[str, tuple[int, str]] = {}

    def send(name: str, body: dict[str, Any]) -> threading.Thread:
        def run() -> None:
            connection, response = ask(port, "POST", "/v1/completions", body)
            replies[name] = response.status, response.read().decode()
            connection.close()

        thread = threading.Thread(target=run)
        thread.start()
        return thread

    def waiting(n: int) -> None:
        end = time.monotonic() + 20
        while True:
            connection, response = ask(port, "GET", "/metrics")
            text = response.read().decode()
            connection.close()
            pairs = (line.rsplit(" ", 1) for line in text.splitlines() if line.startswith("exactspec:num_requests_"))
            found = {name: float(value) for name, value in pairs}
            if found["exactspec:num_requests_running"] == 1 and found["exactspec:num_requests_waiting"] == n:
                return
            assert time.monotonic() < end

    threads = [send("prompt", {"prompt": "a" * 90_000, "max_tokens": 9_000})]
    waiting(0)
    threads.append(send("stream", {"prompt": "b", "max_tokens": 90_000, "stream": True}))
    waiting(1)
    threads.append(send("whole", {"prompt": "c", "max_tokens": 90_000, "n": 3}))
    waiting(4)
    assert server.end(signal.SIGTERM) == 0
    for thread in threads:
        thread.join(20)
    for name in ("prompt", "stream", "whole"):
        status, text = replies[name]
        assert (status, json.loads(text)["error"]["code"]) == (503, "shutting_down"), name
    assert server.lines[-1].strip() == "stopped"


def test_a_second_signal_does_not_wait_for_a_request_that_is_read(start: Any) -> None:
    server = start("-m", "tiny", "--port", "0")
    port = server.listening()
    server.until("ready: tiny")

    def send() -> None:
        with contextlib.suppress(OSError, http.client.HTTPException):
            ask(port, "POST", "/v1/completions", {"prompt": "a" * 200_000})

    thread = threading.Thread(target=send)
    thread.start()
    time.sleep(1.0)  # it takes a minute to be read, and nothing tells when that has begun
    server.child.send_signal(signal.SIGTERM)
    time.sleep(0.3)
    began = time.monotonic()
    assert server.end(signal.SIGTERM) == 0
    assert time.monotonic() - began < 20
    thread.join(20)


def test_a_server_that_was_killed_is_started_again_at_once(start: Any) -> None:
    """On the same port, while connections of the first are still known to the machine."""
    first = start("-m", "tiny", "--port", "0")
    port = first.listening()
    first.until("ready: tiny")
    connection, stream = ask(port, "POST", "/v1/completions", {"prompt": "a", "max_tokens": 90_000, "stream": True})
    assert stream.readline().startswith(b"data: ")
    first.end(signal.SIGKILL)
    second = start("-m", "tiny", "--port", str(port))
    assert second.listening() == port
    second.until("ready: tiny")
    connection.close()
    connection, response = ask(port, "POST", "/v1/completions", {"prompt": "a", "max_tokens": 2})
    assert response.status == 200
    connection.close()


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["-m", "broken", "--port", "0"], "this model cannot be opened"),
        (["--port", "70000"], "port must be in"),
        (["--host", "no.such.host.invalid"], "give another --host"),
        (["--max-running", "0"], "--max-running"),
        (["--log-level", "loud"], "--log-level"),
        (["--draft", "magic"], "draft must be one of"),
        (["--api-key-file", "/no/such/file"], "--api-key-file"),
        (["--allowed-host", "http://my.box"], "allowed_hosts must be names"),
        (["--time-limit", "0"], "time_limit_s must be"),
    ],
)
def test_mistakes_are_one_line(argv: list[str], message: str) -> None:
    def open_engine(name: str, **options: Any) -> Any:
        raise ValueError("this model cannot be opened")

    err = io.StringIO()
    services = Services(stdin=io.BytesIO(), stdout=io.StringIO(), stderr=err, environ={}, open_engine=open_engine)
    assert main(["serve", *argv], services=services) == 2
    assert message in err.getvalue().splitlines()[-1]
    assert "Traceback" not in err.getvalue()
