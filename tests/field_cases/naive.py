"""O1: a loop without a cache or an engine. The whole prefix goes through the target for every token; one row counts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from exactspec.target.base import Segment, Target, Want

Row: TypeAlias = npt.NDArray[np.float64]
Process: TypeAlias = Callable[[Row, list[int], list[int]], Row]
"""(logits, prompt, output so far) -> logits to take the first maximal id of."""


def row_after(target: Target, tokens: Sequence[int]) -> Row:
    """Logits of the last of `tokens`, from an empty cache."""
    (rows,) = target.forward([Segment.chain(target.new_cache(), list(tokens), Want.LOGITS, last_only=True)])
    return rows.row_logits(len(tokens) - 1).astype(np.float64)


def naive(
    target: Target,
    prompt: Sequence[int],
    n: int,
    *,
    process: Process = lambda row, prompt, output: row,
    eos: frozenset[int] = frozenset(),
) -> list[int]:
    """At most n greedy ids, ending with the first of `eos`."""
    output: list[int] = []
    while len(output) < n:
        row = process(row_after(target, [*prompt, *output]), list(prompt), output)
        output.append(int(row.argmax()))
        if output[-1] in eos:
            break
    return output
