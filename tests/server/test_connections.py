"""Clients as they are: that vanish, close half a connection, send what is no HTTP. Field case 23."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import threading
import time
from typing import Any

import pytest
from scripted import ByteTokenizer, hash_target, script_target
from served import Running, Serve

from exactspec.engine import Engine
from exactspec.params import SamplingParams
from exactspec.server import respond
from exactspec.server.answers import Answers
from exactspec.server.call import Call

STEP_S = 0.003
LONG = {"prompt": "go on", "max_tokens": 4000, "temperature": 0, "stream": True}


def slow(**options: Any) -> Engine:
    """A step takes a moment, so that 4000 tokens take longer than any test waits."""
    options.setdefault("before", lambda forwards: time.sleep(STEP_S))
    return Engine(hash_target(vocab_size=260, max_length=8000, **options), ByteTokenizer(eos=()), prefill_chunk=16)


def request(body: dict[str, Any], path: str = "/v1/completions") -> bytes:
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return head.encode() + f"Content-Length: {len(data)}\r\n\r\n".encode() + data


def connect(running: Running) -> socket.socket:
    return socket.create_connection(("127.0.0.1", running.port), timeout=10)


def reset(s: socket.socket) -> None:
    """Close with RST."""
    s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    s.close()


def read_events(s: socket.socket, n: int) -> None:
    data = b""
    while data.count(b"data: ") < n:
        part = s.recv(4096)
        assert part, data
        data += part


def probe(running: Running) -> str:
    status, _, reply = running.post("/v1/completions", {"prompt": "probe", "max_tokens": 8, "temperature": 0})
    assert status == 200, reply
    return str(reply["choices"][0]["text"])


@pytest.mark.parametrize("how", ["reset", "close", "half-close", "before any event", "in the prompt", "whole"])
def test_23_a_client_that_vanishes_frees_its_place(serve: Serve, how: str) -> None:
    expected = Engine(hash_target(vocab_size=260), ByteTokenizer()).generate("probe", SamplingParams(max_tokens=8)).text
    running = serve(slow(), scheduler={"max_running": 1, "max_queue": 2})
    for _ in range(20 if how == "reset" else 4):
        s = connect(running)
        body = {**LONG, "stream": how != "whole"}
        if how == "in the prompt":
            body["prompt"] = "x" * 5000 + str(time.monotonic())
        s.sendall(request(body))
        if how in ("reset", "close", "half-close"):
            read_events(s, 2)
        else:
            while not running.service.scheduler.stats().running:
                time.sleep(0.001)
        if how == "half-close":
            s.shutdown(socket.SHUT_WR)
        elif how == "close":
            s.close()
        else:
            reset(s)
        assert probe(running) == expected
        assert running.idle(2)
        s.close()
    stats = running.service.scheduler.stats()
    assert stats.completion_tokens < 4000  # of 4000 each


def test_23_no_threads_are_left(serve: Serve) -> None:
    running = serve(slow(), scheduler={"max_running": 2})
    probe(running)
    counts = []
    for _ in range(3):
        for _ in range(20):
            s = connect(running)
            s.sendall(request(LONG))
            reset(s)
        assert running.idle()
        probe(running)
        counts.append(threading.active_count())
    assert counts[2] <= counts[0] + 2  # the loop's pool may grow a little more, up to its bound


def test_a_client_that_vanishes_while_it_waits_for_a_place(serve: Serve) -> None:
    running = serve(slow(), scheduler={"max_running": 1, "max_queue": 2})
    first = connect(running)
    first.sendall(request(LONG))
    read_events(first, 1)
    waiting = connect(running)
    waiting.sendall(request(LONG))
    while not running.service.scheduler.stats().waiting:
        time.sleep(0.001)
    reset(waiting)
    end = time.monotonic() + 60
    while running.service.scheduler.stats().waiting:
        assert time.monotonic() < end
        time.sleep(0.001)
    assert running.service.scheduler.stats().running == 1
    reset(first)
    assert running.idle()
    text = running.get("/metrics")[1]
    assert 'request_success_total{finished_reason="cancelled"} 2.0' in text
    assert 'finished_reason="error"' not in text


def test_several_answers_of_one_client_end_together(serve: Serve) -> None:
    running = serve(slow(), scheduler={"max_running": 2})
    s = connect(running)
    s.sendall(request({**LONG, "n": 4}))
    read_events(s, 3)
    reset(s)
    assert running.idle(5)


def test_a_client_that_does_not_read_is_cut_off_in_the_end(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it does not take piles up until the sockets' buffers are full; the answer itself is over long before."""
    monkeypatch.setattr(respond, "_LAST_S", 0.2)
    target = script_target(5, [65] * 50_000, max_length=60_000)
    running = serve(Engine(target, ByteTokenizer(eos=()), draft="none"), time_limit_s=2.0)
    running.post("/tokenize", {"prompt": "a"})  # it listens
    running.server.servers[0].sockets[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)  # inherited
    s = socket.socket()
    s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    s.connect(("127.0.0.1", running.port))
    s.sendall(request({**LONG, "n": 16, "logprobs": 20, "max_tokens": 50_000}))
    time.sleep(2.1)
    assert running.idle(10)
    assert probe(running)
    s.close()


