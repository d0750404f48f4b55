"""A running answer as an iterator of chunks."""

from __future__ import annotations

from collections.abc import Callable, Generator
from types import TracebackType
from typing import TypeAlias

from exactspec.request import Request
from exactspec.results import Chunk, Completion, TokenInfo

Progress: TypeAlias = Callable[[int, int], None]
"""Called between prompt chunks with (prompt tokens done, prompt tokens in all); may raise to cancel."""


class Stream(Generator[Chunk, None, None]):
    """Yields a `Chunk` per step; the last one carries the completion.

    Nothing runs, and no lock is held, between two chunks: an abandoned stream costs its memory only. One thread
    iterates; any thread (or a signal handler) may call `cancel`.

    An exception in a step, Ctrl-C included, ends the request as "cancelled" and is raised; the engine, the session
    and `completion` stay usable, and `throw` or `next` still give the last chunk. Ctrl-C between two chunks can be
    handed in with ``throw(KeyboardInterrupt())``, which ends the request and returns the last chunk.
    """

    def __init__(
        self,
        request: Request,
        *,
        advance: Callable[[Request], list[TokenInfo]],
        on_end: Callable[[Request, Completion], None],
        progress: Progress | None = None,
    ) -> None:
        self._request = request
        self._advance = advance
        self._on_end = on_end
        self._progress = progress
        self._cancelled = False
        self._over = False  # the last chunk was given, or the stream was closed
        self._sent_text = self._sent_tokens = 0
        self._completion: Completion | None = None

    @property
    def completion(self) -> Completion | None:
        """The answer once the stream has ended or was closed (then: what there was so far); None while it runs."""
        return self._completion

    def result(self) -> Completion:
        """Run to the end and return the completion."""
        for _ in self:
            pass
        assert self._completion is not None
        return self._completion

    def cancel(self) -> None:
        """Ask the stream to end before its next step or prompt chunk; its last chunk then carries the completion."""
        self._cancelled = True

    def close(self) -> None:
        """End the request now, between two chunks; `completion` holds what there was. Does nothing after the end."""
        self._over = True
        if self._completion is None:
            self._request.cancel()
            self._end()

    def __next__(self) -> Chunk:
        return self.send(None)

    def send(self, value: None) -> Chunk:
        """The next chunk (`value` is not used). Raises StopIteration after the last one."""
        if self._over:
            raise StopIteration
        if self._completion is not None:
            return self._last_chunk()
        request = self._request
        tokens: list[TokenInfo] = []
        try:
            while not tokens and request.finish_reason is None and not self._cancelled:
                tokens = self._advance(request)
                if not tokens and self._progress is not None:
                    self._progress(request.prompt_done, request.prompt_tokens)
        except BaseException:
            request.cancel(broken=True)
            self._end()
            raise
        if self._cancelled:
            request.cancel()
        if request.finish_reason is not None:
            self._end()
            return self._last_chunk()
        text = request.take_text()
        self._sent_text += len(text)
        self._sent_tokens += len(tokens)
        return Chunk(text, tuple(tokens))

    def throw(
        self,
        typ: BaseException | type[BaseException],
        val: object = None,
        tb: TracebackType | None = None,
        /,
    ) -> Chunk:
        """End the request. Returns the last chunk for KeyboardInterrupt (StopIteration if it was given already);
        raises anything else."""
        if self._completion is None:
            self._request.cancel()
            self._end()
        if isinstance(typ, KeyboardInterrupt) or typ is KeyboardInterrupt:
            return self.send(None)
        self._over = True
        raise typ if val is None else val if isinstance(val, BaseException) else typ(val)  # type: ignore[operator]

    def _end(self) -> None:
        self._completion = self._request.completion()
        self._on_end(self._request, self._completion)

    def _last_chunk(self) -> Chunk:
        assert self._completion is not None
        self._over = True
        done = self._completion
        return Chunk(done.text[self._sent_text :], done.tokens[self._sent_tokens :], done)

    def __enter__(self) -> Stream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
