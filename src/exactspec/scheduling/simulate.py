"""Admission policies compared on invented traffic, with the scheduler's own rules and a machine made of a cost curve.

    python -m exactspec.scheduling.simulate

Requests arrive (Poisson, or in bursts), wait, read their prompts in pieces, answer a token a step (no drafts: the
hardest case for a queue), and leave. A step takes ``row_s * cost(rows)`` plus `context_s` for every token that a row
attends to. Who begins is the policy's; how many prompt rows a step has is `pace`'s, as in the scheduler.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import mean
from typing import TypeAlias

from exactspec.budget import Cost, CostModel
from exactspec.scheduling.pace import Pace, divide
from exactspec.scheduling.policy import Candidate, FirstCome, Policy, Wait


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """`row_s`: seconds of a forward of one row. `context_s`: more of it per row and token attended to. `tokens`: that
    the cache holds."""

    cost: Cost
    row_s: float
    context_s: float = 0.0
    tokens: int = 60_000


@dataclass(frozen=True, slots=True)
class Arrival:
    """Seconds, and tokens of prompt and answer."""

    at: float
    prompt: int
    answer: int


Kinds: TypeAlias = Sequence[tuple[float, int, int]]
"""(share, prompt, answer) of each kind of request; lengths are spread from half to double."""

MIXED: Kinds = ((0.5, 250, 150), (0.3, 900, 40), (0.2, 3000, 250))
"""A chat turn, a completion in an editor, a question on a document."""

SMALL: Kinds = ((1.0, 40, 6),)
"""Many tiny requests: labels for short texts."""


def poisson(rate: float, n: int, *, seed: int, kinds: Kinds = MIXED) -> list[Arrival]:
    """n requests, `rate` a second."""
    rng = random.Random(seed)
    now, found = 0.0, list[Arrival]()
    for _ in range(n):
        now += rng.expovariate(rate)
        found.append(_request(rng, now, kinds))
    return found


def bursts(rate: float, n: int, *, seed: int, kinds: Kinds = MIXED, size: int = 12) -> list[Arrival]:
    """As many a second on average, but `size` of them at a time, within a second."""
    rng = random.Random(seed)
    now, found = 0.0, list[Arrival]()
    while len(found) < n:
        now += rng.expovariate(rate / size)
        found += [_request(rng, now + rng.random(), kinds) for _ in range(size)]
    return sorted(found[:n], key=lambda a: a.at)


def _request(rng: random.Random, at: float, kinds: Kinds) -> Arrival:
    (_, prompt, answer) = rng.choices(kinds, weights=[k[0] for k in kinds])[0]
    return Arrival(at, round(prompt * 2 ** rng.uniform(-1, 1)), round(answer * 2 ** rng.uniform(-1, 1)))


@dataclass(slots=True)
class _Running:
    arrival: Arrival
    left: int  # of the prompt
    context: int = 0
    tokens: int = 0
    last: float = 0.0  # time of its last token
    gap: float = 0.0


@dataclass(slots=True)
class Result:
    """Per request, in seconds: `first` (arrival to first token), `latency` (arrival to last token), `gap` (longest time
    between two tokens). `tokens_per_s`: of all answers, from the first arrival to the last end."""

    first: list[float] = field(default_factory=list)
    latency: list[float] = field(default_factory=list)
    gap: list[float] = field(default_factory=list)
    tokens_per_s: float = 0.0


def simulate(
    arrivals: Sequence[Arrival],
    policy: Policy,
    machine: Machine,
    *,
    max_running: int = 8,
    stall_s: float = 0.2,
    prompt_chunk: int = 256,
) -> Result:
    """Until every request has ended."""
    result, pace = Result(), Pace(cost=machine.cost, stall_s=stall_s)
    coming, waiting, running = list(arrivals), list[Arrival](), list[_Running]()
    now, tokens = 0.0, 0
    while coming or waiting or running:
        if not (waiting or running):
            now = max(now, coming[0].at)
        while coming and coming[0].at <= now:
            waiting.append(coming.pop(0))
            policy.arrive(_candidate(waiting[-1]))
        places = max_running - len(running)
        chosen: list[int] = []
        if waiting and places:
            chosen = policy.order([_candidate(a) for a in waiting], running=len(running), places=places, now=now)
            if not chosen and not running:
                chosen = [0]
        begun: list[Arrival] = []
        for i in chosen:
            taken = sum(r.arrival.prompt + r.arrival.answer for r in running)
            if running and taken + waiting[i].prompt + waiting[i].answer > machine.tokens:
                break
            begun.append(waiting[i])
            running.append(_Running(waiting[i], waiting[i].prompt - 1))
        waiting = [a for a in waiting if not any(a is b for b in begun)]
        now, emitted = _step(running, pace, machine, prompt_chunk, now, result)
        tokens += emitted
        running = [r for r in running if r.tokens < r.arrival.answer]
    result.tokens_per_s = tokens / max(now - arrivals[0].at, 1e-9)
    return result


def _step(
    running: list[_Running], pace: Pace, machine: Machine, chunk: int, now: float, result: Result
) -> tuple[float, int]:
    answering = [r for r in running if not r.left]
    reading = [r for r in running if r.left]
    prompt_rows = pace.prompt_rows(beside=len(answering), most=chunk) if reading else 0
    shares = divide(prompt_rows, [r.left for r in reading])
    rows = len(answering) + sum(shares)
    attended = sum(r.context for r in answering) + sum(n * r.context for r, n in zip(reading, shares, strict=True))
    seconds = machine.row_s * machine.cost(max(1, rows)) + machine.context_s * attended
    now += seconds
    pace.record(rows=rows, prompt_rows=sum(shares), seconds=seconds)
    for r, n in zip(reading, shares, strict=True):
        r.left -= n
        r.context += n
    for r in answering:
        if not r.tokens:
            result.first.append(now - r.arrival.at)
            r.last = now
        r.gap = max(r.gap, now - r.last)
        r.last = now
        r.tokens += 1
        r.context += 1
        if r.tokens == r.arrival.answer:
            result.latency.append(now - r.arrival.at)
            result.gap.append(r.gap)
    return now, len(answering)


def _candidate(arrival: Arrival) -> Candidate:
    return Candidate(arrival.at, arrival.prompt, arrival.answer)


def p95(values: Sequence[float]) -> float:
    return sorted(values)[min(len(values) - 1, int(0.95 * len(values)))]


AVX2 = Machine(cost=CostModel(rows=(1, 4, 8, 16, 32), cost=(1.0, 1.45, 2.6, 4.8, 9.9)), row_s=0.018, context_s=1.5e-7)
VNNI = Machine(cost=CostModel(), row_s=0.018, context_s=1.5e-7)
"""A model of 0.5 billion weights on two cores."""

TRAFFIC: tuple[tuple[str, Callable[..., list[Arrival]]], ...] = (("poisson", poisson), ("bursts", bursts))


def capacity(machine: Machine, kinds: Kinds, max_running: int) -> float:
    """Requests a second that end when there is always one waiting."""
    arrivals = poisson(1000.0, 100, seed=0, kinds=kinds)
    done = simulate(arrivals, FirstCome(), machine, max_running=max_running)
    return len(arrivals) / max(done.latency)


def compare(
    name: str,
    machine: Machine,
    kinds: Kinds,
    *,
    max_running: int,
    loads: Sequence[float] = (0.7, 0.95, 1.2),
    n: int = 150,
    seeds: Sequence[int] = range(3),
) -> list[str]:
    """Lines of a table, one for every traffic, load and policy; means over the seeds. `loads`: shares of capacity."""
    most, lines = capacity(machine, kinds, max_running), []
    for kind, traffic in TRAFFIC:
        for load in loads:
            policies: tuple[tuple[str, Callable[[], Policy]], ...] = (
                ("first come", FirstCome),
                ("WAIT", lambda: Wait(cost=machine.cost, row_s=machine.row_s)),
            )
            for label, policy in policies:
                runs = [
                    simulate(traffic(load * most, n, seed=s, kinds=kinds), policy(), machine, max_running=max_running)
                    for s in seeds
                ]
                figures = (
                    mean(mean(r.first) for r in runs),
                    mean(p95(r.first) for r in runs),
                    mean(mean(r.latency) for r in runs),
                    mean(p95(r.latency) for r in runs),
                    mean(r.tokens_per_s for r in runs),
                )
                lines.append(f"| {name} | {kind} | {load:.2f} | {label} |" + "".join(f" {x:.1f} |" for x in figures))
    return lines


def main() -> None:
    print("| machine, requests | arrivals | load | policy | first token s | p95 | latency s | p95 | tokens/s |")
    print("|---|---|---|---|---|---|---|---|---|")
    rows = (("AVX2, mixed", AVX2, MIXED, 8), ("VNNI, mixed", VNNI, MIXED, 8), ("VNNI, small", VNNI, SMALL, 32))
    for name, machine, kinds, max_running in rows:
        for line in compare(name, machine, kinds, max_running=max_running):
            print(line)


if __name__ == "__main__":
    main()
