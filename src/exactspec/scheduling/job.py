"""A request on its way through the scheduler: where its chunks go, and what is known of it for planning."""

from __future__ import annotations

import logging
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from exactspec.request import Request
from exactspec.results import Chunk, Completion, TokenInfo
from exactspec.scheduling.ticket import Ticket

_log = logging.getLogger(__name__)


class Job:
    """Of the worker's thread alone, once it was handed over.

    `prompt`: its ids. `arrived`, `begun`: times of the scheduler's clock. `expected`: tokens that its answer is
    expected to have.
    """

    __slots__ = (
        "_on_chunk",
        "_on_error",
        "_sent_text",
        "_sent_tokens",
        "arrived",
        "begun",
        "common",
        "deaf",
        "expected",
        "prompt",
        "request",
        "templated",
        "ticket",
    )

    def __init__(
        self,
        request: Request,
        ticket: Ticket,
        *,
        on_chunk: Callable[[Chunk], None],
        on_error: Callable[[BaseException], None] | None,
        templated: list[int] | None,
        arrived: float,
    ) -> None:
        self.request = request
        self.ticket = ticket
        self.templated = templated
        self.arrived = arrived
        self.begun = arrived
        self.expected = 0
        self.prompt: npt.NDArray[np.int64] = np.array(request.history, dtype=np.int64)
        self.common: dict[int, int] = {}  # tokens that other jobs' prompts begin with as well, by ticket id
        self.deaf = False  # its callback raised: it is not called again
        self._on_chunk = on_chunk
        self._on_error = on_error
        self._sent_text = self._sent_tokens = 0

    def send(self, tokens: list[TokenInfo]) -> None:
        """Hand on what a step emitted. A callback that raises ends the request."""
        text = self.request.take_text()
        self._sent_text += len(text)
        self._sent_tokens += len(tokens)
        self._call(self._on_chunk, Chunk(text, tuple(tokens)))

    def finish(self, done: Completion) -> None:
        """The last chunk, with the completion."""
        self._call(self._on_chunk, Chunk(done.text[self._sent_text :], done.tokens[self._sent_tokens :], done))
        self.ticket._finish(done)

    def fail(self, error: BaseException) -> None:
        """The request ended with an error. Its traceback is dropped, for it holds on to the step's caches."""
        error = error.with_traceback(None)
        if self._on_error is not None:
            self._call(self._on_error, error)
        self.ticket._finish(None, error)

    def _call(self, callback: Callable[..., None], value: object) -> None:
        if self.deaf:
            return
        try:
            callback(value)
        except BaseException:  # even SystemExit: this is not the caller's thread, and others' requests run in it
            self.deaf = True
            _log.warning("a callback of request %d failed: the request is cancelled", self.ticket.id, exc_info=True)
