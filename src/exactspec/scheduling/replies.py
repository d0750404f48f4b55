"""Generated ids of earlier replies, for conversations that come back as text.

An HTTP client sends the whole conversation with every turn, as text. The chat template turns the text of an earlier
reply into ids anew, and those may differ from the ids that the model generated and whose keys and values are kept. As
`splice.Transcript` does for one session, this puts the generated ids back, for any number of conversations: each ended
reply is remembered under a digest of the templated ids that led to it, and a new prompt is looked up by the digests of
its own beginnings.

Which ids are used then depends on what is remembered, so the scheduler does this only where it was asked to.
"""

from __future__ import annotations

from bisect import insort
from collections import Counter, OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np

from exactspec.splice import reply_ids, splice_reply
from exactspec.target.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class _Reply:
    """`used`: the prompt as it was used. `ids`: the generated ids that make up exactly `text`."""

    length: int
    used: tuple[int, ...]
    ids: tuple[int, ...]
    text: bytes


class Replies:
    """The last `limit` replies. Not thread-safe."""

    def __init__(self, tokenizer: Tokenizer, *, limit: int = 256) -> None:
        self._tokenizer = tokenizer
        self._limit = limit
        self._replies: OrderedDict[bytes, _Reply] = OrderedDict()
        self._lengths: list[int] = []  # distinct lengths of templated prompts, increasing
        self._counts: Counter[int] = Counter()

    def __len__(self) -> int:
        return len(self._replies)

    def splice(self, templated: Sequence[int]) -> list[int]:
        """The prompt to use for `templated`: the same text and control tokens, with the generated ids of the latest
        remembered reply in it and of those before. `templated` itself where none fits."""
        lengths = [n for n in self._lengths if n < len(templated)]
        for length, key in zip(reversed(lengths), reversed(_digests(templated, lengths)), strict=True):
            reply = self._replies.get(key)
            if reply is not None:
                self._replies.move_to_end(key)
                rest = splice_reply(self._tokenizer, reply.ids, reply.text, templated[length:])
                return [*reply.used, *(templated[length:] if rest is None else rest)]
        return list(templated)

    def record(self, templated: Sequence[int], used: Sequence[int], reply: Sequence[int], text: str) -> None:
        """A reply ended: `used` is ``splice(templated)`` or `templated`; `text` is what the caller was given of
        `reply`."""
        ids = reply_ids(self._tokenizer, text.encode(), reply)
        if ids is None:
            return
        (key,) = _digests(templated, [len(templated)])
        if key not in self._replies:
            self._count(len(templated), 1)
        self._replies[key] = _Reply(len(templated), tuple(used), ids, text.encode())
        self._replies.move_to_end(key)
        while len(self._replies) > self._limit:
            _, oldest = self._replies.popitem(last=False)
            self._count(oldest.length, -1)

    def _count(self, length: int, change: int) -> None:
        self._counts[length] += change
        if change > 0 and self._counts[length] == 1:
            insort(self._lengths, length)
        elif not self._counts[length]:
            del self._counts[length]
            self._lengths.remove(length)


def _digests(ids: Sequence[int], lengths: Sequence[int]) -> list[bytes]:
    """Of the first n ids, for each n of `lengths` (increasing)."""
    data = memoryview(np.asarray(ids, dtype=np.int64).tobytes())
    state, at, found = blake2b(digest_size=16), 0, []
    for n in lengths:
        state.update(data[8 * at : 8 * n])
        at = n
        found.append(state.copy().digest())
    return found
