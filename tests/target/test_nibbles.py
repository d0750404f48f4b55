"""Four-bit weights: nothing of a file's blocks is lost, and a product is the documented sum, bit for bit."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
from numba import njit
from tiny_files import HEAD, HIDDEN, INNER, KV_HEADS, permute, write_gguf
from tiny_weights import FourBitWeights, RandomWeights, four_bit_blocks

from exactspec.memory import estimate
from exactspec.target.cpu import describe_cpu
from exactspec.target.gguf_file import GgufSource
from exactspec.target.kernels.compile import Packing, load_kernels
from exactspec.target.kernels.frame import FRAME
from exactspec.target.kernels.nibbles import HALF, SIX, SUPER_BYTES
from exactspec.target.kernels.peaks import unit_nibble_products
from exactspec.target.kernels.rows import quantise_blocks
from exactspec.target.nibble_pack import Group, Nibbles, pack_nibbles, saved_bytes
from exactspec.target.pack import pack_model

Q = gguf.GGMLQuantizationType
KINDS = {"Q4_0": HALF, "Q4_1": HALF, "Q4_K": SIX}


@pytest.fixture(scope="module")
def packing() -> Packing:
    return load_kernels(describe_cpu()).packing


def taken_apart(nibbles: Nibbles) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """q [units * 32, blocks, 32], scales and minima [units * 32, blocks] float64, by the layout that is documented."""
    units = nibbles.stored.reshape(nibbles.units, -1)
    head, tail = (0, 128) if nibbles.form == HALF else (128, 64)
    blocks = units.shape[1] * 8 // SUPER_BYTES[nibbles.form]
    q, scales, minima = [], [], []

    def halves(at: int) -> np.ndarray:
        return np.ascontiguousarray(units[:, at : at + 64]).view("<f2").astype(np.float64)

    for block in range(blocks):
        at = block // 8 * SUPER_BYTES[nibbles.form] + head + block % 8 * (512 + tail)
        parts = units[:, at : at + 512].reshape(nibbles.units, 4, 32, 4)
        both = np.stack([parts & 15, parts >> 4], axis=3)  # [unit, part, channel, half, 4]
        q.append(both.transpose(0, 2, 1, 3, 4).reshape(-1, 32))
        if nibbles.form == HALF:
            scale, minimum = halves(at + 512), halves(at + 576)
        else:
            start = block // 8 * SUPER_BYTES[SIX]
            scale = halves(start) * units[:, at + 512 : at + 544]
            minimum = halves(start + 64) * units[:, at + 544 : at + 576]
        scales.append(scale.reshape(-1))
        minima.append(minimum.reshape(-1))
    return np.stack(q, axis=1), np.stack(scales, axis=1), np.stack(minima, axis=1)


class OneMatrix(RandomWeights):
    def __init__(self, kind: str, rows: np.ndarray, width: int) -> None:
        super().__init__()
        self._blocks = kind, rows, width

    def block_kind(self, name: str) -> str:
        return self._blocks[0]

    def four_bit(self, name: str):
        from exactspec.target.weights import FourBitRows

        return FourBitRows(*self._blocks)


@pytest.mark.parametrize("kind", KINDS)
def test_weights_are_the_files_own(packing: Packing, kind: str) -> None:
    """To the last bit, scales that are subnormal in float16 included, wherever the rows go."""
    rng = np.random.default_rng(1)
    rows = four_bit_blocks(kind, 50, 512, rng)
    size = gguf.GGML_QUANT_SIZES[Q[kind]][1]
    count = 1 if kind == "Q4_0" else 2
    begins = rng.standard_normal((50, rows.shape[1] // size, count)) * np.exp(rng.uniform(-18, 3, (50, 1, count)))
    rows.reshape(50, -1, size)[..., : 2 * count] = begins.astype("<f2").view(np.uint8)
    places = rng.permutation(64)[:50]
    source = OneMatrix(kind, rows, 512)
    count, nibbles = pack_nibbles(source, packing, [Group([("x", places)], 64)])
    assert count == 1
    assert nibbles is not None
    assert (nibbles.form, nibbles.units) == (KINDS[kind], 2)
    assert nibbles.weights == 64 * 512
    q, scales, minima = taken_apart(nibbles)
    weights = (scales[:, :, None] * q - minima[:, :, None]).reshape(64, 512)
    expected = gguf.quants.dequantize(rows, Q[kind])
    assert np.array_equal(weights[places].astype(np.float32), expected)
    assert not weights[np.setdiff1d(np.arange(64), places)].any()


def activations(rng: np.random.Generator, rows: int, width: int) -> np.ndarray:
    """Rows with outliers, a block of zeros and one of values near the smallest scale."""
    x = rng.standard_normal((rows, width)) * np.exp(rng.standard_normal((rows, width)))
    x[:, 32:64], x[:, 64:96] = 0, 1e-9
    return x.astype(np.float32)


@njit
def quantise_all(x, q, scales, sums):
    for r in range(x.shape[0]):
        quantise_blocks(
            x[r].ctypes.data, x.shape[1], q[r].ctypes.data, scales[r].ctypes.data, sums[r].ctypes.data
        )  # fmt: skip


def quantised(x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The kernel's q, scales and sums, held against numpy's."""
    rows, width = x.shape
    q = np.zeros((rows, width), dtype=np.int8)
    scales, sums = np.zeros((2, rows, width // 32), dtype=np.float32)
    quantise_all(x, q, scales, sums)
    blocks = x.reshape(rows, -1, 32)
    peak = np.maximum(np.abs(blocks).max(axis=2), np.float32(1e-8))
    expected = np.rint(blocks * (np.float32(127) / peak)[:, :, None])
    assert np.array_equal(q.reshape(blocks.shape), expected)
    assert np.array_equal(scales, peak / np.float32(127))
    assert np.array_equal(sums, -scales * expected.sum(axis=2, dtype=np.float32))
    return q, scales, sums


@pytest.mark.parametrize("kind", ["Q4_1", "Q4_K"])
def test_a_product_is_the_documented_sum(packing: Packing, kind: str, product) -> None:
    """Integers in a block, then two fused multiply-adds a block, in order: the same bits for every number of rows."""
    rng = np.random.default_rng(2)
    width, most = 2304, 23
    rows = four_bit_blocks(kind, 32, width, rng)
    _, nibbles = pack_nibbles(OneMatrix(kind, rows, width), packing, [Group([("x", np.arange(32))], 32)])
    assert nibbles is not None
    q, scales, sums = quantised(activations(rng, most, width))
    frames = np.zeros(1, dtype=FRAME)
    fields = {"block_activations": q, "block_scale": scales, "block_sum": sums}
    for name, array in fields.items():
        frames[name] = array.ctypes.data
    frames["block_stride"], frames["blocks"] = width, width // 32
    weights, scale, minimum = taken_apart(nibbles)
    dots = np.einsum("cbk,rbk->rbc", weights.astype(np.int64), q.reshape(most, -1, 32).astype(np.int64))
    # A longdouble holds the product of two float32 exactly, so adding and rounding it is a fused multiply-add.
    exact = lambda x: np.asarray(x, dtype=np.longdouble)  # noqa: E731
    expected = np.zeros((most, 32), dtype=np.float32)
    for b in range(width // 32):
        part = dots[:, b].astype(np.float32) * scales[:, b, None]
        expected = (exact(sums[:, b, None]) * minimum[:, b] + expected).astype(np.float32)
        expected = (exact(part) * scale[:, b] + expected).astype(np.float32)
    reverse = np.zeros_like(expected)
    for b in reversed(range(width // 32)):
        reverse += (dots[:, b] * scales[:, b, None] * scale[:, b] + sums[:, b, None] * minimum[:, b]).astype(np.float32)
    assert not np.array_equal(reverse, expected)  # the order shows
    for count in (*range(1, 13), 16, most):
        out = np.full((count, 32), np.nan, dtype=np.float32)
        product(frames, nibbles.stored.ctypes.data, nibbles.form, width, count, out.ctypes.data, 1)
        assert np.array_equal(out, expected[:count]), count


@pytest.fixture(scope="module")
def product():
    return unit_nibble_products(describe_cpu().instruction_set)


def test_which_parts_of_a_matrix_stay(packing: Packing) -> None:
    """Leading ones of one form: units in four bits come before int8 ones."""
    both = {"q": "Q4_1", "k": "Q4_0", "v": "Q4_1", "gate": "Q4_1", "up": "Q4_0", "down": "Q4_1", "o": "Q4_1"}
    sizes = {"hidden_size": 256, "num_heads": 8, "num_kv_heads": 1, "head_dim": 32, "intermediate_size": 512}

    def units(kinds: dict[str, str]) -> tuple[int, ...]:
        source = FourBitWeights(num_layers=1, kinds=kinds, **sizes)
        (layer,) = pack_model(source, packing, 1).layers
        return tuple(m.nibble_units for m in (layer.qkv, layer.o, layer.gate_up, layer.down))

    assert units(both) == (10, 8, 32, 8)
    assert units(both | {"v": "Q4_K", "gate": "Q4_K"}) == (9, 8, 0, 8)
    assert units(both | {"k": "F32", "down": "F32"}) == (8, 8, 32, 0)
    assert units(both | {"q": "F32", "up": "F32", "o": "Q4_K"}) == (0, 8, 0, 8)
    sizes["head_dim"] = 16  # heads are padded: the output projection has padding among its inputs
    assert units(both)[:2] == (10, 0)


@pytest.mark.parametrize("kinds", [("Q4_1", "Q4_1"), ("Q4_K", "F32"), ("F32", "F32")])
def test_saved_bytes_are_known_before(packing: Packing, kinds: tuple[str, str]) -> None:
    layer = dict.fromkeys(("q", "k", "gate", "up"), kinds[0]) | dict.fromkeys(("v", "o", "down"), kinds[1])
    source = FourBitWeights(
        kinds=layer, hidden_size=256, num_heads=8, num_kv_heads=2, head_dim=32, intermediate_size=512
    )
    packed = pack_model(source, packing, 2)
    weights = estimate(source.config, context=1).weights
    assert weights - saved_bytes(source) == pytest.approx(packed.nbytes, rel=0.02)
    assert (packed.nbytes < 0.8 * weights) == (kinds[0] != "F32")


def test_blocks_of_a_file(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    k, down, up = (
        four_bit_blocks(kind, *shape, rng)
        for kind, shape in (
            ("Q4_1", (KV_HEADS * HEAD, HIDDEN)),
            ("Q4_0", (HIDDEN, INNER)),
            ("Q4_0", (INNER, HIDDEN)),
        )
    )
    up.reshape(INNER, -1, 18)[3, 0, :2] = np.array([9000], dtype="<f2").view(np.uint8)
    damaged = down.copy()
    damaged.reshape(HIDDEN, -1, 18)[5, 1, :2] = np.array([np.inf], dtype="<f2").view(np.uint8)
    stored = {
        "blk.0.attn_k.weight": (permute(k, KV_HEADS), Q.Q4_1),
        "blk.0.ffn_down.weight": (down, Q.Q4_0),
        "blk.1.ffn_down.weight": (damaged, Q.Q4_0),
        "blk.0.ffn_up.weight": (up, Q.Q4_0),
    }
    source = GgufSource(write_gguf(tmp_path / "m.gguf", stored=stored))
    found = source.four_bit("layers.0.k")
    assert found is not None
    assert (found.kind, found.width) == ("Q4_1", HIDDEN)
    assert np.array_equal(found.rows, k)  # in the order of `matrix`
    assert np.array_equal(gguf.quants.dequantize(found.rows, Q.Q4_1), source.matrix("layers.0.k"))
    assert source.four_bit("layers.0.q") is None
    assert (source.block_kind("layers.0.down"), source.block_kind("layers.0.q")) == ("Q4_0", "F32")
    assert source.four_bit("layers.0.up") is None  # 8 times its scale is no float16
    with pytest.raises(ValueError, match=r"blk\.1\.ffn_down\.weight holds values that are not finite"):
        source.four_bit("layers.1.down")
