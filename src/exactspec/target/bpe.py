"""Byte-level BPE over tables that are read in place, so that a kept vocabulary is mapped and never parsed.

The rule is that of ``tokenizers``' BPE model: of all neighbouring pairs that have a merge, the one that stands first
in the list of merges is joined first, ties from the left. Text is cut into words by the pre-tokenizer of that
package; a word is merged here, in about 3 microseconds a byte, once (words are remembered). Building its own model
from 150,000 merges takes the package half a second and 80 MB, at every start.
"""

from __future__ import annotations

import heapq
import re
import sys
from array import array
from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from exactspec.target.byte_level import byte_alphabet
from exactspec.target.pretokenize import blocks, pre_tokenizer
from exactspec.target.settings import told

_WORDS = 1 << 16  # words remembered
_LONGEST = 256  # characters of a word that is
_PLACE = 2**32 - 1


@dataclass(frozen=True, slots=True, eq=False)
class BpeTables:
    """Merges as sorted tables. `pre`: the pre-tokenizer's name. `singles` int32 [256]: id of each byte's token, -1
    where there is none (such bytes are left out, as ``tokenizers`` does). `keys` uint64 [merges], increasing: ``left id
    << 32 | right id``; beside each its `ranks` uint32 (place in the list) and `joined` uint32 (id of both together).
    `index` uint32: all ids that a whole word may be, in the order of their texts' bytes; empty where words are always
    merged."""

    pre: str
    singles: npt.NDArray[np.int32]
    keys: npt.NDArray[np.uint64]
    ranks: npt.NDArray[np.uint32]
    joined: npt.NDArray[np.uint32]
    index: npt.NDArray[np.uint32]


def bpe_tables(pre: str, ids: Mapping[str, int], merges: list[str]) -> BpeTables:
    """Tables for a vocabulary (text -> id, in the byte-level alphabet) and its merges (``left right``).

    Raises ValueError if a merge names a token that is not there.
    """
    alphabet = sorted(byte_alphabet().items(), key=lambda item: item[1])
    singles = [ids.get(character, -1) for character, _ in alphabet]
    found: dict[int, tuple[int, int]] = {}  # a merge that is listed twice counts where it stands last
    for rank, merge in enumerate(merges):
        left, _, right = merge.partition(" ")
        try:
            found[ids[left] << 32 | ids[right]] = rank, ids[left + right]
        except KeyError as error:
            raise ValueError(
                f"the vocabulary and its merges do not fit together: {told(merge)} needs the token "
                f"{told(error.args[0])}"
            ) from None
    keys = np.fromiter(found, np.uint64, len(found))
    order = np.argsort(keys)
    values = np.array(list(found.values()), dtype=np.uint32).reshape(-1, 2)[order]
    whole = pre_tokenizer(pre).whole_words
    index = sorted(ids, key=lambda text: text.encode("utf-8", "surrogateescape")) if whole else []
    return BpeTables(
        pre=pre,
        singles=np.array(singles, dtype=np.int32),
        keys=keys[order],
        ranks=np.ascontiguousarray(values[:, 0]),
        joined=np.ascontiguousarray(values[:, 1]),
        index=np.array([ids[text] for text in index], dtype=np.uint32),
    )


class ByteLevelBpe:
    """An `Encoder`. `defined`: texts taken whole wherever they stand. `text_of`: bytes of a token's text, by id."""

    __slots__ = (
        "_defined", "_index", "_joined", "_keys", "_normalizer", "_ranks", "_search", "_singles", "_splitter",
        "_text_of", "_words",
    )  # fmt: skip

    def __init__(self, tables: BpeTables, defined: Mapping[str, int], text_of: Callable[[int], bytes]) -> None:
        pre = pre_tokenizer(tables.pre)
        self._normalizer, self._splitter = pre.normalizer(), pre.splitter()
        # Memory views give Python's own integers, several times as fast as numpy does one by one.
        self._keys, self._ranks, self._joined = (tables.keys.data, tables.ranks.data, tables.joined.data)
        self._index = tables.index.data if len(tables.index) else None
        ids = tables.singles.tolist()
        self._singles = {character: ids[byte] for character, byte in byte_alphabet().items() if ids[byte] >= 0}
        self._defined = {text: id for text, id in defined.items() if text}
        longest_first = sorted(self._defined, key=len, reverse=True)
        self._search = re.compile("|".join(map(re.escape, longest_first))) if longest_first else None
        self._text_of = text_of
        self._words: dict[str, list[int]] = {}

    def spelled(self, text: str) -> str:
        if self._normalizer is None or text.isascii():
            return text
        return "".join(map(self._normalizer.normalize_str, blocks(text)))  # in which other threads get to run

    def __call__(self, text: str, *, first: bool, at_most: int | None = None) -> list[int]:
        ids: list[int] = []
        at = 0
        most = sys.maxsize if at_most is None else at_most
        for match in self._search.finditer(text) if self._search is not None else ():
            self._plain(text[at : match.start()], ids, most)
            ids.append(self._defined[match.group()])
            at = match.end()
            if len(ids) > most:
                return ids
        self._plain(text[at:], ids, most)
        return ids

    def _plain(self, text: str, ids: list[int], most: int) -> None:
        for block in blocks(text):
            self._block(block, ids)
            if len(ids) > most:
                return

    def _block(self, text: str, ids: list[int]) -> None:
        if self._normalizer is not None:
            text = self._normalizer.normalize_str(text)
        words = self._words
        for word, _ in self._splitter.pre_tokenize_str(text):
            known = words.get(word)
            if known is None:
                known = self._word(word)
                if len(word) <= _LONGEST:
                    if len(words) >= _WORDS:
                        words.clear()
                    words[word] = known
            ids += known

    def _word(self, word: str) -> list[int]:
        if self._index is not None:
            data = word.encode()
            at = bisect_left(self._index, data, key=self._text_of)
            if at < len(self._index) and self._text_of(self._index[at]) == data:
                return [self._index[at]]
        singles = self._singles
        return self._merge([singles[character] for character in word if character in singles])

    def _merge(self, ids: list[int]) -> list[int]:
        """Join until no pair has a merge. A symbol that went into the one on its left becomes -1.

        A word may have megabytes (a run of spaces is one), so what is kept for each of its bytes is small: the queue
        holds one integer a pair, ``rank << 64 | left place << 32 | place in the tables``.
        """
        count, keys, ranks, joined = len(ids), self._keys, self._ranks, self._joined
        symbols, before = array("i", ids), array("i", range(-1, count - 1))
        after = array("i", range(1, count + 1))
        if count:
            after[-1] = -1
        queue: list[int] = []

        def consider(left: int, right: int) -> None:
            key = symbols[left] << 32 | symbols[right]
            at = bisect_left(keys, key)
            if at < len(keys) and keys[at] == key:
                heapq.heappush(queue, ranks[at] << 64 | left << 32 | at)

        for i in range(count - 1):
            consider(i, i + 1)
        while queue:
            entry = heapq.heappop(queue)
            left, at = entry >> 32 & _PLACE, entry & _PLACE
            right = after[left]
            if symbols[left] < 0 or right < 0 or symbols[left] << 32 | symbols[right] != keys[at]:
                continue  # one of the two was joined elsewhere meanwhile
            symbols[left], symbols[right] = joined[at], -1
            after[left] = after[right]
            if after[right] >= 0:
                before[after[right]] = left
                consider(left, after[right])
            if before[left] >= 0:
                consider(before[left], left)
        return [symbol for symbol in symbols if symbol >= 0]
