"""What a layer's state knows after cuts."""

from __future__ import annotations

import numpy as np
import pytest

from exactspec.drafters.layer.state import LayerState, StateShape

SHAPE = StateShape(ring=256, page=1024, width=8, width_pad=64)


def append(state: LayerState, count: int) -> None:
    """Tokens named by their positions."""
    ids = np.arange(state.length, state.length + count, dtype=np.int64)
    state.append(ids, np.repeat(ids[:, None], SHAPE.width, axis=1).astype(np.float32))


@pytest.mark.parametrize(("n", "waiting"), [(70, 10), (61, 1), (60, 0), (40, 0)])
def test_a_cut_keeps_what_waits_before_it(n: int, waiting: int) -> None:
    state = LayerState.empty(SHAPE)
    append(state, 60)
    state.taken()
    append(state, 20)
    assert (state.first, state.waiting) == (60, 20)
    state.truncate(n)
    assert (state.length, state.waiting) == (n, waiting)
    assert state.tokens[: state.waiting].tolist() == list(range(60, n))


def test_after_a_cut_below_what_is_known_it_goes_on_as_if_begun_there() -> None:
    state, fresh = LayerState.empty(SHAPE), LayerState.empty(SHAPE)
    state.skip(200)
    append(state, 20)
    state.truncate(60)
    fresh.skip(60)
    for one in (state, fresh):
        assert not one.recall()
        append(one, 20)
        assert (one.low, one.first, one.waiting) == (60, 60, 20)
