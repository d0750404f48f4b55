"""Quantising and packing weights: one pass over float rows, compiled because numpy needs ten."""

from __future__ import annotations

import numpy as np

from exactspec.target.kernels.products import UNIT


def pack_rows(rows, places, columns, stored, scale):
    """Quantise `rows` float32 [n, width] to int8, ``round(w * 127 / max|w|)`` (ties to even), into packed channels.

    `places` int64 [n]: channel of each row. `columns` int64 [width]: padded input of each column. `stored` uint8
    [units, width_pad / 4, 32, 4] and `scale` float32 [channels] are filled.
    """
    n, width = rows.shape
    for r in range(n):
        peak = np.float32(0)
        for k in range(width):
            size = abs(rows[r, k])
            if size > peak:
                peak = size
        step = np.float32(peak / np.float32(127)) if peak > np.float32(0) else np.float32(1)
        unit, lane = places[r] // UNIT, places[r] % UNIT
        for k in range(width):
            q = np.int32(np.rint(np.float32(rows[r, k] / step)))
            q = min(max(q, np.int32(-127)), np.int32(127))
            stored[unit, columns[k] >> 2, lane, columns[k] & 3] = np.uint8(q + 128)
        scale[places[r]] = step
