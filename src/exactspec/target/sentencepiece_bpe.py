"""SentencePiece BPE with byte fallback (Llama 2, Mistral 7B), from pieces and scores.

A GGUF file holds scores and no merges, and rebuilding merges from scores breaks ties another way than SentencePiece
does; so its rule is followed directly (``bpe_model.cc``, and ``llm_tokenizer_spm`` of llama.cpp): of all neighbouring
pairs that are a piece when joined, the highest score is joined first, ties from the left.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Mapping

SPACE = "\u2581"


class SentencePieceBpe:
    """An `Encoder`. `mergeable`: piece -> (id, score). `defined`: texts taken whole wherever they stand.
    `byte_ids`: byte -> id, for characters that are no piece. `space_prefix`: a space is put before every text.

    O(n log n) in the text's length.
    """

    __slots__ = ("_byte_ids", "_defined", "_mergeable", "_prefix", "_search", "_unknown")

    def __init__(
        self,
        mergeable: Mapping[str, tuple[int, float]],
        defined: Mapping[str, int],
        byte_ids: Mapping[int, int],
        unknown: int | None,
        *,
        space_prefix: bool,
    ) -> None:
        if len(byte_ids) not in (0, 256) or (not byte_ids and unknown is None):
            raise ValueError(f"the vocabulary has {len(byte_ids)} byte tokens: it needs all 256, or an unknown token")
        # Some files (Gemma's) spell defined runs of spaces with spaces; they are looked for as text is written here.
        self._defined = {text.replace(" ", SPACE): id for text, id in defined.items() if text}
        self._mergeable, self._byte_ids = mergeable, byte_ids
        self._unknown, self._prefix = unknown, SPACE if space_prefix else ""
        texts = sorted(self._defined, key=len, reverse=True)
        self._search = re.compile("|".join(re.escape(text) for text in texts)) if texts else None

    def spelled(self, text: str) -> str:
        return text.replace(SPACE, " ")  # tokens stand for spaces either way

    def __call__(self, text: str, *, first: bool, at_most: int | None = None) -> list[int]:
        text = self._prefix + text.replace(" ", SPACE)
        if self._search is None:
            return self._merge(text)
        ids: list[int] = []
        at = 0
        for match in self._search.finditer(text):
            ids += self._merge(text[at : match.start()])
            ids.append(self._defined[match.group()])
            at = match.end()
            if at_most is not None and len(ids) > at_most:
                return ids
        return ids + self._merge(text[at:])

    def _merge(self, text: str) -> list[int]:
        symbols = list(text)  # "" once joined into the one on its left
        before = list(range(-1, len(symbols) - 1))
        after = [*range(1, len(symbols)), -1]
        queue: list[tuple[float, int, int, int]] = []
        mergeable = self._mergeable

        def consider(left: int, right: int) -> None:
            if left < 0 or right < 0:
                return
            joined = symbols[left] + symbols[right]
            found = mergeable.get(joined)
            if found is not None:
                heapq.heappush(queue, (-found[1], left, right, len(joined)))

        for i in range(len(symbols) - 1):
            consider(i, i + 1)
        while queue:
            _, left, right, size = heapq.heappop(queue)
            if not symbols[left] or not symbols[right] or len(symbols[left]) + len(symbols[right]) != size:
                continue  # one of the two was joined elsewhere meanwhile
            symbols[left] += symbols[right]
            symbols[right] = ""
            after[left] = after[right]
            if after[right] >= 0:
                before[after[right]] = left
            consider(before[left], left)
            consider(left, after[left])
        ids: list[int] = []
        for symbol in symbols:
            if symbol:
                self._emit(symbol, ids)
        return ids

    def _emit(self, symbol: str, ids: list[int]) -> None:
        found = self._mergeable.get(symbol)
        if found is not None:
            ids.append(found[0])
        elif self._byte_ids:
            ids += [self._byte_ids[byte] for byte in symbol.encode("utf-8")]
        elif self._unknown is not None:
            ids.append(self._unknown)
