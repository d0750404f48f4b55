"""How likely a copied token is accepted, by the length of the match behind it; learned during the request."""

from __future__ import annotations

from bisect import bisect_right

_EDGES = (0, 1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32, 48, 64, 128, 256)
"""Smallest match length of each bucket, in tokens."""

_PRIOR = (0.5, 0.25, 0.35, 0.5, 0.62, 0.7, 0.72, 0.83, 0.9, 0.93, 0.95, 0.965, 0.98, 0.985, 0.99, 0.995)
"""Acceptance per bucket before anything is known: replayed edits, renames, JSON and logs, pooled."""

_WEIGHT = 2.0
"""The prior counts as this many observations."""

_KEEP = 0.9
"""What is left of a bucket's earlier observations each time it is observed again: recent success counts most."""

_BUCKET = tuple(bisect_right(_EDGES, length) - 1 for length in range(_EDGES[-1] + 1))


class Odds:
    """Probability that the next copied token is accepted, given how many tokens before it agree.

    >>> odds = Odds()
    >>> [round(p, 3) for p in odds.chain(2, most=3, floor=0.0, probe=0)]   # 0.35, then times 0.5, then times 0.62
    [0.35, 0.175, 0.108]
    """

    __slots__ = ("_hits", "_rate", "_seen")

    def __init__(self) -> None:
        self._hits = [0.0] * len(_EDGES)
        self._seen = [0.0] * len(_EDGES)
        self._rate = list(_PRIOR)

    def next(self, length: int) -> float:
        """Probability that the token after a match of `length` tokens is accepted."""
        return self._rate[_BUCKET[length] if length < _EDGES[-1] else -1]

    def chain(self, length: int, *, most: int, floor: float, probe: int) -> list[float]:
        """Probabilities that the 1st, 2nd, .. copied token and all before it are accepted: at most `most`, and
        none below `floor` behind the first `probe`. Every accepted token lengthens the match."""
        rate, last = self._rate, _EDGES[-1]
        out: list[float] = []
        p = 1.0
        for at in range(length, length + most):
            p *= rate[_BUCKET[at] if at < last else -1]
            if p < floor and at - length >= probe:
                break
            out.append(p)
        return out

    def observe(self, length: int, *, accepted: int, failed: bool) -> None:
        """A copy with `length` tokens behind it agreed for `accepted` tokens; `failed`: and then differed."""
        seen: dict[int, list[int]] = {}
        for at in range(length, length + accepted + failed):
            counts = seen.setdefault(_BUCKET[at] if at < _EDGES[-1] else len(_EDGES) - 1, [0, 0])
            counts[0] += at < length + accepted
            counts[1] += 1
        for bucket, (hits, total) in seen.items():
            self._hits[bucket] = self._hits[bucket] * _KEEP + hits
            self._seen[bucket] = self._seen[bucket] * _KEEP + total
            self._rate[bucket] = (self._hits[bucket] + _WEIGHT * _PRIOR[bucket]) / (self._seen[bucket] + _WEIGHT)

    def fork(self) -> Odds:
        copy = Odds()
        copy._hits, copy._seen, copy._rate = self._hits[:], self._seen[:], self._rate[:]
        return copy
