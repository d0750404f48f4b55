"""Log summary with evidence: a chain of faults in a log of near-duplicate lines, each quoted exactly."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, TypeAlias

from exactspec.bench.recipes.base import CountTokens, Draft, Plan, fit_draft, user
from exactspec.bench.recipes.materials import Materials

_SERVICES: Final = ("gateway", "orders", "billing", "search", "mailer")
_LINES = 4096
_CHAIN: Final = ("disk full", "write error", "retry 1", "retry 2", "timeout", "restart")
_FROM = 0.3  # where in the log the chain lies, at the earliest

_Filler: TypeAlias = Callable[[random.Random], str]


@dataclass(frozen=True, slots=True)
class _Log:
    """`lines`: all. `chain`: indices of the chain's lines, in the order of `_CHAIN`."""

    lines: list[str]
    chain: list[int]
    service: str


def make(seed: int, size: int, count: CountTokens, materials: Materials) -> Draft:
    """Lines of five made-up services with a seeded clock, and one planted chain: disk full, write error, two
    retries, timeout, restart. The lines in between repeat all of the chain's words with other numbers.

    Raises ValueError if no number of lines gives the size.
    """
    rng = random.Random(seed)
    return fit_draft("log_evidence", rng, size, count, _plan)


def _plan(rng: random.Random) -> Plan:
    base = rng.getrandbits(64)

    def build(n: int) -> Draft | None:
        if n < len(_CHAIN) + 2:
            return None
        log = _log(random.Random(base), n)
        ask = (
            f"Below is a log. A full disk set off a chain of faults in the service {log.service}: "
            f"{', '.join(_CHAIN)}. Give the timeline of the chain, with every line quoted exactly, and then the cause "
            "in three sentences."
        )
        return Draft(user(f"{ask}\n\n" + "\n".join(log.lines)), _report(log), ("made up",), n)

    return _LINES, build


def _log(rng: random.Random, n: int) -> _Log:
    service = rng.choice(_SERVICES)
    clock = datetime(2024, 1, 1) + timedelta(seconds=rng.randrange(300 * 86400))
    most = max(n - 1 - int(_FROM * n), len(_CHAIN))
    places = sorted(rng.sample(range(n - 1 - most, n - 1), len(_CHAIN)))
    worker, block = rng.randrange(2, 40), rng.randrange(10_000, 99_999)
    planted = _chain(rng, worker, block)
    lines: list[str] = []
    at = dict(zip(places, planted, strict=True))
    for i in range(n):
        clock += timedelta(milliseconds=rng.randrange(20, 4000))
        stamp = clock.strftime("%H:%M:%S")
        lines.append(f"{stamp} {service} {at[i]}" if i in at else f"{stamp} {_line(rng)}")
    return _Log(lines, places, service)


def _chain(rng: random.Random, worker: int, block: int) -> list[str]:
    """What the planted lines say, by the order of `_CHAIN`."""
    volume = f"/srv/data{rng.randrange(2, 9)}"
    return [
        f"ERROR volume {volume} has 0 of {rng.randrange(200, 900)} GB left",
        f"ERROR worker {worker} cannot write block {block}: no space left on {volume}",
        f"WARN worker {worker} tries block {block} again, attempt 1 of 2",
        f"WARN worker {worker} tries block {block} again, attempt 2 of 2",
        f"ERROR worker {worker} gave up block {block} after {rng.randrange(3000, 30000)} ms",
        f"INFO worker {worker} restarted as process {rng.randrange(1000, 32000)}",
    ]


def _ip(rng: random.Random) -> str:
    return f"192.0.2.{rng.randrange(1, 255)}"


# Twelve kinds; some say what the chain says, of workers and blocks that are not in it and did not fail.
_FILLERS: Final[tuple[_Filler, ...]] = (
    lambda r: f"INFO request {r.randrange(10**6):06d} from {_ip(r)} answered in {r.randrange(1, 900)} ms",
    lambda r: f"INFO request {r.randrange(10**6):06d} from {_ip(r)} refused: too many at once",
    lambda r: f"INFO session {r.randrange(16**6):06x} opened by {_ip(r)}",
    lambda r: f"INFO session {r.randrange(16**6):06x} closed after {r.randrange(5, 7200)} s",
    lambda r: f"INFO worker {r.randrange(40, 99)} wrote block {r.randrange(10_000, 99_999)} in {r.randrange(1, 90)} ms",
    lambda r: f"WARN worker {r.randrange(40, 99)} tries block {r.randrange(10_000, 99_999)} again, attempt 1 of 2",
    lambda r: f"INFO volume /srv/data{r.randrange(2, 9)} has {r.randrange(20, 199)} of {r.randrange(200, 900)} GB left",
    lambda r: f"WARN answer from {_ip(r)} is late by {r.randrange(100, 3000)} ms",
    lambda r: f"INFO cache holds {r.randrange(100, 9999)} entries, {r.randrange(40, 100)}% were found",
    lambda r: f"INFO worker {r.randrange(40, 99)} started as process {r.randrange(1000, 32000)}",
    lambda r: f"DEBUG queue {r.randrange(1, 8)} holds {r.randrange(0, 400)} jobs, oldest {r.randrange(1, 900)} s",
    lambda r: f"INFO certificate of {_ip(r)} is good for {r.randrange(3, 90)} days",
)


def _line(rng: random.Random) -> str:
    return f"{rng.choice(_SERVICES)} {rng.choice(_FILLERS)(rng)}"


def _report(log: _Log) -> str:
    told = (
        "First the storage ran out of room, which the service noticed at once:",
        "The next thing to fail was a write, and that is where data was first at risk:",
        "Nobody freed any space, so trying anew could only fail; this is the opening attempt:",
        "Then came the final one, with the same outcome:",
        "Patience ended here, and whoever had asked was left without an answer:",
        "Only afterwards did the supervisor step in and bring up a replacement:",
    )
    quoted = [log.lines[i] for i in log.chain]
    parts = [f"{n}. {told[n - 1]}\n   `{line}`" for n, line in enumerate(quoted, 1)]
    first, last = (line[:8] for line in (quoted[0], quoted[-1]))
    worker = quoted[1].split(" cannot")[0].split("worker ")[1]
    cause = (
        f"Cause: the trouble began at {first}, when storage had been used up entirely and nothing watched its level. "
        f"Because number {worker} kept insisting on one and the same piece of data instead of reporting upwards, its "
        f"callers waited in vain. Service was back at {last}, yet unless room is made this will happen once more."
    )
    return "Timeline\n\n" + "\n".join(parts) + f"\n\n{cause}"
