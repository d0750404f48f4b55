"""Blocks of zeros of any size, and memory that is given back at once."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from exactspec.target.mapped_memory import ALIGNMENT, LEAST, zeros


@pytest.mark.parametrize("nbytes", [0, 1, 63, 4096, LEAST - 1, LEAST, LEAST + 1, 3 * LEAST + 7])
def test_a_block_is_zeros_aligned_and_may_be_written(nbytes: int) -> None:
    block = zeros(nbytes)
    assert (block.dtype, block.shape) == (np.uint8, (nbytes,))
    assert not block.any()
    block[:] = 7
    assert block.all()
    assert nbytes == 0 or block.ctypes.data % ALIGNMENT == 0


def test_a_view_keeps_the_memory() -> None:
    view = zeros(2 * LEAST)[LEAST:].view(np.float32)
    view[:] = 3.0
    others = [zeros(2 * LEAST) for _ in range(8)]
    assert (view == 3.0).all()
    assert not any(other.any() for other in others)


def test_what_cannot_be_had_is_a_memory_error() -> None:
    with pytest.raises(MemoryError, match="cannot be had"):
        zeros(2**62)


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_a_block_between_others_goes_back_to_the_system() -> None:
    blocks = [zeros(3 * LEAST) for _ in range(64)]
    for block in blocks:
        block[:] = 1
    full = resident()
    del blocks[::2], block  # every other one: in an arena nothing of them could be given back
    assert full - resident() > 0.8 * 32 * 3 * LEAST
    assert len(blocks) == 32
