"""Many requests in shared steps: every reply is the one of a lone run, whoever comes, goes or fails beside it."""

from __future__ import annotations

import random
import signal
import sys
import threading
import time
from typing import Any

import pytest
from scheduling.harness import VOCAB, Client, alone, engine, run
from scripted import IdTokenizer, ListTarget, Oracle, RandomTree, hash_target

from exactspec.engine import Engine
from exactspec.live_cost import LiveCost
from exactspec.params import SamplingParams, Speculation
from exactspec.results import Chunk
from exactspec.scheduling import Closed, QueueFull, Scheduler
from exactspec.target.base import Segment, SegmentRows

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6] * 4


def idle(e: Engine | None = None, **options: Any) -> Scheduler:
    """Without a worker: the test runs the steps."""
    return Scheduler(e or engine(), thread=False, **options)


def request(rng: random.Random) -> tuple[list[int], SamplingParams, Speculation]:
    """Prompts that share beginnings or do not, short and long, greedy and sampled, with and without drafts."""
    prompt = PROMPT[: rng.choice([1, 5, 20, 32])] + [rng.randrange(VOCAB) for _ in range(rng.choice([0, 1, 9]))]
    hot = rng.random() < 0.5
    params = SamplingParams(
        max_tokens=rng.choice([0, 1, 7, 30]),
        temperature=0.9 if hot else 0.0,
        seed=rng.randrange(5),
        frequency_penalty=rng.choice([0.0, 0.4]),
    )
    return prompt, params, Speculation(draft=rng.choice(["none", "copy", "copyspec", "auto"]))


@pytest.mark.parametrize("seed", range(3))
def test_random_joins_and_leaves_change_no_reply(seed: int) -> None:
    rng = random.Random(seed)
    scheduler = idle(max_running=rng.choice([1, 3, 8]), max_rows=rng.choice([8, 64]), max_queue=99)
    clients: list[tuple[Client, list[int], SamplingParams]] = []
    for _ in range(18):
        prompt, params, speculation = request(rng)
        leaves = rng.choice([None, None, None, 1, 4])
        client = Client(leave_after=leaves, break_after=rng.choice([None] * 5 + [3]))
        clients.append((client.submit(scheduler, prompt, params, speculation=speculation), prompt, params))
        if rng.random() < 0.1 and client.ticket is not None:
            client.ticket.cancel()  # before its first step
        for _ in range(rng.randrange(5)):
            scheduler.step_once()
    run(scheduler)
    ends = set()
    for client, prompt, params in clients:
        assert client.ticket is not None
        done, lone = client.ticket.result(0), alone(prompt, params)
        ends.add(done.finish_reason)
        if done.finish_reason == "cancelled":
            assert client.ids == lone.token_ids[: len(client.ids)]
        else:
            assert (client.ids, client.text, done.finish_reason) == (lone.token_ids, lone.text, lone.finish_reason)
    assert ends == {"length", "cancelled"}
    stats = scheduler.stats()
    assert stats.running == stats.waiting == stats.failed == 0
    assert stats.finished + stats.cancelled == 18
    assert stats.cached_tokens > 0


def drafters(text: list[int]) -> dict[str, Any]:
    return {
        "right": Oracle(text, length=6),
        "half right": Oracle(text, length=9, wrong_every=4),
        "tree": RandomTree(vocab_size=VOCAB, text=text, nodes=30),
    }


@pytest.mark.parametrize("name", ["right", "half right", "tree"])
def test_deep_drafts_side_by_side(name: str) -> None:
    """Requests with accepted drafts, rejected ones and none in one forward (field case 16)."""
    params = SamplingParams(max_tokens=40)
    lone = alone(PROMPT, params)
    text = [*PROMPT, *lone.token_ids]
    scheduler = idle(engine(draft=drafters(text)[name]), max_rows=24)
    others = [[7, 8, 9], [50, 51, 52, 53]]
    clients = [Client().submit(scheduler, p, params) for p in (PROMPT, *others, PROMPT)]
    steps = run(scheduler)
    assert [c.ids for c in clients] == [lone.token_ids, *(alone(p, params).token_ids for p in others), lone.token_ids]
    metrics = [c.completion.metrics for c in clients if c.completion is not None]
    assert metrics[0].num_accepted_tokens > 10
    assert steps < sum(m.num_steps for m in metrics)  # steps were shared


