"""Streams: chunks, cancelling, and what is left after an interrupt."""

from __future__ import annotations

import gc
import threading

import pytest
from scripted import IdTokenizer, ListTarget, Oracle, hash_target

from exactspec.engine import Engine
from exactspec.params import SamplingParams
from exactspec.results import Chunk
from exactspec.stream import Stream

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6] * 4
PARAMS = SamplingParams(max_tokens=60)


def engine(target: ListTarget | None = None, *, prefill_chunk: int = 256) -> Engine:
    return Engine(target or hash_target(order=2), IdTokenizer(97), draft="copy", prefill_chunk=prefill_chunk)


def test_chunks_join_to_the_completion() -> None:
    whole = engine().generate(PROMPT, PARAMS)
    chunks = list(engine().stream(PROMPT, PARAMS))
    done = chunks[-1].completion
    assert done is not None
    assert [c.completion for c in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert "".join(c.text for c in chunks) == done.text == whole.text
    assert tuple(t for c in chunks for t in c.tokens) == done.tokens == whole.tokens
    assert len(chunks) == done.metrics.num_steps


def test_nothing_is_computed_before_the_first_chunk() -> None:
    target = hash_target(order=2)
    stream = engine(target).stream(PROMPT, PARAMS)
    assert target.forwards == 0
    stream.close()
    assert target.forwards == 0
    assert stream.completion is not None
    assert stream.completion.finish_reason == "cancelled"
    assert stream.completion.token_ids == ()


def test_close_keeps_what_there_was() -> None:
    e = engine()
    whole = e.generate(PROMPT, PARAMS)
    stream = e.stream(PROMPT, PARAMS)
    seen = [next(stream), next(stream)]
    assert stream.completion is None
    stream.close()
    done = stream.completion
    assert done is not None
    assert done.finish_reason == "cancelled"
    assert done.tokens == tuple(t for c in seen for t in c.tokens) == whole.tokens[: len(done.tokens)]
    assert whole.text.startswith(done.text)
    assert done.metrics.completion_tokens == len(done.tokens)
    assert list(stream) == []
    stream.close()
    assert e.generate(PROMPT, PARAMS).tokens == whole.tokens


def test_cancel_gives_a_last_chunk() -> None:
    stream = engine().stream(PROMPT, PARAMS)
    next(stream)
    stream.cancel()
    last = next(stream)
    assert last.completion is not None
    assert last.completion.finish_reason == "cancelled"
    with pytest.raises(StopIteration):
        next(stream)


def test_cancel_between_prompt_chunks() -> None:
    target = hash_target(order=2)
    done: list[tuple[int, int]] = []

    def progress(part: int, whole: int) -> None:
        done.append((part, whole))
        if part >= 10:
            stream.cancel()

    stream = engine(target, prefill_chunk=5).stream(PROMPT, PARAMS, progress=progress)
    last = next(stream)
    assert last.completion is not None
    assert last.completion.finish_reason == "cancelled"
    assert done == [(5, 32), (10, 32)]
    assert target.rows == [5, 5]


def test_progress_counts_the_prompt() -> None:
    done: list[tuple[int, int]] = []
    engine(prefill_chunk=10).generate(PROMPT, PARAMS, progress=lambda *at: done.append(at))
    assert done == [(10, 32), (20, 32), (30, 32), (31, 32)]


def test_interleaved_streams_give_their_lone_outputs() -> None:
    e = engine()
    jobs = [(PROMPT, PARAMS), (PROMPT[3:], SamplingParams(max_tokens=50, temperature=1.0, seed=3)), ([5, 5, 5], PARAMS)]
    alone = [engine().generate(*job).tokens for job in jobs]
    streams = [e.stream(*job) for job in jobs]
    found: list[list[Chunk]] = [[] for _ in jobs]
    running = set(range(len(jobs)))
    while running:
        for i in sorted(running):
            try:
                found[i].append(next(streams[i]))
            except StopIteration:
                running.discard(i)
    assert [tuple(t for c in chunks for t in c.tokens) for chunks in found] == alone


def test_an_abandoned_stream_holds_nothing() -> None:
    e = engine()
    stream: Stream | None = e.stream(PROMPT, PARAMS)
    assert stream is not None
    next(stream)
    answer: list[int] = []
    thread = threading.Thread(target=lambda: answer.extend(e.generate([1, 2], PARAMS).token_ids), daemon=True)
    thread.start()
    thread.join(60)
    assert len(answer) == 60
    del stream
    gc.collect()
    assert len(e.generate([1, 2], PARAMS).token_ids) == 60


@pytest.mark.parametrize("at", range(1, 12))
@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError, MemoryError])
def test_an_exception_in_a_forward_leaves_everything_usable(at: int, error: type[BaseException]) -> None:
    whole = engine().generate(PROMPT, PARAMS)
    armed = True

    def before(forward: int) -> None:
        if armed and forward == at:
            raise error

    e = engine(hash_target(order=2, before=before), prefill_chunk=16)
    stream = e.stream(PROMPT, PARAMS)
    seen: list[Chunk] = []
    with pytest.raises(error):
        seen.extend(stream)
    done = stream.completion
    assert done is not None
    assert done.finish_reason == "cancelled"
    assert done.tokens == tuple(t for c in seen for t in c.tokens) == whole.tokens[: len(done.tokens)]
    last = stream.throw(KeyboardInterrupt())
    assert last.completion is done
    assert "".join(c.text for c in [*seen, last]) == done.text
    armed = False
    assert e.generate(PROMPT, PARAMS).tokens == whole.tokens


