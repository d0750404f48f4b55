"""The cost of rows: the fastest of several rounds, measured once for a target and number of threads."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from exactspec.budget import CostModel
from exactspec.measured_cost import (
    ALWAYS,
    LIMIT_S,
    MOST_STARTS,
    ROUNDS,
    ROWS,
    Measured,
    _check,
    kept_cost,
    measure_cost,
)


@dataclass
class Fake:
    """A target whose forwards take what `cost` says, on its own clock; every second round is disturbed if `noisy`."""

    cost: Any
    identity: str = "fake"
    max_length: int = 1000
    vocab_size: int = 7
    now: float = 0.0
    noisy: bool = True
    sizes: list[int] = field(default_factory=list)

    def new_cache(self) -> object:
        return object()

    def forward(self, segments: list[Any]) -> list[Any]:
        (segment,) = segments
        rows = len(segment.tokens)
        assert max(segment.tokens) < self.vocab_size
        self.sizes.append(rows)
        disturbed = self.noisy and self.sizes.count(rows) % 2 == 0
        self.now += self.cost(rows) * (3.0 if disturbed else 1.0)
        return []

    def clock(self) -> float:
        return self.now


def test_the_fastest_round_counts() -> None:
    fake = Fake(cost=lambda rows: 0.0005 * (3 + rows))
    found = measure_cost(fake, clock=fake.clock)
    assert found.settled
    assert found.cost.rows == ROWS
    assert found.cost.cost == pytest.approx([(3 + rows) / 4 for rows in ROWS], abs=1e-3)
    assert fake.sizes.count(8) in (ROUNDS, ROUNDS + 1)


def test_costs_never_fall_and_never_go_below_one_row() -> None:
    fake = Fake(cost=lambda rows: {1: 0.002, 2: 0.001, 4: 0.004, 8: 0.003}.get(rows, 0.01))
    assert measure_cost(fake, clock=fake.clock).cost.cost[:4] == pytest.approx((1.0, 1.0, 2.0, 2.0))


@pytest.mark.parametrize("row_s", [0.0005, 0.002, 0.01, 0.03])
def test_it_takes_a_second_and_where_rows_cost_much_their_slope_goes_on(row_s: float) -> None:
    fake = Fake(cost=lambda rows: row_s * rows, noisy=False)
    found = measure_cost(fake, clock=fake.clock)
    assert fake.now < LIMIT_S + 2 * row_s  # and the forward that sets buffers up
    assert found.settled
    assert found.cost.rows[: len(found.cost.rows)] == ROWS[: len(found.cost.rows)]
    assert found.cost.rows[-1] >= ALWAYS
    assert found.cost(64) == pytest.approx(64, rel=1e-3)


def test_a_very_slow_target_is_measured_once_by_its_smaller_sizes_and_is_not_settled() -> None:
    fake = Fake(cost=lambda rows: LIMIT_S, noisy=False)
    found = measure_cost(fake, clock=fake.clock)
    assert not found.settled
    assert found.cost.rows == (1, 2, 4, ALWAYS)
    assert fake.sizes == [2, 1, 2, 4, ALWAYS]


def test_a_machine_that_never_settles_is_given_up() -> None:
    fake = Fake(cost=lambda rows: 0.001, noisy=False)
    slower = iter(range(10**6))
    fake.cost = lambda rows: 0.001 * 1.5 ** -next(slower) + 0.01 * 1.2 ** next(slower)
    found = measure_cost(fake, clock=fake.clock)
    assert not found.settled
    assert fake.now < 20 * LIMIT_S


def test_a_short_context() -> None:
    fake = Fake(cost=lambda rows: 0.001 * rows, max_length=5)
    assert measure_cost(fake, clock=fake.clock).cost.rows == (1, 2, 4)
    assert measure_cost(Fake(cost=lambda rows: 0.001, max_length=1)) == Measured(CostModel(), True)


class Counted:
    def __init__(self, settled: bool = True) -> None:
        self.calls, self.settled, self.before = 0, settled, []

    def __call__(self, target: object, *, before: Any) -> Measured:
        self.calls += 1
        self.before.append(before)
        cost = CostModel(rows=(1, 4, 9), cost=(1.0, 1.25, 2.5))
        return Measured(cost, self.settled, {1: (0.5,), 4: (0.25 if self.settled else 0.25 + self.calls,)})


def test_starts_on_a_busy_machine_add_up_until_they_agree(tmp_path: Path) -> None:
    waits = iter([3.0, 1.0, 2.0, 1.05, 9.0])  # how much slower than alone the machine is, by start
    fake = Fake(cost=None, noisy=False)
    clocks = []

    def measure(target: object, *, before: Any) -> Measured:
        slow = next(waits)
        fake.cost = lambda rows: slow * (0.1 + 0.01 * rows)  # a second holds a round up to 8 rows, and no other
        began = fake.now
        found = measure_cost(fake, before=before, clock=fake.clock)
        clocks.append(fake.now - began)
        return found

    said: list[str] = []
    costs = [kept_cost(fake, threads=2, home=tmp_path, measure=measure, progress=said.append) for _ in range(8)]
    assert len(clocks) == 4  # those of the second and the fourth start agree
    assert costs[1].one_s == costs[7].one_s == pytest.approx(0.11)
    assert costs[7](8) == pytest.approx(0.18 / 0.11, abs=1e-3)
    assert said[0].endswith("once")
    assert said[1:] == ["measuring what rows cost on this machine, again, because its times did not agree"] * 3


def test_a_machine_that_is_never_quiet_is_not_measured_for_ever(tmp_path: Path) -> None:
    measure = Counted(settled=False)
    for _ in range(2 * MOST_STARTS):
        assert kept_cost(Fake(cost=None), threads=2, home=tmp_path, measure=measure)(9) == 2.5
    assert measure.calls == MOST_STARTS
    assert measure.before[:3] == [{}, {1: (0.5,), 4: (1.25,)}, {1: (0.5,), 4: (2.25,)}]


def test_a_file_of_an_earlier_version_counts(tmp_path: Path) -> None:
    fake, measure = Fake(cost=None), Counted()
    cost = kept_cost(fake, threads=2, home=tmp_path, measure=measure)
    (path,) = (tmp_path / "costs").iterdir()
    found = json.loads(path.read_text())
    record = {key: found[key] for key in ("key", "rows", "cost", "one_s", "identity")}
    path.write_text(json.dumps(record | {"check": _check(record)}))
    assert kept_cost(fake, threads=2, home=tmp_path, measure=measure) == cost
    assert measure.calls == 1


def test_kept_for_a_target_and_its_threads(tmp_path: Path) -> None:
    measure, said = Counted(), []
    fake, other = Fake(cost=None), Fake(cost=None, identity="other")
    first = kept_cost(fake, threads=2, home=tmp_path, measure=measure, progress=said.append)
    assert kept_cost(fake, threads=2, home=tmp_path, measure=measure, progress=said.append) == first
    assert (measure.calls, len(said)) == (1, 1)
    kept_cost(fake, threads=1, home=tmp_path, measure=measure)
    kept_cost(other, threads=2, home=tmp_path, measure=measure)
    assert measure.calls == 3


def cut(path: Path) -> None:
    path.write_text(path.read_text()[:60])


def another_digit(path: Path) -> None:
    text = path.read_text()
    path.write_text(text.replace("1.25", "1.35"))
    assert path.read_text() != text


def become_a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize(
    "damage",
    [
        *(lambda path, text=text: path.write_text(text) for text in ("", "[1]", "{}", '"x"', "[" * 100_000)),
        cut,
        another_digit,
        become_a_folder,
    ],
    ids=["empty", "list", "object", "text", "deep", "cut", "digit", "folder"],
)
def test_a_damaged_file_is_measured_anew(tmp_path: Path, damage) -> None:
    measure, fake, said = Counted(), Fake(cost=None), []
    first = kept_cost(fake, threads=2, home=tmp_path, measure=measure, progress=said.append)
    (path,) = (tmp_path / "costs").iterdir()
    good = path.read_text()
    damage(path)
    assert kept_cost(fake, threads=2, home=tmp_path, measure=measure, progress=said.append) == first
    assert measure.calls == 2
    assert path.read_text() == good
    assert said == [
        "measuring what rows cost on this machine, once",
        "measuring what rows cost on this machine, again, because what was kept is damaged",
    ]


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "costs").write_text("in the way")
    measure = Counted()
    for _ in range(2):
        kept_cost(Fake(cost=None), threads=2, home=tmp_path, measure=measure)
    assert measure.calls == 2