def test_a_lone_request_takes_the_steps_of_the_library() -> None:
    params = SamplingParams(max_tokens=60)
    library = engine().generate(PROMPT, params)
    target = hash_target(order=None)
    scheduler = idle(engine(target))
    client = Client().submit(scheduler, PROMPT, params)
    run(scheduler)
    assert client.completion is not None
    found, expected = client.completion.metrics, library.metrics
    assert (found.num_steps, found.num_draft_tokens) == (expected.num_steps, expected.num_draft_tokens)
    assert target.forwards == expected.num_steps + 2  # and two pieces of the prompt
    stats = scheduler.stats()
    assert (stats.steps, stats.rows) == (target.forwards, sum(target.rows))
    assert stats.prefill_rows == len(PROMPT) - 1
    assert (stats.prompt_tokens, stats.completion_tokens) == (len(PROMPT), 60)


def test_steps_of_a_lone_request_correct_the_cost_and_shared_ones_do_not() -> None:
    seen: list[int] = []

    class Watched(LiveCost):
        def record(self, *, rows: int, context: int, seconds: float) -> None:
            seen.append(rows)
            super().record(rows=rows, context=context, seconds=seconds)

    scheduler = idle(engine(cost=Watched(lambda rows: 1 + rows / 50), prefill_chunk=64))
    Client().submit(scheduler, PROMPT, SamplingParams(max_tokens=20))
    run(scheduler)
    assert len(seen) == scheduler.stats().steps - 1  # all but the prompt's
    assert sum(seen) == scheduler.stats().rows - (len(PROMPT) - 1)
    for i in range(2):
        Client().submit(scheduler, [i, 50], SamplingParams(max_tokens=20))
    before = len(seen)
    run(scheduler)
    assert len(seen) - before <= 2  # the longer of the two, once it is alone


def test_rows_of_a_step_are_limited_and_shared_by_expected_gain() -> None:
    params = SamplingParams(max_tokens=40)
    sure = [*PROMPT, *alone(PROMPT, params).token_ids]
    target = hash_target(order=None)
    scheduler = idle(engine(target, draft=Oracle(sure, length=30), prefill_chunk=64), max_rows=8, max_running=3)
    clients = [Client().submit(scheduler, p, params) for p in (PROMPT, [1, 2], [5])]
    while scheduler.step_once():
        if all(c.tokens for c in clients):
            assert target.rows[-1] <= 8
    assert [c.ids for c in clients] == [alone(p, params).token_ids for p in (PROMPT, [1, 2], [5])]
    with pytest.raises(ValueError, match="max_running"):
        idle(max_running=9, max_rows=8)


def test_running_answers_are_never_held_up_for_long() -> None:
    """In rows, not in time: a forward of n rows takes n seconds here, and 20 may be taken."""
    now = [0.0]

    def took(forward: int) -> None:
        now[0] += target.rows[-1]

    target = hash_target(order=2, before=took)
    e = engine(target, draft="none", prefill_chunk=500, cost=lambda rows: float(rows))
    scheduler = idle(e, max_stall_ms=20_000, clock=lambda: now[0])
    first = Client().submit(scheduler, [1, 2, 3], SamplingParams(max_tokens=12))
    while not first.tokens:
        scheduler.step_once()
    long = Client().submit(scheduler, list(range(90)) * 5, SamplingParams(max_tokens=5))
    short = Client().submit(scheduler, list(range(30, 60)), SamplingParams(max_tokens=5))
    seen = len(target.rows)
    order = []
    while scheduler.step_once():
        order += [name for name, c in (("long", long), ("short", short)) if c.tokens and name not in order]
        if first.completion is None:
            assert target.rows[-1] <= 20, target.rows[seen:]
    assert max(target.rows[seen:]) > 20  # with nobody to hold up, prompts go on in large pieces
    assert order == ["short", "long"]
    lone = engine(hash_target(order=2), draft="none")
    for client, prompt, n in ((first, [1, 2, 3], 12), (long, list(range(90)) * 5, 5), (short, list(range(30, 60)), 5)):
        assert client.ids == lone.generate(prompt, SamplingParams(max_tokens=n)).token_ids


