"""A server for each test; see tests/served.py."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from served import Running, Serve, start_server

from exactspec.engine import Engine


@pytest.fixture
def serve() -> Iterator[Serve]:
    """``serve(engine, scheduler={...}, **settings)``; all are ended after the test."""
    stops: list[Callable[[], None]] = []

    def start(engine: Engine, *, scheduler: dict[str, Any] | None = None, **settings: Any) -> Running:
        running, stop = start_server(engine, scheduler or {}, settings)
        stops.append(stop)
        return running

    yield start
    for stop in stops:
        stop()
