"""What a caller holds of a submitted request, and why one may be refused."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from exactspec.results import Completion


class QueueFull(RuntimeError):
    """No place in the queue. `retry_after_s`: when one is expected, by how long requests took of late."""

    def __init__(self, waiting: int, retry_after_s: float) -> None:
        super().__init__(f"{waiting} requests are waiting already: try again in {retry_after_s:.0f} s")
        self.retry_after_s = retry_after_s


class Closed(RuntimeError):
    """The scheduler was closed, or broke: it takes no more requests."""


class Ticket:
    """One submitted request. Any thread may use it.

    `id`: a number of its own, counted from 1 within a scheduler. `prompt_ids`: what is answered, with ids of earlier
    replies put back where the scheduler keeps them.
    """

    __slots__ = ("_cancelled", "_completion", "_done", "_error", "_wake", "id", "prompt_ids")

    def __init__(self, number: int, wake: Callable[[], None], *, prompt_ids: Sequence[int] = ()) -> None:
        self.id = number
        self.prompt_ids = prompt_ids
        self._wake = wake
        self._cancelled = False
        self._done = threading.Event()
        self._completion: Completion | None = None
        self._error: BaseException | None = None

    @property
    def done(self) -> bool:
        """Whether the request has ended, one way or another."""
        return self._done.is_set()

    @property
    def cancelled(self) -> bool:
        """Whether `cancel` was called (the request may have ended by itself before that took effect)."""
        return self._cancelled

    def cancel(self) -> None:
        """End the request before its next step; its last chunk then carries what there was. Does nothing after the
        end."""
        if not self._done.is_set():
            self._cancelled = True
            self._wake()

    def result(self, timeout: float | None = None) -> Completion:
        """Wait for the end: the completion, or the error that ended the request. Raises TimeoutError after `timeout`
        seconds; the request then goes on. Not to be called from `on_chunk`, which the end waits for."""
        if not self._done.wait(timeout):
            raise TimeoutError(f"request {self.id} is still running after {timeout} s")
        if self._error is not None:
            raise self._error
        assert self._completion is not None
        return self._completion

    def _finish(self, completion: Completion | None, error: BaseException | None = None) -> None:
        self._completion, self._error = completion, error
        self._done.set()
