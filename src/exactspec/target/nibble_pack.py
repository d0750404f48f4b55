"""Which parts of a matrix keep a file's four-bit weights, and those units (see kernels.nibbles)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from exactspec.target.kernels.compile import Packing
from exactspec.target.kernels.nibbles import BLOCK, HALF, SIX, SUPER, SUPER_BYTES
from exactspec.target.kernels.products import UNIT
from exactspec.target.weights import FourBitRows, FourBitSource, WeightSource

_FORMS = {"Q4_0": HALF, "Q4_1": HALF, "Q4_K": SIX}


@dataclass(frozen=True, slots=True, eq=False)
class Nibbles:
    """The first `units` units of a matrix. `form`: see kernels.nibbles; `stored` uint8 [units * bytes of a unit]."""

    form: int
    units: int
    stored: npt.NDArray[np.uint8]

    @property
    def weights(self) -> int:
        """How many there are, those of padding included."""
        return len(self.stored) * UNIT * BLOCK * SUPER // SUPER_BYTES[self.form]


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """Tensors whose channels share units. `tensors`: canonical name and channel of each row; `stop`: channels of the
    matrix up to the end of this group, padded."""

    tensors: Sequence[tuple[str, npt.NDArray[np.int64]]]
    stop: int


def saved_bytes(source: WeightSource) -> int:
    """How much smaller than int8 the packed model is because of its four-bit weights, closely."""
    if not isinstance(source, FourBitSource):
        return 0
    c = source.config
    attended = c.num_heads * c.head_dim
    saved = 0.0
    for i in range(c.num_layers):
        q, k, v, o, gate, up, down = (
            _FORMS.get(source.block_kind(f"layers.{i}.{name}"), 0)
            for name in ("q", "k", "v", "o", "gate", "up", "down")
        )
        channels = attended + c.num_kv_heads * c.head_dim * ((k == q) + (k == q == v))
        kept = (
            (q, c.hidden_size * channels),
            (o if c.head_dim % UNIT == 0 else 0, c.hidden_size * attended),
            (gate if gate == up else 0, 2 * c.hidden_size * c.intermediate_size),
            (down, c.hidden_size * c.intermediate_size),
        )
        saved += sum(count * (1 - SUPER_BYTES[form] / (SUPER * BLOCK * UNIT)) for form, count in kept if form)
    return int(saved)


def pack_nibbles(source: WeightSource, packing: Packing, groups: Sequence[Group]) -> tuple[int, Nibbles | None]:
    """As many of the first `groups` as the file has in four bits and one form: their number, and their units."""
    if not isinstance(source, FourBitSource):
        return 0, None
    found: list[list[FourBitRows]] = []
    form = 0
    for group in groups:
        parts = [source.four_bit(name) for name, _ in group.tensors]
        four = [part for part in parts if part is not None]
        forms = {_FORMS[part.kind] for part in four}
        if len(four) < len(parts) or len(forms) != 1 or (form and forms != {form}):
            break
        (form,) = forms
        found.append(four)
    if not found:
        return 0, None
    width = found[0][0].width
    units = groups[len(found) - 1].stop // UNIT
    stored = np.zeros((units, width // BLOCK * SUPER_BYTES[form] // SUPER), dtype=np.uint8)
    for group, four in zip(groups, found, strict=False):
        for (_, places), part in zip(group.tensors, four, strict=True):
            rows = np.ascontiguousarray(part.rows)
            if form == SIX:
                packing.six(rows, places, stored)
            else:
                packing.half(rows, 8 if part.kind == "Q4_0" else 0, places, stored)
    return len(found), Nibbles(form, units, stored.reshape(-1))
