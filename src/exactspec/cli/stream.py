"""One request, and how to drive its stream to the end; Ctrl-C ends it early and keeps what was produced."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from exactspec.cli.services import EngineLike, Prompt, Reading, Stream
from exactspec.params import SamplingParams, Speculation
from exactspec.results import Chunk, Completion


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What is asked of the engine. `prediction`: text the answer is expected to resemble, or None.
    `record_steps`: what every step did is wanted too."""

    prompt: Prompt
    params: SamplingParams
    speculation: Speculation
    prediction: str | None
    record_steps: bool = False

    def start(self, engine: EngineLike, *, progress: Reading | None = None) -> Stream:
        return engine.stream(
            self.prompt,
            self.params,
            speculation=self.speculation,
            prediction=self.prediction,
            record_steps=self.record_steps,
            progress=progress,
        )


def consume(stream: Stream, show: Callable[[Chunk], None]) -> Completion:
    """The completion of `stream`; `show` sees every chunk as it comes.

    Ctrl-C while the engine works ends the request and is raised; Ctrl-C while a chunk is being shown finds the engine
    suspended. Either way `throw` then gives the last chunk, whose completion is "cancelled".
    Raises KeyboardInterrupt where the stream has no last chunk to give, and whatever the engine or `show` raise.
    """
    last: Completion | None = None
    try:
        try:
            for chunk in stream:
                last = chunk.completion or last
                show(chunk)
        except KeyboardInterrupt:
            if last is None:
                chunk = _cancel(stream)
                last = chunk.completion
                show(chunk)
    finally:
        stream.close()
    if last is None:
        raise RuntimeError("the engine's stream ended without a completion")
    return last


def _cancel(stream: Stream) -> Chunk:
    try:
        chunk = stream.throw(KeyboardInterrupt())
    except StopIteration:
        raise KeyboardInterrupt from None
    while chunk.completion is None:
        chunk = next(stream)
    return chunk
