"""What a page of another site can make a browser send: names that lead here, and requests that need no permission."""

from __future__ import annotations

import http.client
import json
from typing import Any

import pytest
from scripted import ByteTokenizer, hash_target
from served import Running, Serve

from exactspec.engine import Engine
from exactspec.server.hosts import Hosts


def noise() -> Engine:
    return Engine(hash_target(vocab_size=260), ByteTokenizer())


def send(running: Running, method: str, path: str, body: bytes = b"", **headers: str) -> tuple[int, Any]:
    """As a browser would, with these headers alone."""
    connection = http.client.HTTPConnection("127.0.0.1", running.port, timeout=30)
    connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
    for name, value in {"Content-Length": str(len(body)), **headers}.items():
        connection.putheader(name.replace("_", "-"), value)
    connection.endheaders(body)
    response = connection.getresponse()
    text = response.read()
    connection.close()
    return response.status, json.loads(text) if "json" in (response.getheader("content-type") or "") else text


@pytest.mark.parametrize(
    ("bound", "allowed", "accepted", "refused"),
    [
        (
            "127.0.0.1",
            (),
            (
                "localhost", "LocalHost:80", "localhost.", "a.localhost:1", "127.0.0.1", "127.0.0.1:8000",
                "127.8.9.1", "[::1]", "[::1]:8000", "[::ffff:127.0.0.1]",
            ),
            (
                "evil.example", "evil.example:8000", "localhost.evil.example", "127.0.0.1.evil.example", "10.0.0.1",
                "128.0.0.1", "[::2]", "::1", "[::1", "localhost:8000:1", "localhost:x", "notlocalhost", "", ":80",
                "localhost@evil.example", "127.0.0.1/evil", "\xff",
            ),
        ),
        ("localhost", (), ("localhost:1",), ("evil.example",)),
        ("::1", (), ("[::1]:1",), ("evil.example",)),
        ("127.0.0.1", ("my.box", "10.0.0.7"), ("my.box:8000", "MY.BOX.", "10.0.0.7", "localhost"), ("x.my.box",)),
        ("0.0.0.0", (), ("evil.example", "10.0.0.1"), ()),
        ("::", (), ("evil.example",), ()),
        ("10.0.0.1", ("my.box",), ("my.box", "10.0.0.1:8000", "localhost"), ("evil.example", "10.0.0.2")),
    ],
)  # fmt: skip
def test_names_that_are_taken(
    bound: str, allowed: tuple[str, ...], accepted: tuple[str, ...], refused: tuple[str, ...]
) -> None:
    hosts = Hosts(bound, allowed)
    assert [host for host in accepted if not hosts.allow(host)] == []
    assert [host for host in refused if hosts.allow(host)] == []


def test_a_name_that_was_made_to_lead_here_is_refused(serve: Serve) -> None:
    running = serve(noise(), allowed_hosts=("my.box",))
    for method, path in (("GET", "/"), ("GET", "/health"), ("GET", "/v1/models"), ("POST", "/v1/completions")):
        status, reply = send(running, method, path, b"{}", Host="evil.example:8000", Content_Type="application/json")
        assert (status, reply["error"]["code"]) == (421, "host_not_allowed")
        assert "--allowed-host evil.example" in reply["error"]["message"]
    for name in ("localhost:1", "my.box"):
        assert send(running, "GET", "/health", Host=name)[0] == 200
    odd = send(running, "GET", "/health", Host="a\xff<b>")
    assert (odd[0], odd[1]["error"]["code"]) == (421, "host_not_allowed")
    assert running.idle()


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize"])
@pytest.mark.parametrize(
    "kind", [None, "", "text/plain", "text/plain;charset=UTF-8", "application/x-www-form-urlencoded", "json"]
)
def test_a_body_that_a_page_may_send_unasked_is_refused(serve: Serve, path: str, kind: str | None) -> None:
    running = serve(noise())
    body = json.dumps({"prompt": "a", "messages": [{"role": "user", "content": "a"}], "tokens": [1]}).encode()
    headers = {} if kind is None else {"Content_Type": kind}
    status, reply = send(running, "POST", path, body, Host="localhost", Origin="http://evil.example", **headers)
    assert (status, reply["error"]["code"]) == (415, "unsupported_media_type")
    assert "Content-Type: application/json" in reply["error"]["message"]
    assert not running.service.scheduler.stats().steps


def test_json_by_its_other_names(serve: Serve) -> None:
    running = serve(noise())
    for kind in ("application/json; charset=utf-8", "Application/JSON", "application/vnd.api+json"):
        assert send(running, "POST", "/tokenize", b'{"prompt": "a"}', Host="localhost", Content_Type=kind)[0] == 200
