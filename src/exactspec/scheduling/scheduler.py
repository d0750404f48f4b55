"""Many requests on one engine: one worker thread, one forward a step for all of them.

    class Scheduler:
        def __init__(self, engine, *, max_running=8, max_queue=64, max_rows=64, max_stall_ms=200.0, cache_bytes=None,
                     policy=None, prefix_cache=True, keep_replies=False, thread=True)
        def submit(self, prompt, params=None, *, speculation=None, prediction=None, on_chunk, on_error=None,
                   record_steps=False, templated=False) -> Ticket
        def stats(self) -> SchedulerStats
        def close(self, *, grace_s=0.0) -> None
    class Ticket: id, done, cancelled, cancel(), result(timeout=None) -> Completion

Requests join and leave at any step. A step verifies the drafts of all running answers, the nodes chosen for all
requests at once (`budget.choose_batch`), and computes a piece of the prompts that are being read, no more of it than
lets running answers go on within `max_stall_ms`. Every reply is bit for bit the one it would be alone: rows of an exact
target do not depend on each other, and neither drafts nor reuse can change a token.

Chunks are handed to `on_chunk` in the worker's thread, in order, the last one with `completion`; it must be quick
(hand the chunk over, do not write to a socket). A request that is cancelled ends before the next step, with finish
reason "cancelled" and what there was. An exception in its callback cancels it; one in a step ends it with `on_error`
and is raised by `Ticket.result`; no other request notices.

Caches of ended requests are kept for later ones that begin alike (`prefix`), within `cache_bytes` for running and kept
ones together (`room`). Who begins when is the policy's (`policy`).
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from time import monotonic

from exactspec.engine import Engine
from exactspec.params import SamplingParams, Speculation
from exactspec.prompts import Prompt, is_many, is_messages
from exactspec.results import Chunk, Completion
from exactspec.scheduling.batch import Batch, Outcome
from exactspec.scheduling.job import Job
from exactspec.scheduling.pace import Pace
from exactspec.scheduling.policy import Candidate, FirstCome, Policy
from exactspec.scheduling.replies import Replies
from exactspec.scheduling.room import Room
from exactspec.scheduling.stats import SchedulerStats
from exactspec.scheduling.tally import Tally
from exactspec.scheduling.ticket import Closed, QueueFull, Ticket

_log = logging.getLogger(__name__)


class Scheduler:
    """See the module. The engine stays usable beside it: its own calls take turns with the scheduler's steps.

    `max_running`: requests that share steps; `max_queue`: those that may wait beside them. `max_rows`: rows of running
    answers in one step, drafts included; prompts come on top. `max_stall_ms`: how long a step with prompt rows may
    take while answers are running, as far as measurements foretell. `cache_bytes`: of keys and values, running and
    kept together; None takes half of the memory that is free now. `policy`: `FirstCome` unless given.

    `prefix_cache` False keeps nothing of ended requests. `keep_replies`: in conversations that come back as text, the
    ids generated for earlier replies are put back in place of the template's (`replies`). More of the prefix is found
    then; but which ids a prompt becomes depends on what is remembered, so a reply may differ from that of a fresh
    engine. `thread` False starts no worker: the caller runs `step_once`.

    Raises ValueError on options out of range.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        max_running: int = 8,
        max_queue: int = 64,
        max_rows: int = 64,
        max_stall_ms: float = 200.0,
        cache_bytes: int | None = None,
        policy: Policy | None = None,
        prefix_cache: bool = True,
        keep_replies: bool = False,
        thread: bool = True,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        if not 1 <= max_running <= max_rows:
            raise ValueError(f"max_running must be at least 1 and at most max_rows ({max_rows}), got {max_running}")
        if max_queue < 0:
            raise ValueError(f"max_queue must be >= 0, got {max_queue}")
        if not max_stall_ms > 0:
            raise ValueError(f"max_stall_ms must be > 0, got {max_stall_ms}")
        self.engine = engine
        self.max_running = max_running
        self.max_queue = max_queue
        self._policy = FirstCome() if policy is None else policy
        self._clock = clock
        chunk = engine.prefill_chunk
        self._room = Room(engine.target, limit=cache_bytes, rows=max(max_rows, chunk), keep=prefix_cache)
        self._pace = Pace(cost=engine.cost, stall_s=max_stall_ms / 1000)
        self._batch = Batch(engine.target, self._pace, max_rows=max_rows, prompt_chunk=chunk, clock=clock)
        self._replies = Replies(engine.tokenizer) if keep_replies else None
        self._tally = Tally()
        # Shared with callers' threads, under the lock. All else is the worker's.
        self._lock = threading.Condition()
        self._waiting: deque[Job] = deque()
        self._numbers = 0
        self._closing = False
        self._deadline: float | None = None  # when closing: until then running requests may go on
        self._broken: BaseException | None = None
        self._running: list[Job] = []
        self._thread: threading.Thread | None = None
        if thread:
            self._thread = threading.Thread(target=self._work, name="exactspec-scheduler", daemon=True)
            self._thread.start()
            atexit.register(self.close)

    # -- what callers use ------------------------------------------------------------------------------------------

    def submit(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        speculation: Speculation | None = None,
        prediction: str | Sequence[int] | None = None,
        on_chunk: Callable[[Chunk], None],
        on_error: Callable[[BaseException], None] | None = None,
        record_steps: bool = False,
        templated: bool = False,
    ) -> Ticket:
        """Queue a request; its arguments are those of `Engine.stream`. `templated`: the prompt is ids that a chat
        template made, for `keep_replies`; messages are so by themselves.

        Raises ValueError on a request that cannot be served, `QueueFull` if no place is left, `Closed` after `close`.
        """
        if is_many(prompt):
            raise ValueError("one prompt at a time: submit each by itself")
        ids = self.engine.encode(prompt)
        given: list[int] | None = None
        if self._replies is not None and (templated or is_messages(prompt)):
            given = ids
            with self._lock:
                spliced = self._replies.splice(given)
            ids = spliced if len(spliced) <= self.engine.target.max_length else given
        request = self.engine._request(
            ids, params, speculation=speculation, prediction=prediction, record_steps=record_steps
        )
        with self._lock:
            if self._closing or self._broken is not None:
                raise Closed("the scheduler is closed") from self._broken
            if self._thread is not None and not self._thread.is_alive():
                raise Closed("the scheduler's thread is not there: a forked process has to start its own")
            if len(self._waiting) >= self.max_queue + max(0, self.max_running - len(self._running)):
                self._tally.refused += 1
                raise QueueFull(len(self._waiting), self._retry_after_s())
            self._numbers += 1
            ticket = Ticket(self._numbers, self._notify, prompt_ids=ids)
            job = Job(request, ticket, on_chunk=on_chunk, on_error=on_error, templated=given, arrived=self._clock())
            job.expected = min(request.tokens_left, self._tally.answer_tokens)
            self._policy.arrive(_candidate(job))
            self._waiting.append(job)
            self._lock.notify_all()
        return ticket

    @property
    def broken(self) -> bool:
        """Whether a fault of its own ended it: it takes no requests any more, and does not recover."""
        return self._broken is not None

    def stats(self) -> SchedulerStats:
        """A snapshot."""
        with self._lock:
            return self._tally.snapshot(
                running=len(self._running),
                waiting=len(self._waiting),
                limit=self._room.limit,
                prefix_bytes=self._room.prefixes.nbytes,
                prefix_entries=len(self._room.prefixes),
            )

    def close(self, *, grace_s: float = 0.0) -> None:
        """Take no more requests, cancel those that wait, let the running ones go on for `grace_s` seconds, then cancel
        them too; returns when the worker has ended. Every request gets its last chunk. Calling it again is allowed."""
        with self._lock:
            self._closing = True
            deadline = self._clock() + max(0.0, grace_s)
            self._deadline = deadline if self._deadline is None else min(self._deadline, deadline)
            self._lock.notify_all()
        if self._thread is None:
            while self.step_once():
                pass
            self._room.prefixes.clear()
        elif self._thread is not threading.current_thread():
            self._thread.join()
            atexit.unregister(self.close)

    def __enter__(self) -> Scheduler:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # -- the worker ------------------------------------------------------------------------------------------------

    def step_once(self) -> bool:
        """One step of everything that runs, after letting requests in and out. False if there was nothing to do."""
        self._sort_out()
        self._admit()
        if not self._running:
            return False
        for job in self._room.make(self._running):
            self._tally.preempted += 1
            with self._lock:
                self._waiting.appendleft(job)
        answering, reading = self._parted()
        with self.engine._turns:
            stepped = self._batch.step(answering, reading)
        self._tally.step(stepped.rows, stepped.prompt_rows)
        for outcome in stepped.outcomes:
            self._deliver(outcome)
        self._tally.cache_bytes = self._room.used(self._running)
        return True

    def _work(self) -> None:
        try:
            while True:
                with self._lock:
                    while not (self._running or self._waiting or self._closing):
                        self._lock.wait()
                if not self.step_once() and self._closing:
                    break
        except BaseException as error:  # a fault of the scheduler itself: nobody may be left waiting
            _log.exception("the scheduler failed: all its requests end with the error")
            self._fail_all(error)
        finally:
            self._room.prefixes.clear()

    def _sort_out(self) -> None:
        """End what was cancelled, what has nothing to do, and, when closing, what is not to go on."""
        with self._lock:
            closing, deadline = self._closing, self._deadline
            ended = [job for job in self._waiting if closing or job.ticket.cancelled or job.request.finish_reason]
            for job in ended:
                self._waiting.remove(job)
        late = closing and deadline is not None and self._clock() >= deadline
        ended += [job for job in self._running if late or job.ticket.cancelled or job.deaf]
        for job in ended:
            job.request.cancel()
            self._end(job)

    def _admit(self) -> None:
        with self._lock:
            waiting = list(self._waiting)
        places = self.max_running - len(self._running)
        if not waiting or places <= 0:
            return
        for i in self._chosen([_candidate(job) for job in waiting], places):
            job = waiting[i]
            if not self._room.admits(job, self._running):
                break  # the next ones must not overtake it for ever
            with self._lock:
                self._waiting.remove(job)
                self._running.append(job)
            job.begun = self._clock()
            self._tally.prefix_queries += 1
            self._tally.reuse(self._room.look_up(job), first=True)

    def _chosen(self, waiting: list[Candidate], places: int) -> list[int]:
        """What the policy says, as far as it makes sense; one that fails is replaced by the order of arrival."""
        try:
            order = self._policy.order(waiting, running=len(self._running), places=places, now=self._clock())
            chosen = [i for i in dict.fromkeys(order) if 0 <= i < len(waiting)]
        except Exception:
            _log.exception("policy %s failed: requests begin in order of arrival", type(self._policy).__name__)
            self._policy = FirstCome()
            chosen = list(range(len(waiting)))
        if not chosen and not self._running:
            chosen = [0]  # nothing waits for nothing
        return chosen[:places]

    def _parted(self) -> tuple[list[Job], list[Job]]:
        """Running jobs that emit tokens, and those that read their prompts in this step."""
        answering: list[Job] = []
        reading: list[Job] = []
        for i, job in enumerate(self._running):
            if not job.request.prompt_left:
                answering.append(job)
                continue
            first = not job.request.cache.length
            gained, wait = self._room.follow(job, self._running[:i])
            self._tally.reuse(gained, first=first)
            if not job.request.prompt_left:
                answering.append(job)
            elif not wait:
                reading.append(job)
        return answering, reading

    def _deliver(self, outcome: Outcome) -> None:
        job, request = outcome.job, outcome.job.request
        if outcome.error is not None:
            self._fail(job, outcome.error)
        elif request.finish_reason is not None:
            self._end(job)
        elif outcome.tokens:
            job.send(outcome.tokens)

    def _end(self, job: Job) -> None:
        """A request ended with a completion, cancelled ones included: keep its cache, send its last chunk."""
        try:
            completion = job.request.completion()
            self._room.keep(job)
            job.request.release()
            if self._replies is not None and job.templated is not None:
                self._remember(job, completion)
        except Exception as error:
            self._fail(job, error)
            return
        self._leave(job)
        self._tally.end(completion, self._clock() - job.begun)
        job.finish(completion)

    def _fail(self, job: Job, error: BaseException) -> None:
        """A request ended with an error; what it was doing is undone."""
        _log.warning("request %d failed", job.ticket.id, exc_info=error)
        with contextlib.suppress(Exception):  # whatever is broken in it, the others go on
            job.request.cancel(broken=True)
            job.request.release()
        self._leave(job)
        self._tally.failed += 1
        job.fail(error)

    def _leave(self, job: Job) -> None:
        with self._lock:
            if job in self._running:
                self._running.remove(job)

    def _remember(self, job: Job, completion: Completion) -> None:
        assert self._replies is not None
        assert job.templated is not None
        with self._lock:
            self._replies.record(job.templated, job.prompt.tolist(), completion.token_ids, completion.text)

    def _fail_all(self, error: BaseException) -> None:
        with self._lock:
            self._broken = error
            jobs = [*self._running, *self._waiting]
            self._running.clear()
            self._waiting.clear()
        for job in jobs:
            job.fail(error)

    def _notify(self) -> None:
        with self._lock:
            self._lock.notify_all()

    def _retry_after_s(self) -> float:
        return max(1.0, self._tally.request_s * (len(self._waiting) + 1) / self.max_running)


def _candidate(job: Job) -> Candidate:
    return Candidate(job.arrived, job.request.prompt_left, job.expected)
