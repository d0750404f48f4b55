"""The simulator of admission policies: its requests all end, and its clock is the machine's."""

from __future__ import annotations

from statistics import mean

import pytest

from exactspec.scheduling import FirstCome, Wait
from exactspec.scheduling.simulate import SMALL, Arrival, Machine, bursts, compare, poisson, simulate

MACHINE = Machine(cost=lambda rows: float(rows), row_s=0.1)


def test_one_request_by_hand() -> None:
    """9 prompt rows in one piece, then 3 steps of a row; the request came after 2 seconds."""
    result = simulate([Arrival(2.0, 10, 3)], FirstCome(), MACHINE)
    assert result.first == [pytest.approx(1.0)]
    assert result.latency == [pytest.approx(1.2)]
    assert result.gap == [pytest.approx(0.1)]
    assert result.tokens_per_s == pytest.approx(3 / 1.2)


def test_two_requests_share_steps_and_one_place_does_not() -> None:
    both = [Arrival(0.0, 1, 10), Arrival(0.0, 1, 10)]
    flat = Machine(cost=lambda rows: 1.0, row_s=0.1)
    assert simulate(both, FirstCome(), flat).latency == [pytest.approx(1.0)] * 2
    assert simulate(both, FirstCome(), flat, max_running=1).latency == [pytest.approx(1.0), pytest.approx(2.0)]


def test_memory_holds_requests_back() -> None:
    both = [Arrival(0.0, 1, 10), Arrival(0.0, 1, 10)]
    tight = Machine(cost=lambda rows: 1.0, row_s=0.1, tokens=15)
    assert simulate(both, FirstCome(), tight).latency == [pytest.approx(1.0), pytest.approx(2.0)]


def test_prompts_do_not_hold_answers_up() -> None:
    arrivals = [Arrival(0.0, 2, 100), Arrival(1.0, 600, 2)]
    result = simulate(arrivals, FirstCome(), Machine(cost=lambda rows: float(rows), row_s=0.01), stall_s=0.2)
    assert max(result.gap) <= 0.2 + 1e-9
    free = simulate(arrivals, FirstCome(), Machine(cost=lambda rows: float(rows), row_s=0.01), stall_s=10.0)
    assert max(free.gap) > 1.0


@pytest.mark.parametrize("policy", [FirstCome, Wait])
def test_everybody_is_served(policy: type) -> None:
    arrivals = bursts(0.5, 40, seed=1)
    result = simulate(arrivals, policy(), Machine(cost=lambda rows: 1 + rows / 8, row_s=0.02))
    assert len(result.first) == len(result.latency) == len(result.gap) == 40
    assert all(a > 0 for a in result.first)


def test_traffic_has_the_rate_it_says() -> None:
    for traffic in (poisson, bursts):
        ends = [traffic(2.0, 300, seed=s)[-1].at for s in range(8)]
        assert 300 / mean(ends) == pytest.approx(2.0, rel=0.15)
        times = [a.at for a in traffic(2.0, 300, seed=1)]
        assert times == sorted(times)


def test_the_table_names_every_combination() -> None:
    flat = Machine(cost=lambda rows: 1 + rows / 16, row_s=0.01)
    lines = compare("m", flat, SMALL, max_running=8, loads=(0.9,), n=20, seeds=(0,))
    assert [line.split("|")[2:5] for line in lines] == [
        [f" {kind} ", " 0.90 ", f" {policy} "] for kind in ("poisson", "bursts") for policy in ("first come", "WAIT")
    ]
