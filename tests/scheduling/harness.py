"""Clients and engines for tests of the scheduler."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from scripted import IdTokenizer, ListTarget, hash_target

from exactspec.engine import Engine
from exactspec.params import SamplingParams
from exactspec.results import Chunk, Completion, TokenInfo
from exactspec.scheduling import Scheduler, Ticket

VOCAB = 97


class Client:
    """Takes chunks in, and checks what is true of every stream. `leave_after`: cancels once it has that many tokens;
    `break_after`: raises then."""

    def __init__(self, *, leave_after: int | None = None, break_after: int | None = None) -> None:
        self.text = ""
        self.tokens: list[TokenInfo] = []
        self.chunks = 0
        self.completion: Completion | None = None
        self.error: BaseException | None = None
        self.ticket: Ticket | None = None
        self._leave_after, self._break_after = leave_after, break_after

    def on_chunk(self, chunk: Chunk) -> None:
        assert self.completion is None, "a chunk after the last one"
        assert self.error is None
        self.chunks += 1
        self.text += chunk.text
        self.tokens += chunk.tokens
        if chunk.completion is not None:
            self.completion = chunk.completion
            assert chunk.completion.text == self.text
            assert list(chunk.completion.tokens) == self.tokens
        elif self._break_after is not None and len(self.tokens) >= self._break_after:
            raise OSError("the client is gone")
        elif self._leave_after is not None and len(self.tokens) >= self._leave_after:
            assert self.ticket is not None
            self.ticket.cancel()

    def on_error(self, error: BaseException) -> None:
        assert self.completion is None
        assert self.error is None
        self.error = error

    def submit(
        self, scheduler: Scheduler, prompt: Sequence[int] | Any, params: SamplingParams | None = None, **options: Any
    ) -> Client:
        self.ticket = scheduler.submit(prompt, params, on_chunk=self.on_chunk, on_error=self.on_error, **options)
        return self

    @property
    def ids(self) -> tuple[int, ...]:
        return tuple(info.id for info in self.tokens)


class Sized(ListTarget):
    """A `hash_target` that says what its caches take: 8 bytes a token."""

    def __init__(self, **options: Any) -> None:
        plain = hash_target(order=None, **options)
        super().__init__(plain._logits, vocab_size=plain.vocab_size, max_length=plain.max_length)

    def cache_bytes(self, tokens: int) -> int:
        return 8 * tokens


def engine(target: ListTarget | None = None, *, draft: Any = "copy", prefill_chunk: int = 16, **options: Any) -> Engine:
    return Engine(
        target or hash_target(order=None), IdTokenizer(VOCAB), draft=draft, prefill_chunk=prefill_chunk, **options
    )


def alone(prompt: Sequence[int], params: SamplingParams) -> Completion:
    """The reply of a lone plain run."""
    return engine(draft="none").generate(list(prompt), params)


def run(scheduler: Scheduler, *, steps: int = 2000) -> int:
    """Steps until nothing is left to do; how many."""
    for n in range(steps):
        if not scheduler.step_once():
            return n
    raise AssertionError(f"still busy after {steps} steps: {scheduler.stats()}")
