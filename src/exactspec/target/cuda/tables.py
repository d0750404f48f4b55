"""Where the rows of a forward stand, in one block of integers that goes to the device in one copy."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from exactspec.target.cuda.cache import CHUNK, CudaCache
from exactspec.target.cuda.device import Device, moved
from exactspec.target.cuda.launch import RowTables
from exactspec.target.cuda.weights import padded
from exactspec.target.segments import Layout


def row_tables(layouts: Sequence[Layout[CudaCache]], device: Device) -> RowTables:
    """Stages all segments' rows and returns their tables."""
    tokens: list[int] = []
    positions: list[int] = []
    bases: list[int] = []
    slots: list[int] = []
    page_of_row: list[int] = []
    page_at: list[int] = []
    path_at: list[int] = []
    pages: list[int] = []
    paths: list[int] = []
    for layout in layouts:
        n, base = len(layout.tokens), layout.cache.length
        own = layout.cache.stage(layout.parents)
        tokens += layout.tokens
        positions += [base + depth for depth in layout.depths]
        bases += [base] * n
        slots += range(base, base + n)
        page_of_row += [own[slot // CHUNK] for slot in range(base, base + n)]
        page_at += [len(pages)] * n
        pages += own
        if layout.paths is None:
            path_at += [len(paths)] * n
            paths += range(n)
        else:
            path_at += range(len(paths), len(paths) + layout.paths.size, layout.paths.shape[1])
            paths += layout.paths.reshape(-1).tolist()
    lists = {
        "tokens": tokens,
        "positions": positions,
        "bases": bases,
        "slots": slots,
        "page_of_row": page_of_row,
        "page_at": page_at,
        "path_at": path_at,
        "pages": pages,
        "paths": paths,
    }
    # Every table begins at a multiple of 16 bytes, whatever the number of rows: a kernel is compiled anew for a pointer
    # of another alignment.
    starts = [0]
    for values in lists.values():
        starts.append(padded(starts[-1] + len(values), 2))
    table = np.zeros(starts[-1], dtype=np.int64)
    for at, values in zip(starts, lists.values(), strict=False):
        table[at : at + len(values)] = values
    there = moved(table, device)
    parts = {name: there[at : at + len(values)] for at, (name, values) in zip(starts, lists.items(), strict=False)}
    return RowTables(longest=max(positions) + 1, **parts)
