"""One case put to our engine by any draft mode, and what its answer took."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol, Self

from exactspec.bench.case import Case
from exactspec.bench.copyshare import copy_share
from exactspec.bench.rounds import Measurement
from exactspec.bench.timing import time_stream
from exactspec.params import SamplingParams, Speculation
from exactspec.results import Chunk
from exactspec.target.tokenizer import Tokenizer


class Streams(Protocol):
    """What an engine and a session have in common here."""

    def stream(
        self, prompt: Any, params: SamplingParams, *, speculation: Speculation | None = None
    ) -> Iterable[Chunk]: ...


class SessionLike(Streams, Protocol):
    """The part of `exactspec.session.Session` that is measured."""

    def fork(self) -> Self: ...
    def close(self) -> None: ...


class EngineLike(Streams, Protocol):
    """The part of `exactspec.Engine` that is measured."""

    @property
    def tokenizer(self) -> Tokenizer: ...

    def session(self) -> SessionLike: ...


class Asking:
    """Puts one case to an engine. What the case says a session holds is read once, at the first question, and every
    question gets a copy of that session: the arms share its keys and values, and nobody's answer is in it.

    The case's `held` ids cost one prefill, and one more token per draft mode if the drafters know them too.
    """

    def __init__(self, engine: EngineLike, case: Case) -> None:
        self._engine, self._case = engine, case
        self._base: SessionLike | None = None
        self._primed: dict[Speculation, SessionLike] = {}

    def measure(self, speculation: Speculation, params: SamplingParams | None = None) -> Measurement:
        """One answer, taken as a client of the stream takes it; the clocks are the engine's own. `params`: instead
        of the case's."""
        ids, params = list(self._case.ids), params or self._case.params
        if not self._case.held:
            return _measured(self._case, self._engine.stream(ids, params, speculation=speculation))
        twin = self._session(speculation).fork()
        try:
            return _measured(self._case, twin.stream(ids, params, speculation=speculation))
        finally:
            twin.close()

    def close(self) -> None:
        """Let go of the sessions."""
        for session in (*self._primed.values(), *([] if self._base is None else [self._base])):
            session.close()
        self._base = None
        self._primed.clear()

    def _session(self, speculation: Speculation) -> SessionLike:
        if self._base is None:
            self._base = self._engine.session()
            self._read(self._base, Speculation(draft="none"))
        if not self._case.drafter_held:
            return self._base
        if speculation not in self._primed:
            twin = self._base.fork()
            self._read(twin, speculation)
            self._primed[speculation] = twin
        return self._primed[speculation]

    def _read(self, session: SessionLike, speculation: Speculation) -> None:
        """Make a session hold the case's first ids: a request for one token, which nobody looks at."""
        held = list(self._case.ids[: self._case.held])
        for _ in session.stream(held, SamplingParams(max_tokens=1), speculation=speculation):
            pass


def _measured(case: Case, chunks: Iterable[Chunk]) -> Measurement:
    completion, timing = time_stream(chunks)
    metrics = completion.metrics
    return Measurement(
        token_ids=completion.token_ids,
        prefill_s=metrics.prefill_s,
        decode_s=metrics.decode_s,
        extra={
            "time_to_first_token_s": timing.first_token_s,
            "stream_tokens_per_s": timing.decode_tokens_per_s,
            "num_steps": metrics.num_steps,
            "num_draft_tokens": metrics.num_draft_tokens,
            "num_accepted_tokens": metrics.num_accepted_tokens,
            "accepted_by_source": dict(metrics.accepted_by_source),
            "output_copy_share": round(copy_share(case.ids, completion.token_ids).copy_share, 4),
            "cached_tokens": metrics.cached_tokens,
            "tau": metrics.tau,
            "finish_reason": completion.finish_reason,
            "identity": completion.identity,
            "exact": completion.exact,
        },
    )
