"""Runs a `Call` and answers with it, whole or as a stream of server-sent events.

A stream's status is sent with its first chunk: whatever goes wrong before that is an ordinary error reply. While an
answer is made, the connection is watched; when the client goes away, in whatever way, the answers are abandoned.
"""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
import time
from collections.abc import AsyncIterator, Callable
from functools import partial
from time import perf_counter
from typing import Any

from fastapi import Request
from fastapi.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from exactspec.constraint import Unanswerable, Unusable
from exactspec.results import Chunk, Completion
from exactspec.scheduling import Closed, QueueFull
from exactspec.server import usage as counts
from exactspec.server.answers import Answers
from exactspec.server.call import Call, Choice, Json
from exactspec.server.chat import piece
from exactspec.server.errors import ApiError, Gone, failed, invalid, not_serving, queue_full, timed_out
from exactspec.server.service import Service
from exactspec.server.trace import Tracer

_log = logging.getLogger(__name__)
_LAST_S = 5.0  # after the time limit, for the last events to be taken
_SAMPLED = ("logit_bias", "stop_token_ids", "prompt")  # checked against the vocabulary, by the engine


async def respond(service: Service, make: Callable[[], Call], request: Request) -> Response:
    """`make`: validates the request and templates its prompts; runs in a thread, for both may take long.

    Raises `ApiError` for what goes wrong before the first token, `Gone` if the client goes away before that."""
    start = perf_counter()
    deadline = asyncio.get_running_loop().time() + service.settings.time_limit_s
    call = await service.read(make, request)
    run = _Run(service, call, request, start, deadline)
    service.begin(run.answers)
    try:
        await run.submit()
        if not call.stream:
            reply = await run.whole()
        else:
            reply = EventStream(await run.events(), run.close, deadline=run.deadline + _LAST_S)
            run = None  # type: ignore[assignment]  # the stream closes it
        return reply
    finally:
        if run is not None:
            run.close()


