"""A server under clients that come and go for a long time: every answer is compared with its lone run, memory is read,
and in the end nothing may be left running.

A client asks one of a few questions, by a draft mode drawn for it, and reads the answer to its end; or it goes away at
some token, by reset, close or half a close. What it read until then must be the beginning of the right answer.
"""

from __future__ import annotations

import http.client
import json
import random
import re
import socket
import struct
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

from exactspec.bench.case import Case
from exactspec.bench.peers.error import PeerError
from exactspec.bench.serving.client import Client, timed_events
from exactspec.bench.serving.dialects import Ours
from exactspec.bench.serving.load import load
from exactspec.bench.serving.processes import ServerProcess

MEMORY_PERCENT = 5.0
_DRAFTS = ("", "none", "copy", "copyspec")
_WAYS = ("reset", "close", "half-close")
_IDLE_S = 10.0
_READ = 1 << 16


@dataclass(frozen=True, slots=True)
class Question:
    """A case and the ids of its lone run."""

    case: Case
    answer: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SoakPlan:
    """`disconnects`: share of the answers whose client goes away before the end. `sample_s`: between readings of the
    memory. Raises ValueError on values out of range."""

    clients: int = 4
    seconds: float = 1800.0
    disconnects: float = 0.3
    sample_s: float = 2.0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.clients < 1 or not self.seconds > 0 or not 0 <= self.disconnects <= 1 or not self.sample_s > 0:
            raise ValueError(
                "a soak needs a client, some time, a share of disconnects from 0 to 1, and time between samples: "
                f"got {self.clients}, {self.seconds:g}, {self.disconnects:g}, {self.sample_s:g}"
            )


@dataclass(slots=True)
class Counts:
    """`whole` answers read to the end, `cut` ones that the client left; `tokens` of both. `wrong`: answers that were
    not, as far as they were read, those of a lone run; `errors`: what else went wrong, in words."""

    whole: int = 0
    cut: int = 0
    tokens: int = 0
    wrong: int = 0
    errors: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class SoakResult:
    """`resident`: (seconds, bytes) through the run. `stuck`: answers that still ran or waited after the last client had
    gone for a while, or -1 where the server did not answer any more. `cache`: bytes of keys and values, running and
    kept, before and after."""

    counts: Counts
    seconds: float
    resident: tuple[tuple[float, int], ...]
    stuck: int
    cache: tuple[int, int] = (0, 0)

    @property
    def memory_percent(self) -> float:
        """The last fifth's median against the second fifth's: by then buffers have grown."""
        return drift_percent(self.resident, self.seconds)

    @property
    def holds(self) -> bool:
        c = self.counts
        return (
            c.whole > 0
            and not c.wrong
            and not c.errors
            and not self.stuck
            and abs(self.memory_percent) <= MEMORY_PERCENT
        )

    @property
    def told(self) -> str:
        """One line."""
        c = self.counts
        held = [f"{n / 1e6:.0f}" for _, n in self.resident] or ["?"]
        return (
            f"{'held' if self.holds else 'FAILED'}: {self.seconds / 60:.1f} min, {c.whole} whole answers and {c.cut} "
            f"left by their clients, {c.tokens} tokens, {c.wrong} wrong, {len(c.errors)} errors, {self.stuck} stuck, "
            f"resident {held[0]} to {held[-1]} MB (most {max(held, key=float) if self.resident else '?'}), "
            f"of which cache {self.cache[0] / 1e6:.0f} to {self.cache[1] / 1e6:.0f} MB, "
            f"{self.memory_percent:+.1f}% from its second to its last fifth"
            + (f"; first error: {c.errors[0]}" if c.errors else "")
        )


def drift_percent(resident: Sequence[tuple[float, int]], seconds: float) -> float:
    """See `SoakResult.memory_percent`; 0 where the system does not tell.

    >>> drift_percent([(0, 50), (3, 100), (9, 104)], 10)
    4.0
    """
    early = [n for at, n in resident if 0.2 * seconds <= at < 0.4 * seconds]
    late = [n for at, n in resident if at >= 0.8 * seconds]
    if not early or not late or median(early) <= 0:
        return 0.0
    return 100 * (median(late) / median(early) - 1)


def soak(
    server: ServerProcess,
    questions: Sequence[Question],
    plan: SoakPlan,
    *,
    progress: Callable[[str], None],
    clock: Callable[[], float] = time.monotonic,
) -> SoakResult:
    """Run the plan; all clients of the server must be ours. Before the clock starts every question is asked once, so
    that the server's caches hold what they will hold.

    Raises PeerError if the server fails then.
    """
    counts, lock = Counts(), threading.Lock()
    first = load(
        Client(port=server.port, dialect=Ours()).ask,
        [q.case for q in questions],
        clients=min(plan.clients, len(questions)),
    )
    counts.wrong += sum(r.token_ids != q.answer for r, q in zip(first.replies, questions, strict=True))
    cache = _cache_bytes(server)
    start = clock()
    clients = [
        _Client(server.port, questions, random.Random(f"{plan.seed} {i}"), plan.disconnects, counts, lock)
        for i in range(plan.clients)
    ]
    threads = [threading.Thread(target=c.work, args=(start + plan.seconds, clock), daemon=True) for c in clients]
    for thread in threads:
        thread.start()
    resident: list[tuple[float, int]] = []
    told = start
    while any(thread.is_alive() for thread in threads):
        if not server.running:
            counts.errors.append("the server ended by itself")
            break
        if held := server.memory()["resident"]:
            resident.append((clock() - start, held))
        if clock() - told >= 60:
            told = clock()
            progress(
                f"{(told - start) / 60:.0f} min: {counts.whole} whole, {counts.cut} cut, {counts.wrong} wrong, "
                f"{len(counts.errors)} errors, {held / 1e6:.0f} MB"
            )
        threads[0].join(plan.sample_s) if threads[0].is_alive() else time.sleep(plan.sample_s)
    stuck = _stuck(server, clock) if server.running else -1
    if stuck == 0:
        _probe(server, questions[0], counts)
    return SoakResult(
        counts=counts, seconds=plan.seconds, resident=tuple(resident), stuck=stuck, cache=(cache, _cache_bytes(server))
    )


