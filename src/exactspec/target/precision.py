"""Which products with int8 weights take wide (16-bit) activations instead of bytes.

Products with four-bit weights always take bytes, in blocks of 32 (see kernels.nibbles): a flag does nothing to them.

Activations have one scale per row and group of inputs. A wide product is two exact integer products instead of one
(with AVX2 one still, see kernels.isa), but its groups are longer. It is worth that where activations have outliers.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

NARROW_GROUP = 64
"""Inputs that share a scale, a byte each. Small groups keep outliers apart."""

WIDE_GROUP = 256
"""Inputs that share a scale of 16-bit activations: the longest group whose sums fit 32 bits."""

KINDS = ("qkv", "o", "gate_up", "down")
"""The products of a layer, in the order of `Wide.layers`."""

ACCURACIES = ("narrow", "mixed", "wide")
"""Accuracy modes of int8 weights: bytes everywhere, 16 bits where they matter most (see calibrate), or everywhere."""


@dataclass(frozen=True, slots=True)
class Wide:
    """`layers` [layers][4], one flag per product of `KINDS`; `head`: the vocabulary's product."""

    layers: tuple[tuple[bool, ...], ...]
    head: bool

    @classmethod
    def everywhere(cls, num_layers: int, flag: bool) -> Wide:
        """All products alike.

        >>> Wide.everywhere(1, True)
        Wide(layers=((True, True, True, True),), head=True)
        """
        return cls(((flag,) * len(KINDS),) * num_layers, flag)

    @property
    def digest(self) -> str:
        """Eight hex digits that tell these flags from others."""
        bits = bytes(flag for layer in self.layers for flag in layer) + bytes([self.head])
        return hashlib.sha256(bits).hexdigest()[:8]