@pytest.mark.parametrize("where", ["walk", "credits"])
def test_an_interrupt_in_the_walk_shows_no_token_of_its_step(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sampler and stopper are ahead of the history then: text and ids must still agree."""
    import exactspec.request as module

    whole = engine().generate(PROMPT, PARAMS)
    right, calls = getattr(module, where), 0

    def interrupted(*args: object) -> object:
        nonlocal calls
        calls += 1
        result = right(*args)
        if calls == 4:
            raise KeyboardInterrupt
        return result

    monkeypatch.setattr(module, where, interrupted)
    e = engine()
    session = e.session()
    stream = session.stream(PROMPT, PARAMS)
    seen: list[Chunk] = []
    with pytest.raises(KeyboardInterrupt):
        seen.extend(stream)
    done = stream.completion
    assert done is not None
    assert len(seen) == 3
    assert done.token_ids == whole.token_ids[: len(done.token_ids)]
    assert done.text == "".join(t.text for t in done.tokens)
    assert session.token_ids == (*PROMPT, *done.token_ids)
    assert session.generate(PROMPT, PARAMS).tokens == whole.tokens


def test_generate_lets_the_interrupt_through() -> None:
    def before(forward: int) -> None:
        if forward == 3:
            raise KeyboardInterrupt

    e = engine(hash_target(order=2, before=before))
    with pytest.raises(KeyboardInterrupt):
        e.generate(PROMPT, PARAMS)
    assert len(e.generate(PROMPT, PARAMS).token_ids) == 60


def test_throw_between_chunks() -> None:
    stream = engine().stream(PROMPT, PARAMS)
    first = next(stream)
    last = stream.throw(KeyboardInterrupt())
    assert last.completion is not None
    assert last.completion.tokens == first.tokens
    assert last.completion.finish_reason == "cancelled"
    with pytest.raises(StopIteration):
        stream.throw(KeyboardInterrupt())
    other = engine().stream(PROMPT, PARAMS)
    next(other)
    with pytest.raises(OSError, match="gone"):
        other.throw(OSError("gone"))
    assert list(other) == []


def test_context_manager_closes() -> None:
    with engine().stream(PROMPT, PARAMS) as stream:
        next(stream)
    assert stream.completion is not None
    assert stream.completion.finish_reason == "cancelled"


def test_drafter_state_is_released() -> None:
    closed: list[int] = []

    class Counts(Oracle):
        def close(self, state: list[int]) -> None:
            closed.append(len(state))

    e = Engine(hash_target(order=2), IdTokenizer(97), draft=Counts([]))
    e.generate(PROMPT, PARAMS)
    stream = e.stream(PROMPT, PARAMS)
    next(stream)
    stream.close()
    assert closed == [len(PROMPT) + 60, len(PROMPT) + 1]