# -- the queue --------------------------------------------------------------------------------------------------------


def test_a_full_queue_says_so_and_when_to_come_back() -> None:
    scheduler = idle(max_running=2, max_queue=3)
    params = SamplingParams(max_tokens=30)
    clients = [Client().submit(scheduler, [i, 1], params) for i in range(5)]
    with pytest.raises(QueueFull, match="try again in") as refused:
        Client().submit(scheduler, [9], params)
    assert refused.value.retry_after_s >= 1
    scheduler.step_once()
    assert (scheduler.stats().running, scheduler.stats().waiting) == (2, 3)
    with pytest.raises(QueueFull):
        Client().submit(scheduler, [9], params)
    assert clients[4].ticket is not None
    clients[4].ticket.cancel()  # a place in the queue is free once the worker has seen it
    scheduler.step_once()
    late = Client().submit(scheduler, [9], params)
    run(scheduler)
    assert late.ids == alone([9], params).token_ids
    assert scheduler.stats().refused == 2
    assert clients[4].completion is not None
    assert clients[4].completion.finish_reason == "cancelled"


def test_a_bad_request_is_refused_before_it_is_queued() -> None:
    scheduler = idle(engine(hash_target(order=None, max_length=64)))
    for wrong in ([], [97], list(range(65)), [[1], [2]], "", None):
        with pytest.raises(ValueError):
            Client().submit(scheduler, wrong)
    with pytest.raises(ValueError):
        Client().submit(scheduler, [1], SamplingParams(logit_bias={500: 1.0}))
    assert scheduler.stats().waiting == 0
    client = Client().submit(scheduler, list(range(64)))  # as long as the context: no token, no step (field case 24)
    run(scheduler)
    assert client.completion is not None
    assert (client.completion.finish_reason, client.ids, scheduler.stats().steps) == ("length", (), 0)


# -- leaving ----------------------------------------------------------------------------------------------------------


def test_twenty_cancels_in_a_row_leave_nothing_behind() -> None:
    """Field case 23: one place; each client leaves after two chunks, or while its prompt is read."""
    target = hash_target(order=2)
    scheduler = idle(engine(target), max_running=1, max_queue=1, prefix_cache=False)
    probe = SamplingParams(max_tokens=8)
    expected = engine(hash_target(order=2), draft="none").generate([9, 8, 7], probe).token_ids
    for turn in range(20):
        early = turn % 2 == 1
        client = Client(leave_after=None if early else 2)
        client.submit(scheduler, PROMPT * 3, SamplingParams(max_tokens=4000))
        waiting = Client().submit(scheduler, [9, 8, 7], probe)
        while scheduler.stats().running == 0 or not (early or client.tokens):
            scheduler.step_once()
        assert client.ticket is not None
        client.ticket.cancel()
        scheduler.step_once()  # its place is free, and taken, within this step
        assert client.completion is not None
        assert client.completion.finish_reason == "cancelled"
        assert len(client.tokens) == client.completion.metrics.completion_tokens
        assert bool(client.tokens) != early
        assert scheduler.stats().running == 1
        run(scheduler)
        assert waiting.ids == expected
    stats = scheduler.stats()
    assert (stats.running, stats.waiting, stats.cache_bytes, stats.cancelled) == (0, 0, 0, 20)


