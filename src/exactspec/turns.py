"""A lock that is given in the order it was asked for."""

from __future__ import annotations

from collections import deque
from threading import Lock
from types import TracebackType


class Turns:
    """First come, first served: `with turns:` for one step at a time.

    A plain `threading.Lock` goes to whoever asks next, and a thread that steps in a loop asks at once: the others
    would wait until it has finished its whole answer.
    """

    __slots__ = ("_busy", "_guard", "_queue")

    def __init__(self) -> None:
        self._guard = Lock()
        self._busy = False
        self._queue: deque[Lock] = deque()

    def __enter__(self) -> None:
        with self._guard:
            if not self._busy:
                self._busy = True
                return
            mine = Lock()
            mine.acquire()
            self._queue.append(mine)
        try:
            mine.acquire()
        except BaseException:  # Ctrl-C while waiting: leave the queue, or pass on a turn that was just given
            with self._guard:
                waiting = mine in self._queue
                if waiting:
                    self._queue.remove(mine)
            if not waiting:
                self._pass_on()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pass_on()

    def _pass_on(self) -> None:
        with self._guard:
            if self._queue:
                self._queue.popleft().release()
            else:
                self._busy = False
