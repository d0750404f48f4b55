"""A clock that only moves when told to, and an engine whose answers and times are known."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from scripted import ByteTokenizer

from exactspec.params import SamplingParams, Speculation
from exactspec.prompts import common_prefix
from exactspec.results import Chunk, Completion, Metrics, TokenInfo


@dataclass
class Clock:
    now: float = 100.0

    def __call__(self) -> float:
        return self.now


def completion(ids: Sequence[int], *, decode_s: float, prefill_s: float = 0.5, steps: int = 1) -> Completion:
    return Completion(
        text="",
        token_ids=tuple(ids),
        finish_reason="length",
        seed=0,
        identity="fake/1",
        exact=True,
        metrics=Metrics(
            prompt_tokens=3,
            completion_tokens=len(ids),
            cached_tokens=0,
            num_steps=steps,
            num_draft_tokens=0,
            num_accepted_tokens=0,
            prefill_s=prefill_s,
            decode_s=decode_s,
        ),
        tokens=tuple(TokenInfo(i, "") for i in ids),
    )


def chunks(ids: Sequence[int], *, per_chunk: int, chunk_s: float, clock: Clock | None = None) -> Iterator[Chunk]:
    """`per_chunk` tokens every `chunk_s` seconds, then an empty last chunk with the completion."""
    for at in range(0, len(ids), per_chunk):
        if clock is not None:
            clock.now += chunk_s
        yield Chunk("", tuple(TokenInfo(i, "") for i in ids[at : at + per_chunk]))
    if clock is not None:
        clock.now += 3.0  # whatever a server does after its last token is nobody's decode time
    yield Chunk("", (), completion(ids, decode_s=chunk_s * len(ids) / per_chunk))


@dataclass
class FakeEngine:
    """Gives `ids[draft]` at `s_per_token[draft]`; `calls` holds (draft, max_tokens) of every request."""

    ids: dict[str, list[int]]
    s_per_token: dict[str, float]
    calls: list[tuple[str, int | None]] = field(default_factory=list)
    fail_after: int | None = None
    tokenizer: Any = field(default_factory=ByteTokenizer)
    read: list[tuple[str, int]] = field(default_factory=list)
    identity: str = "fake/1"

    def session(self) -> FakeSession:
        return FakeSession(self)

    def stream(self, prompt: Any, params: SamplingParams, *, speculation: Speculation | None = None) -> Iterator[Chunk]:
        assert speculation is not None
        if self.fail_after is not None and len(self.calls) >= self.fail_after:
            raise KeyboardInterrupt
        self.calls.append((speculation.draft, params.max_tokens))
        yield from self.answer(params, speculation)

    def answer(self, params: SamplingParams, speculation: Speculation) -> Iterator[Chunk]:
        ids = self.ids[speculation.draft][: params.max_tokens]
        yield Chunk("", tuple(TokenInfo(i, "") for i in ids))
        yield Chunk("", (), completion(ids, decode_s=self.s_per_token[speculation.draft] * len(ids)))


@dataclass
class FakeSession:
    """Remembers what it holds; the engine's `read` gets (draft, ids computed) of every request."""

    engine: FakeEngine
    held: list[int] = field(default_factory=list)
    closed: bool = False

    def stream(self, prompt: Any, params: SamplingParams, *, speculation: Speculation | None = None) -> Iterator[Chunk]:
        assert speculation is not None
        assert not self.closed
        common = common_prefix(self.held, prompt)
        self.engine.read.append((speculation.draft, len(prompt) - common))
        self.held = list(prompt)
        if params.max_tokens == 1:
            return self.engine.answer(params, Speculation(draft="none"))
        return self.engine.stream(prompt, params, speculation=speculation)

    def fork(self) -> FakeSession:
        return FakeSession(self.engine, list(self.held))

    def close(self) -> None:
        self.closed = True
