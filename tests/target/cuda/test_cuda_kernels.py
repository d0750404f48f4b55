"""The GPU kernels one by one, against plain torch and numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest


@pytest.fixture(scope="module")
def launcher(device: str) -> Any:
    from exactspec.target.cuda.device import open_device
    from exactspec.target.cuda.launch import Launcher

    return Launcher(open_device(device))


def on(launcher: Any, array: np.ndarray) -> Any:
    from exactspec.target.cuda.device import moved

    return moved(array, launcher._device)


@pytest.mark.parametrize(("rows", "group"), [(1, 64), (17, 64), (40, 128)])
def test_products(launcher: Any, rows: int, group: int) -> None:
    """The tiles against torch's own int8 product, group by group; rows one at a time are the same bits."""
    from exactspec.target.cuda.launch import Quantised, reference_product
    from exactspec.target.cuda.weights import Matrix

    rng = np.random.default_rng(rows)
    x = rng.integers(-127, 128, (rows, 256)).astype(np.int8)
    w = rng.integers(-127, 128, (128, 256)).astype(np.int8)
    x_scale = rng.uniform(0.5, 2, (rows, 256 // group)).astype(np.float32)
    w_scale, bias = rng.uniform(0.5, 2, 128).astype(np.float32), rng.standard_normal(128).astype(np.float32) * 1e4
    given = Quantised(on(launcher, x), on(launcher, x_scale))
    matrix = Matrix(on(launcher, w), on(launcher, w_scale), group)
    found = launcher.product(given, matrix).cpu().numpy()
    expected = reference_product(given, matrix).cpu().numpy()
    # Two roundings instead of one where the interpreter has no fused multiply-add: the last bits of the largest sum.
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6 * np.abs(expected).max())
    exact = (x.astype(np.float64) * np.repeat(x_scale, group, axis=1)) @ w.T.astype(np.float64) * w_scale
    np.testing.assert_allclose(found, exact, rtol=1e-5, atol=1e-6 * np.abs(exact).max())
    with_bias = launcher.product(given, matrix, bias=on(launcher, bias)).cpu().numpy()
    np.testing.assert_allclose(with_bias, exact + bias, rtol=1e-5, atol=1e-6 * np.abs(exact).max())
    before = rng.standard_normal((rows, 128)).astype(np.float32) * 1e4
    added = launcher.product(given, matrix, add_to=on(launcher, before)).cpu().numpy()
    np.testing.assert_allclose(added, exact + before, rtol=1e-5, atol=1e-6 * np.abs(exact).max())
    last = Quantised(given.q[rows - 1 :].clone(), given.scale[rows - 1 :].clone())
    assert np.array_equal(launcher.product(last, matrix).cpu().numpy(), found[rows - 1 :])


def quantised(x: np.ndarray, group: int) -> tuple[np.ndarray, np.ndarray]:
    """Reference: whole numbers and scales of rows whose width is whole groups."""
    groups = x.reshape(len(x), -1, group).astype(np.float32)
    most = np.maximum(np.abs(groups).max(axis=2), np.float32(1e-8))
    whole = np.rint(groups * (np.float32(127) / most)[:, :, None]).clip(-127, 127)
    return whole.reshape(x.shape).astype(np.int8), most / np.float32(127)


def test_quantise(launcher: Any) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((5, 256)).astype(np.float32) * np.array([1, 1e-20, 1e20, 0, 3], np.float32)[:, None]
    x[0, :3] = 127, 0.5, 1.5  # ties go to even
    found = launcher.quantised(on(launcher, x), 256, 64)
    q, scale = quantised(x, 64)
    assert np.array_equal(found.q.cpu().numpy(), q)
    assert np.array_equal(found.scale.cpu().numpy(), scale)
    assert found.q[0, 1] == 0
    assert found.q[0, 2] == 2
    padded = launcher.quantised(on(launcher, x[:, :200].copy()), 256, 64)
    assert np.array_equal(padded.q.cpu().numpy(), quantised(np.pad(x[:, :200], ((0, 0), (0, 56))), 64)[0])


def test_garbage_stays_in_its_group(launcher: Any) -> None:
    """NaN counts as 0, infinity as the largest value; other groups do not notice."""
    x = np.ones((2, 128), dtype=np.float32)
    clean = launcher.quantised(on(launcher, x), 128, 64)
    x[0, 3], x[0, 4] = np.nan, -np.inf
    dirty = launcher.quantised(on(launcher, x), 128, 64)
    assert dirty.q[0, 3] == 0
    assert dirty.q[0, 4] == -127
    assert np.isfinite(dirty.scale.cpu().numpy()).all()
    assert np.array_equal(dirty.q.cpu().numpy()[0, 64:], clean.q.cpu().numpy()[0, 64:])
    assert np.array_equal(dirty.q.cpu().numpy()[1], clean.q.cpu().numpy()[1])


def test_norm(launcher: Any) -> None:
    rng = np.random.default_rng(1)
    x = rng.standard_normal((3, 192)).astype(np.float32)
    x[:, 150:] = 0
    weight = rng.uniform(0.5, 2, 192).astype(np.float32)
    out, normed = launcher.norm(on(launcher, x), on(launcher, weight), count=150, group=64, eps=1e-5, keep=True)
    expected = x / np.sqrt((x.astype(np.float64) ** 2).sum(axis=1, keepdims=True) / 150 + 1e-5) * weight
    np.testing.assert_allclose(normed.cpu().numpy(), expected, rtol=1e-6)
    assert np.array_equal(out.q.cpu().numpy(), quantised(normed.cpu().numpy(), 64)[0])


def test_gate(launcher: Any) -> None:
    rng = np.random.default_rng(2)
    both = rng.standard_normal((3, 512)).astype(np.float32) * 4
    both[0, :2] = -300, 300
    gate, up = both[:, :256].astype(np.float64), both[:, 256:]
    with np.errstate(over="ignore"):
        expected = gate / (1 + np.exp(-gate)) * up
    found = launcher.gate(on(launcher, both), 128)
    values = found.q.cpu().numpy() * np.repeat(found.scale.cpu().numpy(), 128, axis=1)
    assert np.abs(values - expected).max() <= 0.51 * found.scale.cpu().numpy().max()


def test_best(launcher: Any) -> None:
    """Over several blocks, with ties between and within blocks, and fewer values in the last block than are asked."""
    rng = np.random.default_rng(3)
    vocab = 2 * 1024 + 3
    logits = rng.integers(0, 40, (6, vocab + 61)).astype(np.float32)
    logits[:, vocab:] = 1e9  # padding, never chosen
    logits[0, 5] = np.nan
    logits[1] = -7
    logits[2, :vocab] = -np.arange(vocab)[::-1]
    ids, values = launcher.best(on(launcher, logits), vocab, 8)
    real = np.where(np.isnan(logits), -np.inf, logits)[:, :vocab]
    order = np.argsort(-real, axis=1, kind="stable")[:, :8]
    assert np.array_equal(ids.cpu().numpy(), order)
    assert np.array_equal(values.cpu().numpy(), np.take_along_axis(real, order, axis=1))


def test_moves_happen_in_order(launcher: Any) -> None:
    """A slot may be the target of one move and the source of a later one, on another page."""
    from exactspec.target.cuda.cache import CudaCache, PageShape

    rng = np.random.default_rng(4)
    cache = CudaCache(PageShape(layers=2, kv_heads=3, head=16), launcher._device, launcher)
    parents = [-1, 0, 0, 2, 3, 3, 5, 6]
    cache.stage(list(range(-1, 123)))
    cache.keep(range(124))
    cache.stage(parents)
    slots = rng.standard_normal((2, 3, 2, 256, 16)).astype(np.float32)
    for i, page in enumerate(cache._pages):
        page.data.copy_(on(launcher, np.ascontiguousarray(slots[:, :, :, 128 * i : 128 * (i + 1)])))
    cache.keep([0, 2, 3, 5, 6, 7])
    expected = slots[:, :, :, [*range(124), 124, 126, 127, 129, 130, 131]]
    found = np.concatenate([page.data.cpu().numpy() for page in cache._pages], axis=3)[:, :, :, :130]
    assert cache.length == 130
    assert np.array_equal(found, expected)
    keys, values = cache.last_layer()
    assert np.array_equal(keys, expected[1, :, 0])
    assert np.array_equal(values, expected[1, :, 1])


def test_forks_share_full_pages_only(launcher: Any) -> None:
    from exactspec.target.cuda.cache import CudaCache, PageShape

    cache = CudaCache(PageShape(layers=1, kv_heads=1, head=16), launcher._device, launcher)
    cache.stage(list(range(-1, 199)))
    cache.keep(range(200))
    fork = cache.fork()
    before = cache._pages[1].data.cpu().numpy().copy()
    fork.stage([-1])
    assert fork._pages[0] is cache._pages[0]
    assert fork._pages[1] is not cache._pages[1]
    fork._pages[1].data.fill_(9)
    assert np.array_equal(cache._pages[1].data.cpu().numpy(), before)
    with pytest.raises(ValueError, match="no path from the root"):
        fork.keep([1])
    with pytest.raises(ValueError, match="cannot truncate a cache of 200 tokens to 201"):
        fork.truncate(201)
