"""One connection: uvicorn's, with an end to those on which nothing happens, and our words for what is no request.

uvicorn waits for ever for the first request of a connection, for the rest of a head that has begun, and, when it closes
a connection, for a client to read what is still to be sent. A thousand such clients would use up what the process may
have open.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from exactspec.server.errors import ApiError


class Connection(H11Protocol):
    """Looked at once every `timeout_keep_alive` seconds: where no request has begun since the last time, or nothing of
    an ended one was taken by the client, the connection is ended."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._seen: tuple[Any, ...] = ()
        self._look_later()

    def connection_lost(self, exc: Exception | None) -> None:
        self._next_look.cancel()
        super().connection_lost(exc)

    def _look_later(self) -> None:
        self._next_look = self.loop.call_later(self.timeout_keep_alive, self._look)

    def _look(self) -> None:
        cycle = self.cycle
        between = cycle is None or cycle.response_complete or self.transport.is_closing()
        seen = (cycle, self.transport.get_write_buffer_size()) if between else ()
        if seen and seen == self._seen:
            self.transport.abort()
            return
        self._seen = seen
        self._look_later()

    def send_400_response(self, msg: str) -> None:
        """In the shape of all errors; to a reply that has begun, nothing can be added."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            body = json.dumps(ApiError("the request is not valid HTTP", code="invalid_http").body()).encode()
            headers = {"content-type": "application/json", "content-length": f"{len(body)}", "connection": "close"}
            reply = h11.Response(status_code=400, headers=list(headers.items()), reason=b"Bad Request")
            for event in (reply, h11.Data(data=body), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event))
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True  # what the request's own task has to say comes too late
            self.cycle.message_event.set()
        self.transport.close()
