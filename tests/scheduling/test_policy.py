"""Who begins when."""

from __future__ import annotations

import pytest
from scheduling.harness import Client, alone, engine, run

from exactspec.live_cost import LiveCost
from exactspec.params import SamplingParams
from exactspec.scheduling import FirstCome, Scheduler, Wait
from exactspec.scheduling.pace import LEAST, Pace, divide
from exactspec.scheduling.policy import Candidate


def arrivals(policy: Wait, n: int, every: float, *, prompt: int = 100, answer: int = 100) -> list[Candidate]:
    found = [Candidate(i * every, prompt, answer) for i in range(n)]
    for candidate in found:
        policy.arrive(candidate)
    return found


def test_first_come() -> None:
    waiting = [Candidate(float(i), 10, 10) for i in range(5)]
    assert FirstCome().order(waiting, running=3, places=2, now=9.0) == [0, 1]
    assert FirstCome().order([], running=0, places=2, now=9.0) == []


def test_thresholds_follow_the_fluid_balance() -> None:
    """Steps of (1 + rows / 100) * 0.1 s; 0.5 requests a second of 200 rows are 100 rows a second: T = 0.1 + 0.1 T."""
    policy = Wait(cost=lambda rows: 1 + rows / 100, row_s=0.1)
    arrivals(policy, 21, 2.0)
    assert policy._balance(100) == pytest.approx(1 / 9, rel=0.05)
    assert policy.thresholds() == {(6, 6): 1}
    busy = Wait(cost=lambda rows: 1 + rows / 10_000, row_s=1.0, patience_s=10)
    arrivals(busy, 41, 0.5)  # 2 a second and 400 rows a second: T = 1 + 0.04 T
    assert busy._balance(400) == pytest.approx(1 / 0.96, rel=0.05)
    assert busy.thresholds() == {(6, 6): 3}


def test_a_class_waits_for_company_but_not_for_ever() -> None:
    policy = Wait(cost=lambda rows: 1 + rows / 10_000, row_s=1.0, patience_s=10)
    arrivals(policy, 41, 0.5)
    two = [Candidate(20.0, 100, 100), Candidate(20.5, 100, 100)]
    assert policy.order(two, running=1, places=8, now=21.0) == []
    assert policy.order([*two, Candidate(21.0, 90, 70)], running=1, places=8, now=21.0) == [0, 1, 2]
    assert policy.order(two, running=1, places=8, now=30.0) == [0, 1]  # patience is over
    assert policy.order(two, running=0, places=8, now=21.0) == [0, 1]  # nothing to wait for
    assert policy.order(two, running=7, places=1, now=21.0) == [0]  # as many as there are places
    with pytest.raises(ValueError, match="patience_s"):
        Wait(patience_s=-1)


def test_a_scheduler_that_waits_gives_the_same_replies() -> None:
    scheduler = Scheduler(engine(), thread=False, policy=Wait(patience_s=0.0))
    prompts = [[i, 2 * i, 3] for i in range(9)]
    params = SamplingParams(max_tokens=9)
    clients = [Client().submit(scheduler, p, params) for p in prompts]
    run(scheduler)
    assert [c.ids for c in clients] == [alone(p, params).token_ids for p in prompts]


class Never:
    def arrive(self, candidate: Candidate) -> None: ...

    def order(self, waiting: object, **facts: object) -> list[int]:
        return []


def test_a_policy_that_lets_nobody_in_stops_nobody() -> None:
    scheduler = Scheduler(engine(), thread=False, policy=Never())
    clients = [Client().submit(scheduler, [i], SamplingParams(max_tokens=3)) for i in range(3)]
    run(scheduler)
    assert all(c.completion is not None for c in clients)


class Raises:
    def arrive(self, candidate: Candidate) -> None: ...

    def order(self, waiting: object, **facts: object) -> list[int]:
        raise RuntimeError("a policy of one's own")


class Odd:
    def arrive(self, candidate: Candidate) -> None: ...

    def order(self, waiting: object, **facts: object) -> list[int]:
        return [7, 1, 1, -1, 0, 99]


@pytest.mark.parametrize("policy", [Raises(), Odd()])
def test_a_policy_that_fails_harms_nobody(policy: object) -> None:
    scheduler = Scheduler(engine(), thread=False, max_running=2, policy=policy)  # type: ignore[arg-type]
    clients = [Client().submit(scheduler, [i], SamplingParams(max_tokens=3)) for i in range(5)]
    run(scheduler)
    assert all(c.ids == alone([i], SamplingParams(max_tokens=3)).token_ids for i, c in enumerate(clients))


# -- pace -------------------------------------------------------------------------------------------------------------


def test_prompt_rows_follow_what_steps_took() -> None:
    pace = Pace(cost=lambda rows: float(rows), stall_s=1.0)
    assert pace.prompt_rows(beside=0, most=256) == 256
    assert pace.prompt_rows(beside=3, most=256) == LEAST  # nothing is known yet
    for _ in range(20):
        pace.record(rows=1, prompt_rows=0, seconds=0.01)
    assert pace.prompt_rows(beside=4, most=256) == 96
    assert pace.prompt_rows(beside=4, most=50) == 50
    for _ in range(4):
        pace.record(rows=100, prompt_rows=90, seconds=2.0)  # long contexts: rows take twice the time
    assert pace.prompt_rows(beside=4, most=256) == 46
    pace.record(rows=100, prompt_rows=90, seconds=500.0)  # one disturbed step
    assert pace.prompt_rows(beside=4, most=256) == 46
    slow = Pace(cost=lambda rows: float(rows), stall_s=1.0)
    slow.record(rows=1, prompt_rows=0, seconds=5.0)
    assert slow.prompt_rows(beside=4, most=256) == LEAST  # a prompt comes to its end all the same
    assert slow.fitting(100, mixed=False) == 0


def test_what_the_machine_was_measured_at_counts_until_steps_do() -> None:
    live = LiveCost(lambda rows: float(rows), plain_s=0.01)
    pace = Pace(cost=live, stall_s=1.0)
    assert pace.prompt_rows(beside=4, most=256) == 96
    pace.record(rows=10, prompt_rows=9, seconds=0.2)
    assert pace.prompt_rows(beside=4, most=256) == 46
    for _ in range(9):
        live.record(rows=1, context=3000, seconds=0.01)
        live.record(rows=8, context=3000, seconds=0.2)
    assert pace.cost_at(100)(8) == 8.0
    assert pace.cost_at(3000)(8) == pytest.approx(20.0)


@pytest.mark.parametrize(
    ("rows", "left", "expected"),
    [
        (100, [400, 30, 90], [25, 30, 45]),
        (100, [400], [100]),
        (16, [3, 50], [3, 13]),
        (1, [5, 5], [1, 0]),
        (256, [10, 20], [10, 20]),
        (40, [], []),
    ],
)
def test_prompt_rows_are_divided(rows: int, left: list[int], expected: list[int]) -> None:
    assert divide(rows, left) == expected
