"""A server on a free port, in a thread of the test's process, over a tiny engine."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import openai

from exactspec.drafters.compiling import prepare
from exactspec.engine import Engine
from exactspec.scheduling import Scheduler
from exactspec.server.run import Server, listen, make_server
from exactspec.server.service import Service
from exactspec.server.settings import ServerSettings

MODEL = "tiny"


@dataclass(frozen=True, slots=True)
class Running:
    """A server that takes requests. `port`: on 127.0.0.1."""

    port: int
    service: Service
    server: Server

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def post(self, path: str, body: Any, **headers: str) -> tuple[int, dict[str, str], Any]:
        """Status, headers (lower case) and the body, parsed where it is JSON."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        connection.request("POST", path, data, {"Content-Type": "application/json", **headers})
        response = connection.getresponse()
        text = response.read()
        connection.close()
        found = {name.lower(): value for name, value in response.getheaders()}
        return response.status, found, json.loads(text) if "json" in found.get("content-type", "") else text.decode()

    def get(self, path: str, **headers: str) -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        connection.request("GET", path, headers=headers)
        response = connection.getresponse()
        text = response.read().decode()
        connection.close()
        return response.status, text

    def events(self, path: str, body: dict[str, Any]) -> list[Any]:
        """The events of a stream, the last being "[DONE]"; each "data: ..." on its own."""
        status, headers, text = self.post(path, {**body, "stream": True})
        assert status == 200, text
        assert headers["content-type"].startswith("text/event-stream")
        datas = [block.removeprefix("data: ") for block in text.split("\n\n") if block]
        return [d if d == "[DONE]" else json.loads(d) for d in datas]

    def client(self, key: str = "none", **options: Any) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key=key, max_retries=0, timeout=30, **options)

    def idle(self, seconds: float = 10) -> bool:
        """Whether, within that time, nothing runs or waits any more."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            stats = self.service.scheduler.stats()
            if not stats.running and not stats.waiting and not self.service._running:
                return True
            time.sleep(0.01)
        return False


Serve = Callable[..., Running]
"""``serve(engine, scheduler={...}, **settings)``"""


def start_server(
    engine: Engine, scheduler: dict[str, Any], settings: dict[str, Any]
) -> tuple[Running, Callable[[], None]]:
    prepare("auto")  # as the command does: no request waits while a drafter is compiled, and runs out of its time
    listener = listen("127.0.0.1", 0)
    service = Service(ServerSettings(**{"name": MODEL, "grace_s": 0.0, **settings}))
    service.serve(Scheduler(engine, **scheduler))
    server = make_server(service)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    running = Running(listener.getsockname()[1], service, server)

    def stop() -> None:
        server.stop()
        thread.join(60)
        service.close()
        listener.close()
        assert not thread.is_alive()

    return running, stop
