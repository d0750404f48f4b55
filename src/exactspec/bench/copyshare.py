"""How much of a text could have been copied: the exact longest earlier match at every token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

MIN_RUN = 4
"""Shortest run of tokens that counts as copied."""


@dataclass(frozen=True, slots=True)
class CopyShare:
    """`copy_share`: share of tokens that lie in runs of at least `MIN_RUN` found earlier. `longest_run`: in tokens."""

    copy_share: float
    longest_run: int


def copy_share(prompt: Sequence[int], output: Sequence[int]) -> CopyShare:
    """Of an output's tokens, those in runs that occur earlier in prompt + output; a run lies within the output.

    >>> copy_share([1, 2, 3, 4, 5, 6], [9, 2, 3, 4, 5, 9])
    CopyShare(copy_share=0.6666666666666666, longest_run=4)
    """
    if not output:
        return CopyShare(0.0, 0)
    matches = _earlier_match_lengths([*prompt, *output])[len(prompt) :]
    runs = [min(match, i + 1) for i, match in enumerate(matches)]
    covered = 0
    left = 0  # tokens still to be covered, going leftwards, by a run that ends to the right
    for run in reversed(runs):
        if run >= MIN_RUN:
            left = max(left, run)
        if left > 0:
            covered += 1
            left -= 1
    longest = max(runs)
    return CopyShare(covered / len(output), longest if longest >= MIN_RUN else 0)


def _earlier_match_lengths(tokens: Sequence[int]) -> list[int]:
    """[n] length of the longest suffix of tokens[: i + 1] that also ends at an earlier place.

    An online suffix automaton (Blumer et al. 1985): after token i was added, that length is the one of the last
    state's suffix link. O(n) states.
    """
    edges: list[dict[int, int]] = [{}]
    link = [-1]
    length = [0]
    last = 0
    found: list[int] = []
    for token in tokens:
        new = len(length)
        length.append(length[last] + 1)
        edges.append({})
        link.append(0)
        state = last
        while state != -1 and token not in edges[state]:
            edges[state][token] = new
            state = link[state]
        if state != -1:
            target = edges[state][token]
            if length[target] == length[state] + 1:
                link[new] = target
            else:
                clone = len(length)
                length.append(length[state] + 1)
                edges.append(dict(edges[target]))
                link.append(link[target])
                while state != -1 and edges[state].get(token) == target:
                    edges[state][token] = clone
                    state = link[state]
                link[target] = clone
                link[new] = clone
        last = new
        found.append(length[link[new]])
    return found
