"""Checking segments and laying out their trees."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

from exactspec.target.base import Cache, IntArray, Segment, Want

NONE, LOGITS = int(Want.NONE), int(Want.LOGITS)
C = TypeVar("C", bound=Cache)


@dataclass(frozen=True, slots=True, eq=False)
class Layout(Generic[C]):
    """One checked segment, in plain lists (most segments are short, and numpy's calls would cost more than the rows).

    `depths` [n]: position - cache length; `depth`: the largest. `paths` int64 [n, depth + 1]: row numbers of each
    row's ancestors, root first, itself last (rest 0); None for a chain.
    """

    cache: C
    tokens: list[int]
    parents: list[int]
    want: list[int]
    depths: list[int]
    depth: int
    paths: npt.NDArray[np.int64] | None


def _ints(name: str, values: IntArray, index: int) -> list[int]:
    array = np.asarray(values)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise ValueError(
            f"segment {index}: {name} must be a list of integers, got {array.dtype} of shape {array.shape}"
        )
    whole: list[int] = array.tolist()
    return whole


def lay_out(segments: Sequence[Segment], vocab_size: int, max_length: int, *, cache_type: type[C]) -> list[Layout[C]]:
    """Check all segments before any work; ValueError says which one is wrong and how. `cache_type`: the target's."""
    seen: set[int] = set()
    layouts = []
    for i, segment in enumerate(segments):
        cache = segment.cache
        if not isinstance(cache, cache_type):
            raise ValueError(f"segment {i}: its cache is a {type(cache).__name__}; use this target's new_cache()")
        if id(cache) in seen:
            raise ValueError(f"segment {i}: a cache may occur once per forward")
        seen.add(id(cache))
        layouts.append(_lay_out(i, segment, cache, vocab_size, max_length))
    return layouts


def _lay_out(i: int, segment: Segment, cache: C, vocab_size: int, max_length: int) -> Layout[C]:
    tokens = _ints("tokens", segment.tokens, i)
    parents = _ints("parents", segment.parents, i)
    want = _ints("want", segment.want, i)
    n = len(tokens)
    if n == 0:
        raise ValueError(f"segment {i} has no rows")
    if len(parents) != n or len(want) != n:
        raise ValueError(f"segment {i}: {n} tokens, {len(parents)} parents and {len(want)} wants; all must be as many")
    if min(tokens) < 0 or max(tokens) >= vocab_size:
        bad = next(token for token in tokens if not 0 <= token < vocab_size)
        raise ValueError(f"segment {i}: token {bad} is outside the vocabulary (0 .. {vocab_size - 1})")
    if min(want) < NONE or max(want) > LOGITS:
        raise ValueError(f"segment {i}: want must hold values of Want")
    if parents == list(range(-1, n - 1)):
        depths, depth, paths = list(range(n)), n - 1, None
    else:
        depths, paths = _tree(i, tokens, parents)
        depth = max(depths)
    if cache.length + depth >= max_length:
        raise ValueError(
            f"segment {i} reaches position {cache.length + depth}, past the longest context of {max_length} tokens"
        )
    return Layout(cache, tokens, parents, want, depths, depth, paths)


def _tree(i: int, tokens: list[int], parents: list[int]) -> tuple[list[int], npt.NDArray[np.int64]]:
    if parents[0] != -1 or any(not 0 <= parent < row for row, parent in enumerate(parents) if row):
        raise ValueError(f"segment {i}: parents[0] must be -1 and every other parent an earlier row")
    if len(set(zip(parents, tokens, strict=True))) != len(tokens):
        raise ValueError(f"segment {i}: siblings must hold distinct tokens")
    depths = [0] * len(tokens)
    for row in range(1, len(tokens)):
        depths[row] = depths[parents[row]] + 1
    paths = np.zeros((len(tokens), max(depths) + 1), dtype=np.int64)
    for row in range(1, len(tokens)):
        depth = depths[row]
        paths[row, :depth] = paths[parents[row], :depth]
        paths[row, depth] = row
    return depths, paths
