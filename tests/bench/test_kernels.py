"""Timing forwards by rows and context."""

from __future__ import annotations

import pytest
from tiny_weights import RandomWeights

from exactspec.bench.kernels import Cell, markdown, measure
from exactspec.target.exact import ExactTarget


@pytest.fixture(scope="module")
def target() -> ExactTarget:
    return ExactTarget(RandomWeights(), threads=2, context=700)


def test_one_cell_per_rows_and_context(target: ExactTarget) -> None:
    cells = measure(target, rows=[1, 4, 40], contexts=[5, 600], repeats=2)
    assert [(cell.rows, cell.context) for cell in cells] == [(1, 5), (1, 600), (4, 5), (4, 600), (40, 5), (40, 600)]
    for cell in cells:
        assert cell.milliseconds > 0
        assert cell.gigabytes_per_s == pytest.approx(target.weight_bytes / cell.milliseconds / 1e6)
    assert [cell.ratio for cell in cells if cell.rows == 1] == [1.0, 1.0]


def test_one_row_is_measured_even_if_not_asked_for(target: ExactTarget) -> None:
    (cell,) = measure(target, rows=[8], contexts=[16], repeats=1)
    assert cell.rows == 8
    assert cell.ratio != 1.0


def test_what_does_not_fit_is_refused(target: ExactTarget) -> None:
    with pytest.raises(ValueError, match="704 positions do not fit the model's context of 700"):
        measure(target, rows=[64], contexts=[640], repeats=1)


def test_the_table() -> None:
    cells = [
        Cell(rows=n, context=c, milliseconds=10.0 * n, ratio=1.0 * n, gigabytes_per_s=20.0 / n, share=0.8 / n)
        for n in (1, 2)
        for c in (512, 2048)
    ]
    lines = markdown(cells).splitlines()
    assert len(lines) == 4
    assert lines[2].startswith("| 1 | 10.00 (1.00), 20.0 (80%) |")
    assert lines[3].startswith("| 2 | 20.00 (2.00), 10.0 (40%) |")


def test_weight_bytes_leave_out_an_untied_embedding() -> None:
    tied = ExactTarget(RandomWeights(tied_head=True), threads=1)
    untied = ExactTarget(RandomWeights(tied_head=False), threads=1)
    assert tied.weight_bytes == untied.weight_bytes
    assert untied.packed.nbytes > tied.packed.nbytes
