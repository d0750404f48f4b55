"""What a machine can do at most, as numbers. `exactspec.bench.machine` measures them; this needs no compiler.

Rates are in 1e9 a second: bytes (GB/s) or multiply-adds (one product and one sum).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Peaks:
    """`read_gb_per_s`: memory. `products_per_ns`: integer multiply-adds of the products' own tiles on weights in the
    nearest cache, with int8 and four-bit weights in the model's proportion; `tile_rows`: the height of int8 tile that
    gave it. `fma_per_ns`: float32 multiply-adds. All threads."""

    read_gb_per_s: float
    products_per_ns: float
    tile_rows: int
    fma_per_ns: float

    def best(self, other: Peaks) -> Peaks:
        """The higher of the two, limit by limit."""
        taller = self if self.products_per_ns >= other.products_per_ns else other
        return Peaks(
            read_gb_per_s=max(self.read_gb_per_s, other.read_gb_per_s),
            products_per_ns=taller.products_per_ns,
            tile_rows=taller.tile_rows,
            fma_per_ns=max(self.fma_per_ns, other.fma_per_ns),
        )
