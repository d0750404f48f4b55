"""Checking segments and laying their trees out for the kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from exactspec.target.base import IntArray, Segment, Want
from exactspec.target.cache import ExactCache

Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """One checked segment. `depths` [n]: position - cache length. `paths` [n, depth + 1]: row numbers of each row's
    ancestors, root first, itself last (rest 0); None for a chain."""

    cache: ExactCache
    tokens: Int64
    parents: Int64
    want: Int64
    depths: Int64
    paths: Int64 | None


def _ints(name: str, values: IntArray, index: int) -> Int64:
    array = np.asarray(values)
    if array.ndim != 1 or (array.size and not np.issubdtype(array.dtype, np.integer)):
        raise ValueError(
            f"segment {index}: {name} must be a list of integers, got {array.dtype} of shape {array.shape}"
        )
    return np.ascontiguousarray(array, dtype=np.int64)


def lay_out(segments: Sequence[Segment], vocab_size: int, max_length: int) -> list[Layout]:
    """Check all segments before any work; ValueError says which one is wrong and how."""
    seen: set[int] = set()
    layouts = []
    for i, segment in enumerate(segments):
        cache = segment.cache
        if not isinstance(cache, ExactCache):
            raise ValueError(f"segment {i}: its cache is a {type(cache).__name__}; use this target's new_cache()")
        if id(cache) in seen:
            raise ValueError(f"segment {i}: a cache may occur once per forward")
        seen.add(id(cache))
        layouts.append(_lay_out(i, segment, cache, vocab_size, max_length))
    return layouts


def _lay_out(i: int, segment: Segment, cache: ExactCache, vocab_size: int, max_length: int) -> Layout:
    tokens = _ints("tokens", segment.tokens, i)
    parents = _ints("parents", segment.parents, i)
    want = _ints("want", segment.want, i)
    n = len(tokens)
    if n == 0:
        raise ValueError(f"segment {i} has no rows")
    if len(parents) != n or len(want) != n:
        raise ValueError(f"segment {i}: {n} tokens, {len(parents)} parents and {len(want)} wants; all must be as many")
    if tokens.min() < 0 or tokens.max() >= vocab_size:
        bad = int(tokens[(tokens < 0) | (tokens >= vocab_size)][0])
        raise ValueError(f"segment {i}: token {bad} is outside the vocabulary (0 .. {vocab_size - 1})")
    if want.min() < Want.NONE or want.max() > Want.LOGITS:
        raise ValueError(f"segment {i}: want must hold values of Want")
    rows = np.arange(n, dtype=np.int64)
    if np.array_equal(parents, rows - 1):
        depths, paths = rows, None
    else:
        depths, paths = _tree(i, tokens, parents)
    end = cache.length + int(depths.max()) + 1
    if end > max_length:
        raise ValueError(f"segment {i} reaches position {end - 1}, past the longest context of {max_length} tokens")
    return Layout(cache, tokens, parents, want, depths, paths)


def _tree(i: int, tokens: Int64, parents: Int64) -> tuple[Int64, Int64]:
    rows = np.arange(len(tokens), dtype=np.int64)
    if parents[0] != -1 or (parents[1:] < 0).any() or (parents >= rows).any():
        raise ValueError(f"segment {i}: parents[0] must be -1 and every other parent an earlier row")
    if len({(int(p), int(t)) for p, t in zip(parents, tokens, strict=True)}) != len(tokens):
        raise ValueError(f"segment {i}: siblings must hold distinct tokens")
    depths = np.zeros(len(tokens), dtype=np.int64)
    for row in range(1, len(tokens)):
        depths[row] = depths[parents[row]] + 1
    paths = np.zeros((len(tokens), int(depths.max()) + 1), dtype=np.int64)
    for row in range(1, len(tokens)):
        depth = depths[row]
        paths[row, :depth] = paths[parents[row], :depth]
        paths[row, depth] = row
    return depths, paths
