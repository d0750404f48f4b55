"""The machine's own limits, measured beside a forward: memory read, integer products, float multiply-adds.

Loops of the kernels' own kind on all threads at once, the best of several short readings: a limit is what the machine
can do, and everything else that runs there only lowers a reading. Rates are in 1e9 a second: bytes (GB/s) or
multiply-adds (one product and one sum).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from exactspec.bench.peaks import Peaks
from exactspec.target.cpu import MemoryReader, in_parallel
from exactspec.target.kernels.frame import FRAME
from exactspec.target.kernels.nibbles import BLOCK
from exactspec.target.kernels.peaks import (
    FMA_SUMS,
    multiply_add_6,
    multiply_add_12,
    tallest_nibble_tile,
    tallest_tile,
    unit_nibble_products,
    unit_products,
    wide_costs_nothing,
)
from exactspec.target.precision import NARROW_GROUP, WIDE_GROUP

_READING_S = 0.01  # of one reading of a rate; the threads' start takes about 1% of it
_WIDTH = 512  # inputs of the product: 32 x 512 weights are 16 kB, half of the nearest cache or less
_LANES = 16
_UNIT = 32


class Machine:
    """Takes readings of this machine's limits with `threads` threads and the tiles of `instruction_set`.

    Activations are wide where that costs nothing, else bytes. `four_bit`: of a model's multiply-adds, those with
    four-bit weights, by their form (see kernels.nibbles); the limit of its products is that of this mixture. Making one
    compiles, some seconds; `peaks` takes about half a second. Raises ValueError on an instruction set that the products
    do not have.
    """

    def __init__(self, threads: int, instruction_set: str, *, four_bit: Mapping[int, float] | None = None) -> None:
        self.threads = threads
        self._reader = MemoryReader(threads)
        try:
            self._tallest = tallest_tile(instruction_set)
            self._wide = int(wide_costs_nothing(instruction_set))
        except KeyError:
            raise ValueError(f"{instruction_set} is no instruction set of the products") from None
        self._product = unit_products(instruction_set)
        self._four_bit = dict(four_bit or {})
        self._tallest_nibbles = tallest_nibble_tile(instruction_set)
        self._nibble_product = unit_nibble_products(instruction_set) if self._four_bit else None
        self._buffers = [_Buffers(max(self._tallest, self._tallest_nibbles)) for _ in range(threads)]
        for rows in range(1, self._tallest + 1):
            self._run_products(rows, 1)
        for form in self._four_bit:
            self._run_nibbles(form, 1, 1)
        for run in (multiply_add_6, multiply_add_12):
            run(1, np.float32(1))

    def peaks(self, *, readings: int = 3) -> Peaks:
        """The best of several readings of each; of the products, over all tile heights."""
        products = dict.fromkeys(range(1, self._tallest + 1), 0.0)
        for _ in range(readings):
            for rows, best in products.items():
                products[rows] = max(best, self._product_rate(rows))
        highest = max(products, key=lambda rows: products[rows])
        seconds = (1 - sum(self._four_bit.values())) / products[highest]
        for form, share in self._four_bit.items():
            heights = range(1, self._tallest_nibbles + 1)
            seconds += share / max(self._nibble_rate(form, rows) for _ in range(readings) for rows in heights)
        return Peaks(
            read_gb_per_s=max(self._reader.read() for _ in range(readings)),
            products_per_ns=1 / seconds,
            tile_rows=highest,
            fma_per_ns=max(self._fma_rate(sums) for _ in range(readings) for sums in FMA_SUMS),
        )

    def _run_products(self, rows: int, times: int) -> float:
        def work(b: _Buffers) -> Callable[[], object]:
            return lambda: self._product(b.frames, b.weights, _WIDTH, self._wide, rows, b.out, times)

        return in_parallel([work(buffers) for buffers in self._buffers])

    def _product_rate(self, rows: int) -> float:
        def seconds(times: int) -> float:
            return self._run_products(rows, times)

        return _rate(seconds, self.threads * rows * _UNIT * _WIDTH)

    def _run_nibbles(self, form: int, rows: int, times: int) -> float:
        product: Any = self._nibble_product

        def work(b: _Buffers) -> Callable[[], object]:
            return lambda: product(b.frames, b.nibbles, form, _WIDTH, rows, b.out, times)

        return in_parallel([work(buffers) for buffers in self._buffers])

    def _nibble_rate(self, form: int, rows: int) -> float:
        def seconds(times: int) -> float:
            return self._run_nibbles(form, rows, times)

        return _rate(seconds, self.threads * rows * _UNIT * _WIDTH)

    def _fma_rate(self, sums: int) -> float:
        run: Callable[[int, Any], object] = multiply_add_6 if sums == FMA_SUMS[0] else multiply_add_12

        def seconds(times: int) -> float:
            return in_parallel([lambda: run(times, np.float32(1))] * self.threads)

        return _rate(seconds, self.threads * sums * _LANES)


def _rate(seconds: Callable[[int], float], work: int) -> float:
    """Units of work per nanosecond of a loop that runs long enough to be timed; `work`: of one round of it."""
    times, taken = 64, 0.0
    while (taken := seconds(times)) < _READING_S:
        times = max(2 * times, int(times * 1.2 * _READING_S / max(taken, 1e-6)))
    return times * work / taken / 1e9


class _Buffers:
    """One thread's operands. Activations have room for 2 bytes an input, as the target's own."""

    __slots__ = ("_owned", "frames", "nibbles", "out", "outputs", "weights")

    def __init__(self, rows: int) -> None:
        rng = np.random.default_rng(0)
        groups = -(-_WIDTH // NARROW_GROUP)
        weights = rng.integers(0, 256, _UNIT * _WIDTH + 4096, dtype=np.uint8)
        activations = rng.integers(0, 256, 2 * rows * _WIDTH, dtype=np.uint8)
        scale = np.full(rows * groups, 1e-3, dtype=np.float32)
        offset = np.zeros(rows * groups, dtype=np.int32)
        nibbles = np.full(_UNIT * _WIDTH + 4096, 0x22, dtype=np.uint8)  # 0.012 as a float16: no scale slows the loop
        nibbles = nibbles[-nibbles.ctypes.data % 64 :]
        block_scale = np.full(rows * _WIDTH // BLOCK, 1e-3, dtype=np.float32)
        self.outputs = np.zeros(rows * _UNIT, dtype=np.float32)
        self._owned: Sequence[np.ndarray[Any, Any]] = (weights, nibbles, activations, scale, offset, block_scale)
        self.weights, self.nibbles, self.out = weights.ctypes.data, nibbles.ctypes.data, self.outputs.ctypes.data
        self.frames = np.zeros(1, dtype=FRAME)
        frame = {
            "activations": activations.ctypes.data,
            "activation_stride": 2 * _WIDTH,
            "plane": _WIDTH,
            "scale": scale.ctypes.data,
            "offset": offset.ctypes.data,
            "groups": groups,
            "narrow_group": NARROW_GROUP,
            "wide_group": WIDE_GROUP,
            "block_activations": activations.ctypes.data,
            "block_stride": _WIDTH,
            "block_scale": block_scale.ctypes.data,
            "block_sum": block_scale.ctypes.data,
            "blocks": _WIDTH // BLOCK,
        }
        for name, value in frame.items():
            self.frames[name] = value