@pytest.mark.parametrize(
    "data",
    [
        b"\x00" * 200 + b"\r\n\r\n",
        b"GET\r\n\r\n",
        b"POST /v1/completions HTTP/9.9\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: -5\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
        b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"POST /v1/completions HTTP/1.1\r\n" + b"X-Long: " + b"a" * 200_000 + b"\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\xaa" * 100,
        b"POST /%zz%00/../../etc/passwd HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n",
    ],
)
def test_what_is_no_request_is_refused(serve: Serve, data: bytes) -> None:
    running = serve(Engine(hash_target(vocab_size=260), ByteTokenizer()))
    with connect(running) as s:
        try:
            s.sendall(data)
            s.shutdown(socket.SHUT_WR)
            reply = s.recv(1000)
        except OSError:  # reset, before all was sent or after
            reply = b""
        assert not reply or (reply.split()[1].startswith(b"4") and b"application/json" in reply)
    assert probe(running)
    assert running.idle()


def test_two_requests_on_one_connection(serve: Serve) -> None:
    """A stream, then another request: the first one's watcher takes nothing of the second."""
    running = serve(Engine(hash_target(vocab_size=260), ByteTokenizer()))
    with connect(running) as s:
        for _ in range(3):
            s.sendall(request({**LONG, "max_tokens": 5}))
            data = b""
            while not data.endswith(b"0\r\n\r\n"):
                data += s.recv(4096)
            assert data.startswith(b"HTTP/1.1 200")
            assert b"[DONE]" in data
    with connect(running) as s:  # both sent before the first reply
        s.sendall(request({"prompt": "a", "max_tokens": 3}) * 2)
        data = b""
        while data.count(b'"object":"text_completion"') < 2:
            part = s.recv(4096)
            assert part, data
            data += part
    assert running.idle()


def closed_within(s: socket.socket, seconds: float) -> bool:
    """Whether the server ends the connection, reading all that it sends."""
    s.settimeout(seconds)
    try:
        while s.recv(65536):
            pass
    except TimeoutError:
        return False
    except ConnectionError:
        pass
    return True


@pytest.mark.parametrize(
    "sent",
    [b"", b"POST /v1/completions HTTP/1.1\r\nHost: lo", request({"prompt": "a", "max_tokens": 1})],
    ids=["nothing", "part of a head", "nothing after a request"],
)
def test_a_connection_on_which_nothing_happens_is_ended(serve: Serve, sent: bytes) -> None:
    running = serve(Engine(hash_target(vocab_size=260), ByteTokenizer()), idle_limit_s=0.5)
    with connect(running) as s:
        s.sendall(sent)
        assert closed_within(s, 60)
    assert probe(running)


def test_a_head_that_comes_byte_by_byte_is_not_waited_for(serve: Serve) -> None:
    running = serve(Engine(hash_target(vocab_size=260), ByteTokenizer()), idle_limit_s=0.5)

    def trickle(s: socket.socket) -> None:
        for _ in range(200):
            s.sendall(b"a")
            time.sleep(0.05)

    with connect(running) as s:
        s.sendall(b"GET /health HTTP/1.1\r\nX: ")
        with pytest.raises(ConnectionError):
            trickle(s)
    assert probe(running)


def test_an_answer_that_takes_longer_than_that_is_not_cut(serve: Serve) -> None:
    """Ten steps at least, each as long as the limit; drafting, or how fast the machine is, changes nothing of that."""
    limit_s = 0.1
    running = serve(slow(before=lambda forwards: time.sleep(limit_s)), idle_limit_s=limit_s)
    body = {"prompt": "a", "max_tokens": 10, "temperature": 0, "speculative": {"draft": "none"}}
    assert running.post("/v1/completions", body)[2]["usage"]["completion_tokens"] == 10
    events = running.events("/v1/completions", body)
    assert len(events) > 10


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_takes_nothing_is_let_go(serve: Serve, stream: bool) -> None:
    """Of a stream after the time limit, of a whole answer once it is made; what was to be sent is not kept."""
    engine = Engine(hash_target(vocab_size=260, max_length=8000), ByteTokenizer(eos=()))
    running = serve(engine, idle_limit_s=0.5, time_limit_s=5.0)
    body = {"prompt": "a", "max_tokens": 4000, "temperature": 0, "logprobs": 20, "stream": stream}
    s = socket.socket()
    s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    s.connect(("127.0.0.1", running.port))
    s.sendall(request(body))
    end = time.monotonic() + 40
    while running.server.server_state.connections or time.monotonic() < end - 39.5:
        assert time.monotonic() < end
        time.sleep(0.05)
    s.close()
    assert running.idle()


def test_a_body_that_goes_wrong_after_its_refusal(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    """Nothing can be added to the reply; the connection ends, with no fault of ours in the log."""
    running = serve(Engine(hash_target(vocab_size=260), ByteTokenizer()), api_keys=("k",))
    with connect(running) as s:
        s.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Transfer-Encoding: chunked\r\n\r\nzz\r\n"
        )
        assert s.recv(100).split()[1] in (b"400", b"401")
        assert closed_within(s, 60)
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


def test_answers_that_are_cut_while_they_are_queued() -> None:
    """A shutdown or a time limit may come when only the first of them is there."""

    class Ticket:
        cancelled = False

        def cancel(self) -> None:
            self.cancelled = True

    tickets: list[Ticket] = []

    async def cut() -> None:
        nothing: Any = None
        call = Call(
            prompts=[[1]], n=3, params=SamplingParams(), speculation=None, prediction=None, templated=False,
            stream=False, include_usage=False, trace=False, token_ids=False, kind="", chunk_kind="", prefix="",
            prompt_param="", constraint_param=None, show=nothing,
        )  # fmt: skip
        answers = Answers(call)

        def submit(prompt: list[int], params: SamplingParams, **options: Any) -> Any:
            tickets.append(Ticket())
            if len(tickets) == 1:
                answers.cancel()
            return tickets[-1]

        answers.submit(submit)

    asyncio.run(cut())
    assert [ticket.cancelled for ticket in tickets] == [True] * 3
