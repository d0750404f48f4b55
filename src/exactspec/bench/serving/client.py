"""One request over a connection of its own, and when its tokens came.

Events are kept as bytes with their times while they come, and parsed when the answer has ended: a client takes as
little of the machine as it can while a server works on it.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from exactspec.bench.case import Case
from exactspec.bench.peers.error import PeerError
from exactspec.bench.serving.dialects import Dialect

TIMEOUT_S = 600.0
UNSEEN = -1
"""Stands for a token that the server counted, and whose id its stream did not carry."""
_READ = 1 << 16
_DONE = "[DONE]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """One answer. `sent`: when the request went out. `arrivals`: (time, number of tokens) of every event with tokens;
    all times in seconds of one clock. `notes`: what the server told of it."""

    token_ids: tuple[int, ...]
    sent: float
    arrivals: tuple[tuple[float, int], ...]
    notes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def first_token_s(self) -> float:
        """From sending the request to its first token. Raises ValueError on an answer without tokens."""
        if not self.arrivals:
            raise ValueError("an answer without tokens has no first one")
        return self.arrivals[0][0] - self.sent

    @property
    def gaps_s(self) -> list[float]:
        """Between events that follow each other: tokens of one event share its time."""
        return [b - a for (a, _), (b, _) in zip(self.arrivals, self.arrivals[1:], strict=False)]

    @property
    def s_per_token(self) -> float:
        """After the first event, as a client sees it; 0 if nothing followed."""
        rest = len(self.token_ids) - self.arrivals[0][1] if self.arrivals else 0
        return (self.arrivals[-1][0] - self.arrivals[0][0]) / rest if rest else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """Asks one server in one dialect. `port`: on 127.0.0.1."""

    port: int
    dialect: Dialect
    clock: Callable[[], float] = perf_counter

    def ask(self, case: Case) -> Reply:
        """The whole answer. Raises PeerError if the server refuses, fails, or breaks the stream off."""
        sent, events = self.events(self.dialect.path, self.dialect.body(case))
        ids: list[int] = []
        arrivals: list[tuple[float, int]] = []
        notes: dict[str, Any] = {}
        for time, event in events:
            found = self.dialect.ids(event)
            if found:
                arrivals.append((time, len(found)))
                ids += found
            notes |= self.dialect.notes(event)
        if arrivals and (more := self.dialect.unseen(notes, len(ids))):
            ids += [UNSEEN] * more
            arrivals[-1] = (arrivals[-1][0], arrivals[-1][1] + more)
        return Reply(token_ids=tuple(ids), sent=sent, arrivals=tuple(arrivals), notes=notes)

    def events(self, path: str, body: Mapping[str, Any]) -> tuple[float, list[tuple[float, dict[str, Any]]]]:
        """When the request went out, and the (time, event) of its stream. Raises PeerError as `ask` does."""
        data = json.dumps(body).encode()
        sent = self.clock()
        parts: list[tuple[float, bytes]] = []
        try:
            with closing(post(self.port, path, data)) as response:
                while part := response.read1(_READ):
                    parts.append((self.clock(), part))
        except (OSError, http.client.HTTPException) as error:
            raise PeerError(f"the server at port {self.port} broke off: {error or type(error).__name__}") from None
        return sent, list(timed_events(parts))


def post(port: int, path: str, body: bytes, *, timeout: float = TIMEOUT_S) -> http.client.HTTPResponse:
    """Send a JSON body; the response, once its status is there. The connection ends with it.

    Raises PeerError on another status than 200, OSError if there is no connection.
    """
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    connection.request("POST", path, body, {"Content-Type": "application/json", "Connection": "close"})
    response = connection.getresponse()
    if response.status != 200:
        said = response.read(2000).decode(errors="replace")
        response.close()
        raise PeerError(f"the server refused a request with status {response.status}: {' '.join(said.split())[:300]}")
    return response


def timed_events(parts: Iterable[tuple[float, bytes]]) -> Iterator[tuple[float, dict[str, Any]]]:
    """(time, event) of a stream of server-sent events that came in pieces: an event has come when its end has."""
    left = b""
    for time, data in parts:
        *whole, left = (left + data).replace(b"\r\n", b"\n").split(b"\n\n")
        for block in whole:
            text = "\n".join(
                line.removeprefix("data:").strip()
                for line in block.decode().splitlines()
                if line.startswith(("data:", "error:"))
            )
            if text and text != _DONE:
                yield time, json.loads(text.removeprefix("error:"))
