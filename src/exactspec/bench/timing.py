"""What one stream delivered and when. Tokens are counted by their ids, never by the pieces they came in."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from exactspec.results import Chunk, Completion


@dataclass(frozen=True, slots=True)
class StreamTiming:
    """Times in seconds from the request on. `first_tokens`: tokens that the first non-empty chunk held."""

    tokens: int
    chunks: int
    first_tokens: int
    first_token_s: float
    total_s: float

    @property
    def decode_tokens_per_s(self) -> float:
        """Rate after the first chunk: the time to the first token is apart. 0 if nothing followed it."""
        seconds = self.total_s - self.first_token_s
        return (self.tokens - self.first_tokens) / seconds if seconds > 0 else 0.0


def time_stream(
    chunks: Iterable[Chunk], *, clock: Callable[[], float] = time.perf_counter
) -> tuple[Completion, StreamTiming]:
    """Read a stream to its end. The clock starts now, and the last token counts, not the last (empty) chunk.

    Raises ValueError if the stream ends without a completion or its chunks do not hold the completion's tokens.
    """
    start = clock()
    first: float | None = None
    last = 0.0
    count = tokens = first_tokens = 0
    completion: Completion | None = None
    for chunk in chunks:
        now = clock() - start
        count += 1
        if chunk.tokens:
            if first is None:
                first, first_tokens = now, len(chunk.tokens)
            last = now
            tokens += len(chunk.tokens)
        completion = chunk.completion or completion
    if completion is None:
        raise ValueError("the stream ended without a completion")
    if tokens != len(completion.token_ids):
        raise ValueError(f"the stream's chunks held {tokens} tokens, its completion {len(completion.token_ids)}")
    return completion, StreamTiming(tokens, count, first_tokens, first if first is not None else last, last)