def _cache_bytes(server: ServerProcess) -> int:
    """0 where the server does not tell any more."""
    try:
        found = re.search(r"^exactspec:cache_bytes ([\d.e+]+)", server.get("/metrics")[1], re.MULTILINE)
    except PeerError:
        return 0
    return 0 if found is None else round(float(found[1]))


def _stuck(server: ServerProcess, clock: Callable[[], float]) -> int:
    """Answers that run or wait once the clients have gone; some time is given."""
    end = clock() + _IDLE_S
    while True:
        try:
            text = server.get("/metrics")[1]
        except PeerError:
            return -1
        found = re.findall(r"^exactspec:num_requests_(?:running|waiting)(?:\{.*?\})? ([\d.e+]+)", text, re.MULTILINE)
        left = round(sum(map(float, found))) if len(found) == 2 else -1
        if left <= 0 or clock() > end:
            return left
        time.sleep(0.1)


def _probe(server: ServerProcess, question: Question, counts: Counts) -> None:
    """One more answer, when all is quiet; and whether any request failed inside the server."""
    try:
        reply = Client(port=server.port, dialect=Ours()).ask(question.case)
        text = server.get("/metrics")[1]
    except PeerError as error:
        counts.errors.append(f"at the end: {error}")
        return
    counts.wrong += reply.token_ids != question.answer
    for path, status in re.findall(
        r'^exactspec:http_requests_total\{path="(/v1/.*?)",status="(5\d\d)"\}', text, re.MULTILINE
    ):
        counts.errors.append(f"{path} answered with {status}")


class _Client:
    """One client's thread."""

    def __init__(
        self,
        port: int,
        questions: Sequence[Question],
        rng: random.Random,
        disconnects: float,
        counts: Counts,
        lock: threading.Lock,
    ) -> None:
        self._port, self._questions, self._rng = port, questions, rng
        self._disconnects, self._counts, self._lock = disconnects, counts, lock

    def work(self, end: float, clock: Callable[[], float]) -> None:
        while clock() < end:
            rng = self._rng
            question = rng.choice(self._questions)
            leaves = rng.random() < self._disconnects
            at = rng.randrange(len(question.answer) + 1) if leaves else None
            try:
                ids, whole = self._ask(question.case, rng.choice(_DRAFTS), at, rng.choice(_WAYS))
            except (OSError, http.client.HTTPException, PeerError, ValueError, KeyError) as error:
                with self._lock:
                    self._counts.errors.append(f"{type(error).__name__}: {error}")
                time.sleep(0.1)  # a server that is gone is not asked a million times
                continue
            right = ids == question.answer if whole else ids == question.answer[: len(ids)]
            with self._lock:
                self._counts.whole += whole
                self._counts.cut += not whole
                self._counts.tokens += len(ids)
                self._counts.wrong += not right

    def _ask(self, case: Case, draft: str, leave_at: int | None, way: str) -> tuple[tuple[int, ...], bool]:
        """The ids that were read, and whether that was the whole answer. `leave_at`: go away when so many are there; 0:
        while the prompt is read."""
        dialect = Ours(draft)
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=300)
        connection.request("POST", dialect.path, json.dumps(dialect.body(case)), {"Content-Type": "application/json"})
        sock = connection.sock
        assert isinstance(sock, socket.socket)
        if leave_at == 0:
            time.sleep(self._rng.random() * 0.05)
            _leave(sock, way)
            connection.close()
            return (), False
        response = connection.getresponse()
        if response.status != 200:
            raise PeerError(f"status {response.status}: {response.read(300).decode(errors='replace')}")
        ids: list[int] = []
        finished = False

        def pieces() -> Any:
            while data := response.read1(_READ):
                yield 0.0, data

        try:
            for _, event in timed_events(pieces()):
                ids += dialect.ids(event)
                finished = finished or any(choice.get("finish_reason") for choice in event["choices"])
                if leave_at is not None and not finished and len(ids) >= leave_at:
                    _leave(sock, way)
                    return tuple(ids), False
        finally:
            response.close()
            connection.close()
        if not finished:
            raise PeerError("the stream ended before the answer did")
        return tuple(ids), True


def _leave(sock: socket.socket, way: str) -> None:
    if way == "reset":
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    elif way == "half-close":
        sock.shutdown(socket.SHUT_WR)
        time.sleep(0.05)  # the server hears of it while the other half is still open
    sock.close()


def questions_of(cases: Sequence[Case], answer: Callable[[Case], tuple[int, ...]], *, seeds: int) -> list[Question]:
    """Every case greedy, and sampled with each of `seeds` seeds."""
    asked = []
    for case in cases:
        sampled = [replace(case.params, temperature=1.0, seed=seed) for seed in range(seeds)]
        asked += [replace(case, params=params) for params in (case.params, *sampled)]
    return [Question(case, answer(case)) for case in asked]