class EventStream(Response):
    """Sends events as they come; `close` is called at the end, however it comes. `deadline`, of the loop's clock: for a
    client that does not read."""

    media_type = "text/event-stream"

    def __init__(self, events: AsyncIterator[bytes], close: Callable[[], None], *, deadline: float) -> None:
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._events = events
        self._close = close
        self._deadline = deadline

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            async for event in self._events:
                async with asyncio.timeout_at(self._deadline):
                    await send({"type": "http.response.body", "body": event, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        except (Gone, OSError):  # a TimeoutError is an OSError
            pass
        finally:
            self._close()


class _Run:
    """One call on its way."""

    def __init__(self, service: Service, call: Call, request: Request, start: float, deadline: float) -> None:
        self.answers = Answers(call)
        self._service = service
        self._call = call
        self._request = request
        self._start = start
        self.deadline = deadline
        self._late = False
        self._taken = False  # by the scheduler
        self._choices: list[Choice] = [call.show(i) for i in range(len(call))]
        self._tracers: dict[int, Tracer] = {}
        self._clock = service.metrics.clock(len(call), start)
        self._id = f"{call.prefix}-{secrets.token_hex(12)}"
        self._created = int(time.time())
        self._fingerprint = service.fingerprint
        self._watcher = asyncio.create_task(self._watch())

    async def _watch(self) -> None:
        """Ends the answers when the connection does."""
        while (await self._request.receive())["type"] != "http.disconnect":
            pass
        self.answers.abandon()

    async def submit(self) -> None:
        try:
            await asyncio.to_thread(self.answers.submit, self._service.scheduler.submit)
            self._taken = True
        except QueueFull as error:
            raise queue_full(error.retry_after_s) from None
        except Closed:
            state = self._service.state
            raise not_serving(state if state == "broken" else "stopping") from None
        except Unusable as error:
            raise ApiError(str(error), param=self._call.constraint_param) from None
        except ValueError as error:
            raise invalid(error, _SAMPLED) from None

    def close(self) -> None:
        self._watcher.cancel()
        self._service.end(self.answers)
        done = [c for c in self.answers.done if c is not None]
        self._request.state.completions = done
        if self._taken:
            lost = "cancelled" if self.answers.abandoned else "error"
            self._service.metrics.ended(done, self._start, lost={lost: len(self._call) - len(done)})

    async def _next(self) -> tuple[int, Chunk]:
        """The next chunk; past the time limit, all answers are cut and their last chunks come."""
        try:
            async with asyncio.timeout_at(None if self._late else self.deadline):
                index, chunk = await self.answers.next()
        except TimeoutError:
            self._late = True
            self.answers.cancel()
            index, chunk = await self.answers.next()
        self._clock.chunk(index, len(chunk.tokens))
        return index, chunk

    def _reason(self, completion: Completion) -> str:
        if completion.finish_reason != "cancelled":
            return completion.finish_reason
        if not self._late:
            raise not_serving("stopping")
        if not any(c is not None and c.token_ids for c in self.answers.done):
            raise timed_out(self._service.settings.time_limit_s)
        return "length"

    def _errors(self, error: BaseException) -> ApiError:
        """What a client is told of an answer that ended with an error."""
        if isinstance(error, ApiError):
            return error
        if isinstance(error, Unanswerable):
            return invalid(error)
        _log.error("a request failed", exc_info=error)
        return failed()

    # -- whole -----------------------------------------------------------------------------------------------------

    async def whole(self) -> Response:
        try:
            while self.answers.running:
                await self._next()
            choices = [
                {
                    "index": i,
                    **self._choices[i].whole(completion, self._reason(completion)),
                    **({"token_ids": list(completion.token_ids)} if self._call.token_ids else {}),
                }
                for i, completion in enumerate(self.answers.done)
                if completion is not None
            ]
        except Exception as error:
            if isinstance(error, Gone):
                raise
            raise self._errors(error) from None
        body = self._frame(self._call.kind, choices)
        body["usage"] = self._usage()
        body["exactspec"] = self._drafting()
        return JSONResponse(body)

    # -- stream ----------------------------------------------------------------------------------------------------

    async def events(self) -> AsyncIterator[bytes]:
        """The stream, once its first chunk is there. Raises `ApiError` for what goes wrong before."""
        try:
            first = await self._next()
            if first[1].completion is not None:
                self._reason(first[1].completion)
        except Exception as error:
            if isinstance(error, Gone):
                raise
            raise self._errors(error) from None
        return self._events(first)

    async def _events(self, first: tuple[int, Chunk]) -> AsyncIterator[bytes]:
        begun = [False] * len(self._call)
        index, chunk = first
        try:
            while True:
                shown = [] if begun[index] else self._choices[index].begin()
                begun[index] = True
                for choice in shown + self._show(index, chunk):
                    yield self._event([{"index": index, **choice}])
                if not self.answers.running:
                    break
                index, chunk = await self._next()
        except Gone:
            raise
        except Exception as error:
            yield _data(self._errors(error).body())
            return
        if self._call.include_usage:
            yield _data(self._frame(self._call.chunk_kind, []) | {"usage": self._usage()})
        yield b"data: [DONE]\n\n"

    def _show(self, index: int, chunk: Chunk) -> list[Json]:
        shown = self._choices[index].chunk(chunk)
        if self._call.trace and chunk.tokens:
            shown = shown or self._choices[index].blank()
            shown[0]["exactspec"] = self._tracer(index).show(chunk.tokens)
        if self._call.token_ids and chunk.tokens:
            shown = shown or self._choices[index].blank()
            shown[0]["token_ids"] = [token.id for token in chunk.tokens]
        if chunk.completion is not None:
            shown += self._choices[index].end(chunk.completion, self._reason(chunk.completion))
        return shown

    def _tracer(self, index: int) -> Tracer:
        if index not in self._tracers:
            self._tracers[index] = Tracer(partial(piece, self._service), self.answers.prompt(index))
        return self._tracers[index]

    def _event(self, choices: list[Json]) -> bytes:
        frame = self._frame(self._call.chunk_kind, choices)
        if self._call.include_usage:
            frame["usage"] = None
        if not self.answers.running and choices[0].get("finish_reason") is not None:
            frame["exactspec"] = self._drafting()
        return _data(frame)

    def _frame(self, kind: str, choices: list[Json]) -> dict[str, Any]:
        return {
            "id": self._id,
            "object": kind,
            "created": self._created,
            "model": self._service.settings.name,
            "system_fingerprint": self._fingerprint,
            "choices": choices,
        }

    def _usage(self) -> Json:
        done = [c for c in self.answers.done if c is not None]
        return counts.usage(self._call, done)

    def _drafting(self) -> Json:
        done = [c for c in self.answers.done if c is not None]
        return counts.drafting(done) | ({"time_limit_reached": True} if self._late else {})


def _data(value: Json) -> bytes:
    return b"data: " + json.dumps(value, separators=(",", ":"), allow_nan=False).encode() + b"\n\n"
