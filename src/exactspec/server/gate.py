"""What every request passes: an id, the name it calls, the API key, the kind, size and time of its body; and the line
in the log at its end.

Plain ASGI, around the application. The body is read here, whole and within limits, so that what comes after it on the
connection can only be the client going away.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import re
import secrets
from collections.abc import Sequence
from time import perf_counter
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from exactspec.server.errors import ApiError
from exactspec.server.hosts import Hosts, name_in
from exactspec.server.logs import FIELDS
from exactspec.server.service import Service

_log = logging.getLogger(__name__)
_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}")
_JSON = re.compile(rb"application/([a-z0-9.-]+\+)?json", re.IGNORECASE)
OPEN_PATHS = ("/health", "/v1/", "/metrics", "/tokenize", "/detokenize", "/openapi.json")
"""Paths of the API; of them, only the first is open without a key. All others are the web page's."""
_DRAIN = 8  # times the limit that is read, and thrown away, so that the client gets to read the refusal


class Gate:
    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app = app
        self._service = service
        self._keys = [key.encode() for key in service.settings.api_keys]
        self._hosts = Hosts(service.settings.host, service.settings.allowed_hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start = perf_counter()
        headers = dict(scope["headers"])
        given = headers.get(b"x-request-id", b"")
        request_id = given if _ID.fullmatch(given) else b"req_" + secrets.token_hex(12).encode()
        state = scope.setdefault("state", {})
        state["request_id"] = request_id.decode()
        status = 0

        async def tell(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), (b"x-request-id", request_id)]
            await send(message)

        body = b""
        try:
            self._check_host(headers)
            self._authorize(scope, headers)
            _check_kind(scope, headers)
            read = await self._body(headers, receive)
            if read is None:
                status = 499
                return
            body = read
            await self._app(scope, _replay(body, receive), tell)
        except ApiError as error:
            response = error.response()
            response.headers["connection"] = "close"
            await response(scope, receive, tell)
        finally:
            self._note(scope, state, status, perf_counter() - start, body)

    def _check_host(self, headers: dict[bytes, bytes]) -> None:
        """Every browser sends a Host; HTTP/1.0, in which it may be missing, is no browser's."""
        given = headers.get(b"host")
        if given is None or self._hosts.allow(given.decode("latin-1")):
            return
        name = name_in(given.decode("latin-1"))
        message = "the request's Host header names no host: send the server's address in it"
        if name is not None:
            name = name[:100]
            message = f"this server is not called {name}: use its address, or start it with --allowed-host {name}"
        raise ApiError(message, status=421, code="host_not_allowed")

    def _authorize(self, scope: Scope, headers: dict[bytes, bytes]) -> None:
        path = scope["path"]
        if not self._keys or path == OPEN_PATHS[0] or not path.startswith(OPEN_PATHS) or scope["method"] == "OPTIONS":
            return
        kind, _, given = headers.get(b"authorization", b"").partition(b" ")
        # Each key is compared, and in constant time: how long this takes says nothing about them.
        right = [hmac.compare_digest(given.strip(), key) for key in self._keys]
        if kind.lower() != b"bearer" or not any(right):
            raise ApiError(
                "Incorrect API key provided: send it as 'Authorization: Bearer KEY'",
                status=401,
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )

    async def _body(self, headers: dict[bytes, bytes], receive: Receive) -> bytes | None:
        """The body; None if the client went away before its end. Raises `ApiError` (413, 408)."""
        limit = self._service.settings.max_body_bytes
        parts: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(self._service.settings.body_limit_s):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        return None
                    part = message.get("body", b"")
                    size += len(part)
                    if size <= limit:
                        parts.append(part)
                    else:
                        parts.clear()
                    if not message.get("more_body", False):
                        break
                    if size > _DRAIN * limit or _stated(headers) > _DRAIN * limit:
                        break
        except TimeoutError:
            raise ApiError("the request's body did not arrive in time", status=408, code="timeout") from None
        if size > limit:
            raise ApiError(
                f"the request's body has more than {limit} bytes", status=413, code="request_too_large"
            ) from None
        return b"".join(parts)

    def _note(self, scope: Scope, state: dict[str, Any], status: int, seconds: float, body: bytes) -> None:
        route = scope.get("route")
        path = getattr(route, "path", None) or "other"
        self._service.metrics.http(path, status)
        fields = {
            "request_id": state["request_id"],
            "method": scope["method"],
            "path": scope["path"][:200],
            "status": status,
            "seconds": round(seconds, 4),
        }
        done: Sequence[Any] = state.get("completions", ())
        if done:
            fields |= {
                "prompt_tokens": done[0].metrics.prompt_tokens,
                "cached_tokens": done[0].metrics.cached_tokens,
                "completion_tokens": sum(c.metrics.completion_tokens for c in done),
                "num_steps": sum(c.metrics.num_steps for c in done),
                "finish_reasons": [c.finish_reason for c in done],
            }
        if self._service.settings.log_prompts:
            fields |= {"body": body.decode("utf-8", "replace"), "texts": [c.text for c in done]}
        level = logging.ERROR if status >= 500 and status != 503 else logging.INFO
        _log.log(level, "request", extra={FIELDS: fields})


def _check_kind(scope: Scope, headers: dict[bytes, bytes]) -> None:
    """A page of another site may send other kinds, or none, without asking; for JSON its browser must ask first."""
    kind = headers.get(b"content-type", b"").partition(b";")[0].strip()
    if scope["method"] == "POST" and _JSON.fullmatch(kind) is None:
        raise ApiError(
            "the request's body must be JSON: send it with the header 'Content-Type: application/json'",
            status=415,
            code="unsupported_media_type",
        )


def _stated(headers: dict[bytes, bytes]) -> int:
    length = headers.get(b"content-length", b"")
    return int(length) if length.isdigit() and len(length) < 19 else 0


def _replay(body: bytes, receive: Receive) -> Receive:
    """The body as one message, then whatever the connection says."""
    given = False

    async def replay() -> Message:
        nonlocal given
        if not given:
            given = True
            return {"type": "http.request", "body": body, "more_body": False}
        return await receive()

    return replay
