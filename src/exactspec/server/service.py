"""What the routes share: the scheduler, once it is there, and everything that runs."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Callable
from typing import Any, Literal, TypeAlias, TypeVar

from fastapi import Request

from exactspec.engine import Engine
from exactspec.scheduling import Scheduler
from exactspec.server.answers import Answers
from exactspec.server.errors import ApiError, Gone, not_serving, timed_out
from exactspec.server.metrics import ServerMetrics
from exactspec.server.settings import ServerSettings
from exactspec.server.threads import in_own_thread

T = TypeVar("T")
_SHORT = 1 << 16  # bytes of a request that is read in milliseconds
State: TypeAlias = Literal["starting", "ready", "stopping", "broken"]


class Service:
    """One served model. `state` is "starting" until `serve` hands in a scheduler that has been warmed up, "stopping"
    from `stop` on; requests are answered only in between. "broken": the scheduler's thread ended by a fault; whoever
    watches over the process has to start it again."""

    def __init__(self, settings: ServerSettings) -> None:
        self.settings = settings
        self.metrics = ServerMetrics()
        self._state: State = "starting"
        self.created = int(time.time())
        self._scheduler: Scheduler | None = None
        self._running: set[Answers] = set()
        self._long = asyncio.Semaphore(1)

    def serve(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self.metrics.watch(scheduler.stats)
        if self._state == "starting":
            self._state = "ready"

    @property
    def state(self) -> State:
        if self._state == "ready" and self._scheduler is not None and self._scheduler.broken:
            return "broken"
        return self._state

    @property
    def scheduler(self) -> Scheduler:
        """Raises `ApiError` (503) while there is none to give requests to."""
        if self._scheduler is None or self.state != "ready":
            raise not_serving(self.state)
        return self._scheduler

    @property
    def engine(self) -> Engine:
        return self.scheduler.engine

    @property
    def tokenizer(self) -> Any:
        return self.engine.tokenizer

    @property
    def fingerprint(self) -> str:
        """Short for the identity: what equal bits are promised for."""
        return "es_" + hashlib.sha256(self.engine.identity.encode()).hexdigest()[:12]

    def check_model(self, name: str | None) -> None:
        """Raises `ApiError` (404) if a request asks for another model. Without a name it gets this one."""
        if name is not None and name != self.settings.name:
            raise ApiError(
                f"The model '{name[:100]}' does not exist; this server has '{self.settings.name}'",
                status=404,
                param="model",
                code="model_not_found",
            )

    async def read(self, work: Callable[[], T], request: Request) -> T:
        """`work`, which templates and encodes what `request` holds, outside the event loop. Long requests are read one
        at a time: however many there are, a thread is free for the short ones. Raises `Gone` if the client goes away
        while its request waits for the others, `ApiError` (504) after the time limit."""
        if len(await request.body()) <= _SHORT:
            return await asyncio.to_thread(work)
        await self._turn(request)
        try:
            return await in_own_thread(work)
        finally:
            self._long.release()

    async def _turn(self, request: Request) -> None:
        """Wait until a long request may be read; the next one may when `_long` is released."""
        turn: asyncio.Task[Any] = asyncio.create_task(self._long.acquire())
        left: asyncio.Task[Any] = asyncio.create_task(_left(request))
        came = False
        try:
            limit_s = self.settings.time_limit_s
            await asyncio.wait({turn, left}, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
            if left.done():
                raise Gone
            if not turn.done():
                raise timed_out(limit_s)
            came = True
        finally:
            left.cancel()
            if not came and not turn.cancel():  # it was over already: the turn came
                self._long.release()

    def begin(self, answers: Answers) -> None:
        self._running.add(answers)

    def end(self, answers: Answers) -> None:
        self._running.discard(answers)
        answers.cancel()

    def stop(self) -> None:
        """Take no more requests; those that run go on."""
        self._state = "stopping"

    def cancel_all(self) -> None:
        """End what runs; each request gets its last chunk. In the event loop."""
        for answers in list(self._running):
            answers.cancel()

    def close(self) -> None:
        """After the loop has ended: end the worker."""
        self._state = "stopping"
        if self._scheduler is not None:
            self._scheduler.close()


async def _left(request: Request) -> None:
    """Returns when the client of a request that has come is gone."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
