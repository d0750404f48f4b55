"""The tickets of one HTTP request, seen from the event loop.

Chunks come in the scheduler's thread and are handed over to the loop; the loop never waits for a step. Whoever
abandons the answers (a client that vanished, a time limit, a shutdown) cancels all tickets, which frees their places
before the next step.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol, TypeAlias

from exactspec.params import SamplingParams, Speculation
from exactspec.results import Chunk, Completion
from exactspec.scheduling import Ticket
from exactspec.server.call import Call
from exactspec.server.errors import Gone


class Submit(Protocol):
    """`Scheduler.submit`."""

    def __call__(
        self,
        prompt: list[int],
        params: SamplingParams | None = None,
        *,
        speculation: Speculation | None = None,
        prediction: Sequence[int] | None = None,
        on_chunk: Callable[[Chunk], None],
        on_error: Callable[[BaseException], None] | None = None,
        templated: bool = False,
    ) -> Ticket: ...


Event: TypeAlias = tuple[int, Chunk | BaseException]


class Answers:
    """`done` [len(call)]: completions, None where the answer still runs. Made in the event loop.

    `submit` may run in any thread; all else belongs to the loop.
    """

    def __init__(self, call: Call) -> None:
        self.call = call
        self.done: list[Completion | None] = [None] * len(call)
        self.abandoned = False
        self._cancelled = False
        self._events: asyncio.Queue[Event] = asyncio.Queue()
        self._loop = asyncio.get_running_loop()
        self._tickets: list[Ticket] = []

    def submit(self, submit: Submit) -> None:
        """Queue all answers, or none: what was queued before one was refused is cancelled. Raises what the scheduler
        raises."""
        call = self.call
        try:
            for i in range(len(call)):
                if self.abandoned:
                    break
                ticket = submit(
                    call.prompts[i // call.n],
                    replace(call.params, choice=i % call.n),
                    speculation=call.speculation,
                    prediction=call.prediction,
                    on_chunk=partial(self._hand_over, i),
                    on_error=partial(self._hand_over, i),
                    templated=call.templated,
                )
                self._tickets.append(ticket)
        except BaseException:
            self.cancel()
            raise
        if self._cancelled:  # meanwhile, when not all of them were there
            self.cancel()

    def prompt(self, index: int) -> Sequence[int]:
        """Ids that answer `index` goes on from."""
        return self._tickets[index].prompt_ids

    def _hand_over(self, index: int, value: Chunk | BaseException) -> None:
        self._loop.call_soon_threadsafe(self._events.put_nowait, (index, value))

    @property
    def running(self) -> bool:
        return any(completion is None for completion in self.done)

    async def next(self) -> tuple[int, Chunk]:
        """The next chunk of any answer. Raises the error that ended one, and `Gone`."""
        index, value = await self._events.get()
        if isinstance(value, BaseException):
            raise value
        if value.completion is not None:
            self.done[index] = value.completion
        return index, value

    def cancel(self) -> None:
        """End what still runs, and what is just being queued; the last chunks still come."""
        self._cancelled = True
        for ticket in list(self._tickets):
            ticket.cancel()

    def abandon(self) -> None:
        """The client is gone: end what runs, and wake whoever waits for it with `Gone`."""
        self.abandoned = True
        self.cancel()
        self._events.put_nowait((0, Gone()))
