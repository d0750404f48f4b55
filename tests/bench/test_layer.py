"""``exactspec bench layer``: what is timed, and what is told of it."""

from __future__ import annotations

import pytest
from scripted import Clock
from tiny_weights import RandomWeights

from exactspec.bench.layer import layer_table, measure_layer, random_layer
from exactspec.drafters.layer.footprint import state_bytes
from exactspec.drafters.layer.runner import LayerRunner
from exactspec.drafters.layer.sight import Sight
from exactspec.target.exact import ExactTarget


@pytest.fixture(scope="module")
def runner() -> LayerRunner:
    target = ExactTarget(RandomWeights(), threads=1, context=2048)
    return LayerRunner(target, random_layer(target, name="tiny"), sight=Sight(64))


def test_cells_by_context(runner: LayerRunner) -> None:
    cells = measure_layer(runner.target, runner, contexts=(100, 900), repeats=3)
    assert [cell.context for cell in cells] == [100, 900]
    assert {cell.request_bytes for cell in cells} == {state_bytes(runner.card)}
    for cell in cells:
        assert min(cell.plain_ms, cell.node_ms, cell.tree_ms, cell.beam_ms) > 0
    lines = layer_table(cells, runner).splitlines()
    assert len(lines) == 4
    assert f"{state_bytes(runner.card) / 1e6:.3f} MB" in lines[-1]


def test_times_are_of_one_pass(runner: LayerRunner) -> None:
    """Each reading of this clock is a second after the one before: a plain step and a tree take one second each."""
    clock = Clock()

    def tick() -> float:
        clock.now += 1
        return clock.now

    (cell,) = measure_layer(runner.target, runner, contexts=(50,), repeats=2, clock=tick)
    assert cell.plain_ms == 1000
    assert cell.node_ms == cell.beam_ms == pytest.approx(1000 / 5)  # five passes
    assert cell.node_ratio == pytest.approx(0.2)


def test_a_context_that_does_not_fit(runner: LayerRunner) -> None:
    with pytest.raises(ValueError, match="do not fit the model's context of 2048"):
        measure_layer(runner.target, runner, contexts=(3000,), repeats=1)
