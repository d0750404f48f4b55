"""The server's process: listens at once, loads the model beside that, ends in an orderly way.

/health answers from the start and says when the server is ready. SIGTERM or Ctrl-C: no new connections, requests that
run may go on for the grace time, then they are cut and get their last event. A second signal ends at once.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from collections.abc import Callable
from types import FrameType

import uvicorn

from exactspec.scheduling import Scheduler
from exactspec.server.app import create_app
from exactspec.server.connections import Connection
from exactspec.server.logs import FIELDS
from exactspec.server.service import Service
from exactspec.server.settings import ServerSettings
from exactspec.server.warm import warm_up

_log = logging.getLogger(__name__)
_LAST_S = 10.0
"""After the grace time: for the last events to be sent."""


class Server(uvicorn.Server):
    """uvicorn's, with our way of ending."""

    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self._service = service
        self._loop: asyncio.AbstractEventLoop | None = None

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        await super().serve(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """A signal. uvicorn's own would raise it again at the end, and the exit code would be the signal's."""
        if self.should_exit:
            self.force_exit = True
        self.stop()

    def stop(self) -> None:
        """From any thread: end after the grace time at the latest."""
        self._service.stop()
        self.should_exit = True
        loop = self._loop
        if loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(self._end)

    def _end(self) -> None:
        loop = asyncio.get_running_loop()
        loop.call_later(0.0 if self.force_exit else self._service.settings.grace_s, self._service.cancel_all)


def make_server(service: Service) -> Server:
    """Nothing listens yet."""
    settings = service.settings
    config = uvicorn.Config(
        create_app(service),
        host=settings.host,
        port=settings.port,
        log_config=None,
        access_log=False,
        lifespan="off",
        ws="none",
        server_header=False,
        http=Connection,
        timeout_keep_alive=settings.idle_limit_s,  # type: ignore[arg-type]  # any number of seconds will do
        timeout_graceful_shutdown=int(settings.grace_s + _LAST_S),
        h11_max_incomplete_event_size=64 * 1024,
    )
    return Server(config, service)


def serve(
    settings: ServerSettings,
    load: Callable[[], Scheduler],
    *,
    bound: Callable[[str], None],
    ready: Callable[[], None],
) -> None:
    """Listen until a signal comes. `load` opens the model in a thread; `bound` is told the address, `ready` when
    requests are taken. Raises OSError if the address cannot be had, and whatever `load` raises."""
    with listen(settings.host, settings.port) as listener:
        service = Service(settings)
        server = make_server(service)
        errors: list[BaseException] = []

        def work() -> None:
            try:
                scheduler = load()
                warm_up(scheduler.engine)
                service.serve(scheduler)
                ready()
                _log.info("ready", extra={FIELDS: {"model": settings.name, "identity": scheduler.engine.identity}})
            except BaseException as error:
                errors.append(error)
                server.stop()

        host, port = listener.getsockname()[:2]
        bound(f"http://{f'[{host}]' if ':' in host else host}:{port}")
        threading.Thread(target=work, name="exactspec-load", daemon=True).start()
        try:
            server.run(sockets=[listener])
        finally:
            service.close()
        if errors:
            raise errors[0]


def listen(host: str, port: int) -> socket.socket:
    """A bound socket. Raises OSError, with what to do, if the address cannot be had."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        listener = socket.socket(family, socket.SOCK_STREAM)
    except OSError as error:
        raise OSError(f"cannot listen on {host}: {error.strerror or error}; give another --host") from None
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(2048)  # whoever comes before the loop runs waits instead of being refused
    except OSError as error:
        listener.close()
        raise OSError(f"cannot listen on {host}:{port}: {error.strerror or error}; give another --port") from None
    return listener