def test_a_callback_that_raises_cancels_its_own_request_and_is_not_called_again() -> None:
    params = SamplingParams(max_tokens=30)
    scheduler = idle()
    broken, sound = Client(break_after=3), Client()
    for client in (broken, sound):
        client.submit(scheduler, PROMPT, params, speculation=Speculation(draft="none"))
    run(scheduler)
    assert broken.ticket is not None
    assert broken.ticket.result(0).finish_reason == "cancelled"
    assert broken.chunks == 3
    assert broken.completion is None
    assert sound.ids == alone(PROMPT, params).token_ids
    assert broken.ids == sound.ids[:3]


def test_cancelling_after_the_end_does_nothing() -> None:
    scheduler = idle()
    client = Client().submit(scheduler, PROMPT, SamplingParams(max_tokens=3))
    run(scheduler)
    assert client.ticket is not None
    client.ticket.cancel()
    assert not client.ticket.cancelled
    assert scheduler.step_once() is False
    assert client.ticket.result(0).finish_reason == "length"


# -- failing ----------------------------------------------------------------------------------------------------------


class Poisoned(ListTarget):
    """Raises in every forward that holds a row with the token `poison`, or just once with `once`."""

    def __init__(self, poison: int, *, once: bool = False) -> None:
        plain = hash_target(order=None)
        super().__init__(plain._logits, vocab_size=plain.vocab_size)
        self.poison, self.once, self.raised = poison, once, 0

    def forward(self, segments: Any) -> list[SegmentRows]:
        held = any(self.poison in s.tokens.tolist() for s in segments)
        if held and not (self.once and self.raised):
            self.raised += 1
            raise MemoryError("no memory left for keys and values")
        return super().forward(segments)


@pytest.mark.parametrize("once", [False, True])
def test_a_forward_that_fails_for_one_fails_for_that_one(once: bool) -> None:
    params = SamplingParams(max_tokens=20)
    prompts = [[1, 2, 3], [4, 95, 5], [6, 7]]
    expected = [alone(p, params) for p in prompts]
    assert not any(95 in e.token_ids for e in expected)
    scheduler = idle(engine(Poisoned(95, once=once), draft="none"))
    clients = [Client().submit(scheduler, p, params) for p in prompts]
    for _ in range(4):
        scheduler.step_once()
    assert [len(c.ids) for c in clients] == [3, 3 if once else 0, 3]  # nobody lost a step over it
    assert (clients[1].error is None) == once
    run(scheduler)
    assert clients[0].ids == expected[0].token_ids
    assert clients[2].ids == expected[2].token_ids
    assert clients[1].ticket is not None
    if once:
        assert clients[1].ids == expected[1].token_ids
    else:
        assert isinstance(clients[1].error, MemoryError)
        with pytest.raises(MemoryError):
            clients[1].ticket.result(0)
        assert scheduler.stats().failed == 1
    again = Client().submit(scheduler, prompts[0], params)  # what was kept is sound
    run(scheduler)
    assert again.ids == expected[0].token_ids


class Quits(Oracle):
    """Raises what the guard of drafters lets through."""

    name = "quits"

    def draft(self, history: list[int], budget: Any) -> Any:
        if history[0] == 4:
            raise KeyboardInterrupt
        return super().draft(history, budget)


def test_a_drafter_that_breaks_the_loop_ends_its_own_request() -> None:
    params = SamplingParams(max_tokens=20)
    scheduler = idle(engine(draft=Quits([])))
    clients = [Client().submit(scheduler, p, params) for p in ([1, 2], [4, 5], [6])]
    run(scheduler)
    assert isinstance(clients[1].error, KeyboardInterrupt)
    assert clients[0].ids == alone([1, 2], params).token_ids
    assert clients[2].ids == alone([6], params).token_ids


