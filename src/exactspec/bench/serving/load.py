"""Several clients at once: each takes the next request when its last one is answered, until none is left."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np

from exactspec.bench.case import Case
from exactspec.bench.rounds import Measurement
from exactspec.bench.serving.client import Reply


@dataclass(frozen=True, slots=True)
class Load:
    """`replies` [case]. `clients`: of each, the numbers of the cases it asked, in order; none is empty."""

    replies: tuple[Reply, ...]
    clients: tuple[tuple[int, ...], ...]

    @property
    def tokens(self) -> int:
        return sum(len(reply.token_ids) for reply in self.replies)

    @property
    def wall_s(self) -> float:
        """From the first request to the last token of all."""
        ends = [reply.arrivals[-1][0] for reply in self.replies if reply.arrivals]
        return max(ends) - min(reply.sent for reply in self.replies) if ends else 0.0

    @property
    def together_tokens_per_s(self) -> float:
        """While every client was being answered: from the moment when the last of them got its first token to the one
        when the first of them got its last. 0 where there is no such time."""
        begin = max(self.replies[asked[0]].arrivals[0][0] for asked in self.clients)
        end = min(self.replies[asked[-1]].arrivals[-1][0] for asked in self.clients)
        tokens = sum(n for reply in self.replies for time, n in reply.arrivals if begin < time <= end)
        return tokens / (end - begin) if end > begin else 0.0

    def measurement(self, extra: Mapping[str, Any] | None = None) -> Measurement:
        """All answers as one: their ids one after the other, the wall clock as the time that they took. The time to the
        first token is the median one."""
        firsts = [reply.first_token_s for reply in self.replies]
        gaps = [gap for reply in self.replies for gap in reply.gaps_s] or [0.0]
        notes = [reply.notes for reply in self.replies if "num_steps" in reply.notes]
        steps = sum(int(note["num_steps"]) for note in notes)
        return Measurement(
            token_ids=tuple(token for reply in self.replies for token in reply.token_ids),
            prefill_s=median(firsts),
            decode_s=self.wall_s,
            extra={
                "clients": len(self.clients),
                "requests": len(self.replies),
                "together_tokens_per_s": self.together_tokens_per_s,
                "first_token_p50_s": median(firsts),
                "first_token_max_s": max(firsts),
                "gap_p50_s": float(np.quantile(gaps, 0.5)),
                "gap_p99_s": float(np.quantile(gaps, 0.99)),
                **({"tau": self.tokens / steps} if steps else {}),
                **(extra or {}),
            },
        )


def load(ask: Callable[[Case], Reply], cases: Sequence[Case], *, clients: int) -> Load:
    """Ask all cases, in order, by `clients` threads that start together. The first error of a client is raised when
    all have ended; the others take no further cases then.

    Raises ValueError on fewer cases than clients.
    """
    if not 1 <= clients <= len(cases):
        raise ValueError(f"{clients} clients need at least as many requests, got {len(cases)}")
    waiting = deque(range(len(cases)))
    replies: dict[int, Reply] = {}
    asked: list[list[int]] = [[] for _ in range(clients)]
    errors: list[BaseException] = []
    start = threading.Barrier(clients)

    def work(mine: list[int]) -> None:
        # The first case is dealt out before the start: a client that is late must not find none left.
        number: int | None = mine[0]
        start.wait()
        try:
            while number is not None and not errors:
                replies[number] = ask(cases[number])
                if not replies[number].arrivals:
                    raise ValueError(f"{cases[number].id}: an answer without tokens cannot be measured")
                number = _next(waiting)
                if number is not None:
                    mine.append(number)
        except BaseException as error:
            errors.append(error)

    threads = []
    for mine in asked:
        mine.append(waiting.popleft())
        threads.append(threading.Thread(target=work, args=(mine,), daemon=True))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return Load(tuple(replies[i] for i in range(len(cases))), tuple(map(tuple, asked)))


def _next(waiting: deque[int]) -> int | None:
    try:
        return waiting.popleft()
    except IndexError:
        return None
