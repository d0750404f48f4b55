"""How attention is cut into tasks: every pair and key once, and never past what the kernels have room for."""

from __future__ import annotations

import itertools

import pytest

from exactspec.target.kernels.float_tile import BLOCK
from exactspec.target.kernels.task import RECORD_HEAD
from exactspec.target.tasks import MOST_RECORDS, SPAN, cut, most_pairs


@pytest.mark.parametrize("threads", [1, 2, 3, 16, 64])
@pytest.mark.parametrize(("heads", "kv_heads", "head_pad"), [(9, 3, 64), (14, 2, 64), (32, 8, 128), (4, 1, 256)])
def test_cuts(heads: int, kv_heads: int, head_pad: int, threads: int) -> None:
    group = heads // kv_heads
    lengths = (1, 255, 256, 257, 513, 8192, 100_000)
    for sizes in [
        *([(rows, rows + n)] for rows in (1, 2, 16, 300) for n in lengths),
        [(1, 9000), (16, 20), (300, 300)],
    ]:
        cuts, tasks, records = cut(sizes, heads=heads, kv_heads=kv_heads, head_pad=head_pad, threads=threads)
        first = floats = 0
        for (rows, length), part in zip(sizes, cuts, strict=True):
            assert part.first_task == first
            assert 1 <= part.parts <= part.spans == -(-length // SPAN)
            assert 1 <= part.blocks <= rows * group
            assert -(-rows * group // part.blocks) <= most_pairs(head_pad)
            if part.parts > 1:
                assert part.records == floats
                floats += rows * heads * part.spans * (RECORD_HEAD + head_pad)
            first += kv_heads * part.blocks * part.parts
        assert (first, floats) == (tasks, records)
        assert records <= MOST_RECORDS


def test_threads_get_work() -> None:
    """One long row on 3 kv heads and 2 threads, or on 2 and 64, is shared by spans; 2 kv heads on 2 threads are not."""
    parts = lambda kv, threads: cut([(1, 8192)], heads=3 * kv, kv_heads=kv, head_pad=64, threads=threads)[0][0].parts  # noqa: E731
    assert [parts(3, 2), parts(2, 2)] == [3, 1]
    assert parts(2, 64) > 8
    short = cut([(1, 300)], heads=9, kv_heads=3, head_pad=64, threads=2)[0][0]
    assert short.parts == 1  # too little to share


def test_pairs_of_a_task() -> None:
    for head_pad in (32, 64, 96, 128, 256, 512):
        assert most_pairs(head_pad) % BLOCK == 0
    assert list(itertools.starmap(lambda pad, n: most_pairs(pad) == n, [(64, 96), (128, 48), (256, 24)])) == [True] * 3