def test_a_walk_that_fails_ends_its_own_request(monkeypatch: pytest.MonkeyPatch) -> None:
    from exactspec.request import Request

    right = Request.take

    def take(self: Request, rows: SegmentRows) -> Any:
        if self.history[0] == 4 and len(self.history) > 5:
            raise RuntimeError("in the walk")
        return right(self, rows)

    monkeypatch.setattr(Request, "take", take)
    params = SamplingParams(max_tokens=20)
    scheduler = idle()
    clients = [Client().submit(scheduler, p, params) for p in ([1, 2], [4, 5], [6])]
    run(scheduler)
    monkeypatch.undo()
    assert isinstance(clients[1].error, RuntimeError)
    assert clients[1].ids == alone([4, 5], params).token_ids[: len(clients[1].ids)]
    assert clients[0].ids == alone([1, 2], params).token_ids
    assert clients[2].ids == alone([6], params).token_ids


def test_a_fault_of_the_scheduler_leaves_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    scheduler = Scheduler(engine())
    monkeypatch.setattr(scheduler, "_admit", lambda: 1 / 0)
    client = Client().submit(scheduler, PROMPT)
    assert client.ticket is not None
    with pytest.raises(ZeroDivisionError):
        client.ticket.result(20)
    assert isinstance(client.error, ZeroDivisionError)
    with pytest.raises(Closed):
        Client().submit(scheduler, PROMPT)
    assert scheduler.broken
    scheduler.close()


def test_an_end_that_fails_ends_its_own_request(monkeypatch: pytest.MonkeyPatch) -> None:
    from exactspec.request import Request

    right = Request.completion

    def completion(self: Request) -> Any:
        if self.history[0] == 4:
            raise RuntimeError("at the end")
        return right(self)

    monkeypatch.setattr(Request, "completion", completion)
    params = SamplingParams(max_tokens=5)
    scheduler = idle()
    clients = [Client().submit(scheduler, p, params) for p in ([1, 2], [4, 5], [6])]
    run(scheduler)
    monkeypatch.undo()
    assert isinstance(clients[1].error, RuntimeError)
    assert clients[0].ids == alone([1, 2], params).token_ids
    assert clients[2].ids == alone([6], params).token_ids
    assert (scheduler.stats().running, scheduler.stats().failed) == (0, 1)


# -- with its thread --------------------------------------------------------------------------------------------------


def test_clients_in_many_threads() -> None:
    """Field case 15, with a lone caller of the engine beside them."""
    prompts = [PROMPT, [1, 2, 3], PROMPT, [9] * 12, PROMPT[:9], [5]]
    params = [SamplingParams(max_tokens=30, seed=i, temperature=0.8 * (i % 2)) for i in range(len(prompts))]
    expected = [alone(p, q).token_ids for p, q in zip(prompts, params, strict=True)]
    e = engine()
    found: dict[tuple[int, int], tuple[int, ...]] = {}

    def client(i: int) -> None:
        for turn in range(3):
            ticket = scheduler.submit(prompts[i], params[i], on_chunk=lambda chunk: None)
            found[i, turn] = ticket.result(60).token_ids

    with Scheduler(e, max_running=4) as scheduler:
        threads = [threading.Thread(target=client, args=(i,)) for i in range(len(prompts))]
        for thread in threads:
            thread.start()
        own = e.generate(prompts[1], params[1]).token_ids
        for thread in threads:
            thread.join(60)
    assert own == expected[1]
    assert found == {(i, turn): expected[i] for i in range(len(prompts)) for turn in range(3)}


def closed_in_mid_run(max_tokens: int, grace_s: float) -> tuple[Scheduler, Client, Client]:
    """One request runs and one waits; the first forward goes on when the scheduler knows that it is to close."""
    started, gate = threading.Event(), threading.Event()

    def before(forward: int) -> None:
        started.set()
        assert gate.wait(60)

    scheduler = Scheduler(engine(hash_target(order=2, before=before)), max_running=1)
    clients = [Client().submit(scheduler, PROMPT, SamplingParams(max_tokens=max_tokens)) for _ in range(2)]
    assert started.wait(60)
    closer = threading.Thread(target=scheduler.close, kwargs={"grace_s": grace_s})
    closer.start()
    while not scheduler._closing:
        closer.join(0.001)
    gate.set()
    closer.join(60)
    assert not closer.is_alive()
    return scheduler, clients[0], clients[1]


