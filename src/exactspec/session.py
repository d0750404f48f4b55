"""A conversation that keeps its cache: only what is new since the last turn is computed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from exactspec.drafting import Drafting
from exactspec.params import SamplingParams, Speculation
from exactspec.prompts import Prompt, common_prefix, is_many, is_messages
from exactspec.request import Request
from exactspec.results import Completion
from exactspec.splice import Transcript
from exactspec.stream import Progress, Stream

if TYPE_CHECKING:
    from exactspec.engine import Engine


class Session:
    """Requests on one engine that reuse the longest common token prefix with the request before.

    The prompt is given whole each time (all messages, as to `Engine.generate`); reuse changes the time to the first
    token and never the answer. Of messages, the ids of this session's own replies are kept: the template's
    re-tokenisation of a reply is replaced by the ids generated for it where both spell the same text.
    `Metrics.cached_tokens` says how much was reused. Texts and ids are used as they are.

    For one thread at a time. A new request closes a stream of this session that is still open.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._cache = engine.target.new_cache()
        self._history: list[int] = []  # its first cache.length tokens are in the cache
        self._transcript = Transcript(engine.tokenizer)
        self._drafting: Drafting | None = None  # over exactly the history; None: begin anew
        self._drafting_for: Speculation | None = None
        self._stream: Stream | None = None

    @property
    def token_ids(self) -> tuple[int, ...]:
        """The last request's prompt and answer, as ids."""
        return tuple(self._history)

    def encode(self, prompt: Prompt) -> list[int]:
        """The ids that this session would use for a prompt now. Raises ValueError if it cannot be served."""
        return self._encode(prompt)[1]

    def generate(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        speculation: Speculation | None = None,
        prediction: str | Sequence[int] | None = None,
        record_steps: bool = False,
        progress: Progress | None = None,
    ) -> Completion:
        """As `Engine.generate` for one prompt, which is the whole conversation so far."""
        return self.stream(
            prompt,
            params,
            speculation=speculation,
            prediction=prediction,
            record_steps=record_steps,
            progress=progress,
        ).result()

    def stream(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        speculation: Speculation | None = None,
        prediction: str | Sequence[int] | None = None,
        record_steps: bool = False,
        progress: Progress | None = None,
    ) -> Stream:
        """As `Engine.stream`, with reuse. Closes an earlier stream of this session that is still open."""
        if self._stream is not None:
            self._stream.close()
        templated, ids = self._encode(prompt)
        common = common_prefix(self._history, ids)
        reuse_drafter = not prediction and self._drafting_for == speculation and self._drafting is not None
        # The root, at least, is computed anew: its row gives the first token.
        self._cache.truncate(min(common, self._cache.length, len(ids) - 1))
        request = self._engine._request(
            ids,
            params,
            speculation=speculation,
            prediction=prediction,
            record_steps=record_steps,
            cache=self._cache,
            drafting=self._drafting if reuse_drafter else None,
            drafted=common if reuse_drafter else None,
        )
        if not reuse_drafter:
            self._close_drafting()
        self._drafting = None
        self._drafting_for = speculation

        def on_end(request: Request, completion: Completion) -> None:
            self._stream = None
            self._history = request.history
            if templated is not None:
                self._transcript.record(templated, ids, completion.token_ids, completion.text)
            self._drafting = request.drafting
            if prediction or not request.begun or not request.drafting.alive:
                self._close_drafting()  # it does not stand at the end of this history, or knows of a prediction

        self._stream = self._engine._stream(request, on_end, progress)
        return self._stream

    def fork(self) -> Session:
        """An independent session at the same point. Raises ValueError while a stream of this one is open."""
        if self._stream is not None:
            raise ValueError("a stream of this session is still open: finish or close it before forking")
        twin = Session(self._engine)
        twin._cache = self._cache.fork()
        twin._history = list(self._history)
        twin._transcript = self._transcript.fork()
        twin._drafting = None if self._drafting is None else self._drafting.fork()
        twin._drafting_for = self._drafting_for
        return twin

    def close(self) -> None:
        """End an open stream and let go of cache and drafter; a later request starts from nothing."""
        if self._stream is not None:
            self._stream.close()
        self._close_drafting()
        self._cache = self._engine.target.new_cache()
        self._history = []

    def _encode(self, prompt: Prompt) -> tuple[list[int] | None, list[int]]:
        """The template's ids (None for texts and ids), and those to use."""
        if is_many(prompt):
            raise ValueError("a session takes one prompt at a time")
        given = self._engine.encode(prompt)
        if not is_messages(prompt):
            return None, given
        spliced = self._transcript.splice(given)
        # The template's ids may be fewer, and fit where the generated ones do not.
        return given, spliced if len(spliced) <= self._engine.target.max_length else given

    def _close_drafting(self) -> None:
        if self._drafting is not None:
            self._drafting.close()
        self._drafting = None
