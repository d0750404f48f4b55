"""Committed caches of ended requests, found again by the ids they stand for: a radix tree over token ids.

A cache stands at the node where its ids end; every leaf holds one. A prompt's longest stored prefix is found by walking
down; any cache at or below that point holds it, and is forked (which shares pages) and cut to it. A cache that goes in
takes over the full pages of what the tree has already of its ids: with an exact target equal tokens have equal bits, so
a shared prefix is stored once even where two requests computed it side by side.

Least recently used caches go first, until the bytes held, shared ones counted once, are within the limit.
Not thread-safe.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from exactspec.scheduling.footprint import parts
from exactspec.target.base import Cache

Ids = npt.NDArray[np.int64]


@dataclass(slots=True, eq=False)
class _Node:
    """`ids`: the edge that leads here (empty for the root). `cache`: of all ids from the root to here."""

    ids: Ids
    parent: _Node | None
    children: dict[int, _Node] = field(default_factory=dict)
    cache: Cache | None = None


class PrefixTree:
    """Holds at most `limit` bytes of caches; 0 holds nothing. `exact`: equal tokens have equal bits."""

    def __init__(self, limit: int, *, exact: bool) -> None:
        self.limit = limit
        self._exact = exact
        self._root = _Node(np.empty(0, dtype=np.int64), None)
        self._used: OrderedDict[int, _Node] = OrderedDict()  # nodes with a cache, least recently used first
        self._holders: Counter[int] = Counter()  # of each part
        self.nbytes = 0

    def __len__(self) -> int:
        return len(self._used)

    def holds(self, part: int) -> bool:
        """Whether a piece of a cache (`footprint.parts`) is among those kept."""
        return part in self._holders

    def match(self, ids: Ids) -> tuple[Cache | None, int]:
        """The longest stored prefix of `ids`: a cache that begins with it, and its length. The cache stays the
        tree's: fork it before use. It counts as used."""
        node, depth, beyond = self._descend(ids)
        if depth == 0:
            return None, 0
        holder = node if beyond is None else beyond
        while holder.cache is None:
            holder = next(iter(holder.children.values()))  # every leaf holds a cache
        self._used.move_to_end(id(holder))
        return holder.cache, depth

    def insert(self, ids: Ids, cache: Cache) -> None:
        """Keep a cache of exactly `ids`; it belongs to the tree from now on. Older ones may go, or this one, if it
        alone is too large."""
        if not len(ids) or not self.limit:
            _let_go(cache)
            return
        known, depth = self.match(ids)
        if known is not None and depth == len(ids) and known.length >= depth:
            _let_go(cache)  # all of it is there
            return
        share = getattr(cache, "share", None)
        if known is not None and self._exact and share is not None:
            share(known, depth)
        node = self._place(ids)
        node.cache = cache
        self._used[id(node)] = node
        for part, nbytes in parts(cache):
            self._holders[part] += 1
            if self._holders[part] == 1:
                self.nbytes += nbytes
        above = node.parent
        while above is not None:  # what it goes on from is part of it
            up = above.parent
            if above.cache is not None:
                self._drop(above)
            above = up
        self.shrink(self.limit)

    def shrink(self, limit: int) -> None:
        """Let go of caches, least recently used first, until at most `limit` bytes are held."""
        while self._used and self.nbytes > limit:
            self.drop_oldest()

    def drop_oldest(self) -> None:
        """Let go of the least recently used cache."""
        self._drop(next(iter(self._used.values())))

    def clear(self) -> None:
        self.shrink(-1)

    def _descend(self, ids: Ids) -> tuple[_Node, int, _Node | None]:
        """The last node that is wholly a prefix of `ids`, how many ids match, and the child whose edge matches in
        part, if one does."""
        node, at = self._root, 0
        while at < len(ids):
            child = node.children.get(int(ids[at]))
            if child is None:
                break
            n = common_ids(child.ids, ids[at:])
            at += n
            if n < len(child.ids):
                return node, at, child
            node = child
        return node, at, None

    def _place(self, ids: Ids) -> _Node:
        """The node at `ids`, made if needed; an edge is split where they leave it."""
        node, at, partial = self._descend(ids)
        if partial is not None:
            n = at - self._depth(node)
            middle = _Node(partial.ids[:n].copy(), node, {int(partial.ids[n]): partial})
            node.children[int(middle.ids[0])] = middle
            partial.ids, partial.parent = partial.ids[n:].copy(), middle
            node = middle
        if at < len(ids):
            leaf = _Node(ids[at:].copy(), node)
            node.children[int(leaf.ids[0])] = leaf
            node = leaf
        return node

    def _depth(self, node: _Node) -> int:
        depth, at = 0, node
        while at.parent is not None:
            depth, at = depth + len(at.ids), at.parent
        return depth

    def _drop(self, node: _Node) -> None:
        cache = node.cache
        assert cache is not None
        del self._used[id(node)]
        for part, nbytes in parts(cache):
            self._holders[part] -= 1
            if not self._holders[part]:
                del self._holders[part]
                self.nbytes -= nbytes
        node.cache = None
        _let_go(cache)
        while node.parent is not None and node.cache is None and len(node.children) < 2:
            above = node.parent
            if node.children:  # one child: the two edges become one
                (child,) = node.children.values()
                child.ids, child.parent = np.concatenate((node.ids, child.ids)), above
                above.children[int(child.ids[0])] = child
                return
            del above.children[int(node.ids[0])]
            node = above


def _let_go(cache: Cache) -> None:
    """Frees the pages here and now, in the worker's thread, whoever else still holds the object."""
    cache.truncate(0)


def common_ids(a: Ids, b: Ids) -> int:
    """Length of the longest common prefix of two id arrays."""
    n = min(len(a), len(b))
    differ = np.flatnonzero(a[:n] != b[:n])
    return int(differ[0]) if len(differ) else n