def test_close_cancels_what_runs_and_what_waits() -> None:
    scheduler, running, waiting = closed_in_mid_run(4000, 0.0)
    for client in (running, waiting):
        assert client.ticket is not None
        assert client.ticket.result(0).finish_reason == "cancelled"
        assert client.completion is not None
    with pytest.raises(Closed):
        Client().submit(scheduler, PROMPT)
    scheduler.close()
    assert scheduler.stats().prefix_bytes == 0


def test_close_with_grace_lets_running_requests_finish() -> None:
    _, running, waiting = closed_in_mid_run(40, 60.0)
    assert running.completion is not None
    assert running.completion.finish_reason == "length"
    assert (
        running.ids
        == engine(hash_target(order=2), draft="none").generate(PROMPT, SamplingParams(max_tokens=40)).token_ids
    )
    assert waiting.completion is not None
    assert waiting.completion.finish_reason == "cancelled"


@pytest.mark.skipif(sys.platform == "win32", reason="signals cannot be sent to a thread there")
def test_ctrl_c_in_the_caller_ends_everything() -> None:
    pressed = threading.Event()

    def on_chunk(chunk: Chunk) -> None:
        if not pressed.is_set():
            pressed.set()
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        time.sleep(0.05)  # or all may be answered before the main thread gets to its signal

    with Scheduler(engine(hash_target(order=2))) as scheduler:
        ticket = scheduler.submit(PROMPT, SamplingParams(max_tokens=4000), on_chunk=on_chunk)
        with pytest.raises(KeyboardInterrupt):
            ticket.result(60)
        assert not ticket.done
    assert ticket.result(0).finish_reason == "cancelled"


def test_a_forked_process_is_told_that_it_has_no_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    with Scheduler(engine()) as scheduler:
        assert scheduler._thread is not None
        monkeypatch.setattr(scheduler._thread, "is_alive", lambda: False)
        with pytest.raises(Closed, match="forked"):
            Client().submit(scheduler, PROMPT)
        monkeypatch.undo()


def test_a_callback_may_close_the_scheduler() -> None:
    scheduler = Scheduler(engine())
    ticket = scheduler.submit(PROMPT, SamplingParams(max_tokens=4000), on_chunk=lambda chunk: scheduler.close())
    assert ticket.result(20).finish_reason == "cancelled"
    scheduler.close()


def test_result_says_when_it_gave_up_waiting() -> None:
    scheduler = idle()
    client = Client().submit(scheduler, PROMPT, SamplingParams(max_tokens=3))
    assert client.ticket is not None
    with pytest.raises(TimeoutError, match="request 1 is still running"):
        client.ticket.result(0.01)
    run(scheduler)
    assert client.ticket.result(0).token_ids == alone(PROMPT, SamplingParams(max_tokens=3)).token_ids


def test_segments_of_one_step_are_of_different_requests() -> None:
    """Continuous batching at all: running answers share each forward."""
    held: list[int] = []

    class Counting(ListTarget):
        def forward(self, segments: list[Segment]) -> list[SegmentRows]:  # type: ignore[override]
            held.append(len(segments))
            return super().forward(segments)

    plain = hash_target(order=2)
    e = Engine(Counting(plain._logits, vocab_size=VOCAB), IdTokenizer(VOCAB), draft="none")
    scheduler = idle(e, max_running=4)
    for i in range(6):
        Client().submit(scheduler, [i], SamplingParams(max_tokens=10))
    run(scheduler)
    assert held[0] == 4
    assert max(held) == 4
    assert len(held) == 20
