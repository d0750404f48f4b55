"""What became of one request's drafts: nodes drafted and accepted, by source and by place in the step."""

from __future__ import annotations

from collections.abc import Sequence

from exactspec.tree import DraftTree


class DraftCounts:
    """`drafted`, `accepted`: nodes by source. `drafted_at`, `accepted_at`: item i counts nodes of depth i + 1.

    >>> counts = DraftCounts()
    >>> counts.add(DraftTree.chain([5, 6, 7], source="copy"), path=[0])
    >>> counts.drafted, counts.accepted, counts.drafted_at, counts.accepted_at
    ({'copy': 3}, {'copy': 1}, [1, 1, 1], [1])
    """

    __slots__ = ("accepted", "accepted_at", "drafted", "drafted_at")

    def __init__(self) -> None:
        self.drafted: dict[str, int] = {}
        self.accepted: dict[str, int] = {}
        self.drafted_at: list[int] = []
        self.accepted_at: list[int] = []

    def add(self, tree: DraftTree, path: Sequence[int]) -> None:
        """A step verified `tree` and accepted the nodes `path`, from the root down."""
        names = tree.sources
        source = tree.source.tolist()
        depth: list[int] = []  # from 0; plain lists: for a few dozen nodes quicker than arrays
        for node, parent in enumerate(tree.parents.tolist()):
            at = depth[parent] + 1 if parent >= 0 else 0
            depth.append(at)
            _add(self.drafted_at, at)
            self.drafted[names[source[node]]] = self.drafted.get(names[source[node]], 0) + 1
        for at, node in enumerate(path):
            _add(self.accepted_at, at)
            self.accepted[names[source[node]]] = self.accepted.get(names[source[node]], 0) + 1


def _add(into: list[int], at: int) -> None:
    if at == len(into):
        into.append(0)
    into[at] += 1
