"""Powers of two in sixteen lanes, against float64: within the stated errors, and exact where results depend on it."""

from __future__ import annotations

import numpy as np
import pytest
from numba import njit

from exactspec.target.kernels import simd as v


@njit(error_model="numpy")
def powers(x: int, out: int, count: int, weights: bool) -> None:
    for i in range(0, count, 16):
        a = v.load(x + 4 * i)
        v.store(out + 4 * i, v.weight(a) if weights else v.exp2(a))


def apply(x: np.ndarray, *, weights: bool) -> np.ndarray:
    padded = np.zeros(-(-len(x) // 16) * 16, dtype=np.float32)
    padded[: len(x)] = x
    out = np.empty_like(padded)
    powers(padded.ctypes.data, out.ctypes.data, len(padded), weights)
    return out[: len(x)]


@pytest.mark.parametrize(("weights", "bound"), [(False, 2e-7), (True, 2e-7)])
def test_relative_error(weights: bool, bound: float) -> None:
    rng = np.random.default_rng(0)
    top = 0.0 if weights else 126.0
    ends = np.array([-126.0, top, 0.0, -0.5, -1.0, -1.5, -(2.0**-30), -125.99999], dtype=np.float32)
    x = np.concatenate([rng.uniform(-126, top, 200_000).astype(np.float32), ends])
    right = np.exp2(x.astype(np.float64))
    assert (np.abs(apply(x, weights=weights) - right) / right).max() < bound


def test_bounds_and_what_is_no_number() -> None:
    lowest = np.float32(-126.00001)
    x = np.array([0.0, lowest, -127.0, -1e30, -np.inf, np.nan, 1.0, 126.0, 1e30, np.inf], dtype=np.float32)
    found = apply(x, weights=False)
    assert found[0] == 1.0
    assert (found[1:5] == 0).all()
    assert found[6] == 2.0
    assert (found[7:] == 2.0**126).all()
    found = apply(x[:6], weights=True)
    assert found[0] == 1.0
    # a hidden key's weight: nothing, or a number that a forward's float mode takes for nothing
    assert (found[1:] < 2.0**-126).all()
    assert (found[2:] == 0).all()
