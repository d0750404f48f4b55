"""Targets, a tokenizer and drafters for tests of the engine: small, slow, and obviously right.

`ListTarget` keeps its cache as a list of tokens and computes each row from that row's own path, so it is exact; what a
cache wrongly keeps or drops changes its logits.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from exactspec.drafters.base import Context, DraftBudget, Verified
from exactspec.target.base import FloatArray, IntArray, Segment, SegmentRows, Want
from exactspec.tree import DraftTree

EOS, BOS, OPEN, CLOSE = 256, 257, 258, 259
"""Control ids of `ByteTokenizer`: end of text, begin of text, begin and end of a turn."""


class ListCache:
    """Committed tokens, and the rows of the last forward."""

    def __init__(self, tokens: Sequence[int] = ()) -> None:
        self.tokens = list(tokens)
        self.staged: list[tuple[int, int]] = []  # (token, parent)

    @property
    def length(self) -> int:
        return len(self.tokens)

    @property
    def nbytes(self) -> int:
        return 8 * len(self.tokens)

    def keep(self, rows: Sequence[int] | IntArray) -> None:
        above = -1
        for row in rows:
            if not 0 <= row < len(self.staged) or self.staged[row][1] != above:
                raise ValueError(f"{list(rows)} is no root path of the staged rows")
            above = int(row)
        self.tokens += [self.staged[row][0] for row in rows]
        self.staged = []

    def truncate(self, n: int) -> None:
        if not 0 <= n <= len(self.tokens):
            raise ValueError(f"cannot truncate {len(self.tokens)} tokens to {n}")
        del self.tokens[n:]
        self.staged = []

    def fork(self) -> ListCache:
        return ListCache(self.tokens)


class ListTarget:
    """A target whose logits are a function of the path of tokens up to and including the row.

    `logits` path -> float32 [vocab_size]. `forwards` counts calls, `rows` the rows of each, `last_position` is the
    highest position touched.
    """

    top_k = 4
    exact = True

    def __init__(
        self,
        logits: Callable[[list[int]], FloatArray],
        *,
        vocab_size: int,
        max_length: int = 4096,
        before: Callable[[int], None] | None = None,
    ) -> None:
        self._logits = logits
        self._before = before
        self.vocab_size = vocab_size
        self.max_length = max_length
        self.identity = "list-target/1"
        self.rows: list[int] = []
        self.last_position = -1
        self.caches = 0

    @property
    def forwards(self) -> int:
        return len(self.rows)

    def new_cache(self) -> ListCache:
        self.caches += 1
        return ListCache()

    def forward(self, segments: Sequence[Segment]) -> list[SegmentRows]:
        for segment in segments:
            self._check(segment)
        self.rows.append(sum(len(s.tokens) for s in segments))
        if self._before is not None:
            self._before(self.forwards)
        return [self._segment(s) for s in segments]

    def _check(self, segment: Segment) -> None:
        tokens, parents = segment.tokens.tolist(), segment.parents.tolist()
        if not len(tokens) == len(parents) == len(segment.want) > 0:
            raise ValueError("lengths of a segment's arrays differ, or are 0")
        if any(not 0 <= t < self.vocab_size for t in tokens):
            raise ValueError("token outside the vocabulary")
        if parents[0] != -1 or any(not 0 <= p < i for i, p in enumerate(parents) if i):
            raise ValueError("malformed tree")
        edges = list(zip(parents, tokens, strict=True))
        if len(set(edges)) != len(edges):
            raise ValueError("siblings with the same token")

    def _segment(self, segment: Segment) -> SegmentRows:
        cache: ListCache = segment.cache  # type: ignore[assignment]
        tokens, parents, wants = (a.tolist() for a in (segment.tokens, segment.parents, segment.want))
        n = len(tokens)
        argmax, index = np.full(n, -1), np.full(n, -1)
        ids, values = np.full((n, self.top_k), -1), np.zeros((n, self.top_k), dtype=np.float32)
        asked: list[FloatArray] = []
        depth: list[int] = []
        for row in range(n):
            depth.append(depth[parents[row]] + 1 if row else 0)
            position = cache.length + depth[row]
            if position >= self.max_length:
                raise ValueError(f"position {position} is past the context of {self.max_length}")
            self.last_position = max(self.last_position, position)
            if wants[row] >= Want.ARGMAX:
                above, at = [tokens[row]], row
                while at:
                    at = parents[at]
                    above.append(tokens[at])
                logits = self._logits(cache.tokens + above[::-1])
                argmax[row] = int(logits.argmax())
                if wants[row] >= Want.TOPK:
                    ids[row] = np.argsort(-logits, kind="stable")[: self.top_k]
                    values[row] = logits[ids[row]]
                if wants[row] >= Want.LOGITS:
                    index[row] = len(asked)
                    asked.append(logits)
        cache.staged = list(zip(tokens, parents, strict=True))
        full = np.stack(asked) if asked else np.empty((0, self.vocab_size), dtype=np.float32)
        hidden = np.zeros((n, 1), dtype=np.float32)
        return SegmentRows(argmax, hidden, index, full, ids, values)


def script_target(prompt_length: int, script: Sequence[int], *, vocab_size: int = 300, **options: Any) -> ListTarget:
    """F1: at output position t the logit of ``script[t]`` is +10, all others 0 (past the script: id 0)."""

    def logits(path: list[int]) -> FloatArray:
        row = np.zeros(vocab_size, dtype=np.float32)
        at = len(path) - prompt_length
        row[script[at] if 0 <= at < len(script) else 0] = 10.0
        return row

    return ListTarget(logits, vocab_size=vocab_size, **options)


def hash_target(*, vocab_size: int = 97, order: int | None = 2, scale: float = 6.0, **options: Any) -> ListTarget:
    """Pseudo-random logits of the last `order` tokens (greedy output then runs into loops), None: of the whole path."""
    ids = np.arange(vocab_size, dtype=np.uint64)

    def logits(path: list[int]) -> FloatArray:
        key = 1469598103934665603
        for token in path if order is None else path[-order:]:
            key = ((key ^ (token + 1)) * 1099511628211) % 2**64
        x = (ids + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15) ^ np.uint64(key)
        x = (x ^ (x >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(32))) * np.uint64(0x94D049BB133111EB)
        return ((x >> np.uint64(40)).astype(np.float64) / 2**24 * scale).astype(np.float32)

    return ListTarget(logits, vocab_size=vocab_size, **options)


class Clock:
    """One millisecond a look; a target with `before` as its hook takes forty for a forward."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 0.001
        return self.now

    def before(self, forward: int) -> None:
        self.now += 0.040


class ByteTokenizer:
    """F3: id = byte, 256 = EOS, 257 = BOS, 258 and 259 open and close a turn; `merges` are further ids, from 260 on,
    that `encode` prefers (so that one text has several tokenisations)."""

    def __init__(self, merges: Sequence[bytes] = (), *, eos: Sequence[int] = (EOS,), bos: int | None = None) -> None:
        self._merges = list(merges)
        self.eos_ids = frozenset(eos)
        self.bos_id = bos
        self.has_chat_template = True

    @property
    def vocab_size(self) -> int:
        return 260 + len(self._merges)

    def encode(self, text: str, *, at_most: int | None = None) -> list[int]:
        data, ids, at = text.encode(), [], 0
        while at < len(data):
            merge = next((m for m in self._merges if data.startswith(m, at)), None)
            ids.append(data[at] if merge is None else 260 + self._merges.index(merge))
            at += 1 if merge is None else len(merge)
        return ids

    def token_bytes(self, token: int) -> bytes:
        if not 0 <= token < self.vocab_size:
            raise ValueError(f"token {token} is outside the vocabulary")
        return bytes([token]) if token < 256 else b"" if token < 260 else self._merges[token - 260]

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        at_most: int | None = None,
    ) -> list[int]:
        ids = [] if tools is None else [OPEN, *self.encode(f"tools\n{json.dumps(tools)}"), CLOSE]
        for message in messages:
            ids += [OPEN, *self.encode(f"{message['role']}\n{message['content']}"), CLOSE, *self.encode("\n")]
        return ids + ([OPEN, *self.encode("assistant\n")] if add_generation_prompt else [])


class IdTokenizer(ByteTokenizer):
    """For models of bare ids: every id is a letter, `eos` as given."""

    def __init__(self, vocab_size: int = 300, *, eos: Sequence[int] = ()) -> None:
        super().__init__(eos=eos)
        self._size = vocab_size

    @property
    def vocab_size(self) -> int:
        return self._size

    def token_bytes(self, token: int) -> bytes:
        return b"" if token in self.eos_ids else bytes([97 + token % 26])


class TestDrafter:
    """Base of the drafters below: keeps the history, and checks that the engine tells it right."""

    __test__ = False
    name = "test"

    def begin(self, context: Context) -> list[int]:
        assert len(context.tokens) == context.cache.length + 1
        return context.tokens.tolist()

    def propose(self, state: list[int], budget: DraftBudget) -> DraftTree:
        assert budget.max_nodes >= 1
        assert budget.max_depth >= 1
        tree = self.draft(state, budget)
        return tree

    def draft(self, history: list[int], budget: DraftBudget) -> Any:
        raise NotImplementedError

    def commit(self, state: list[int], verified: Verified) -> None:
        tokens = verified.tokens.tolist()
        accepted = verified.tree.tokens[verified.path].tolist()
        assert accepted == tokens[: len(accepted)]
        if len(verified.rows):
            assert len(accepted) <= len(tokens) <= len(accepted) + 1
        state += tokens
        assert len(state) == verified.cache.length + 1

    def truncate(self, state: list[int], n: int) -> None:
        assert 0 <= n <= len(state)
        del state[n:]

    def fork(self, state: list[int]) -> list[int]:
        return list(state)

    def close(self, state: list[int]) -> None:
        state.clear()


class Oracle(TestDrafter):
    """Knows the whole text: a chain of what comes, `wrong_every` k-th token spoilt."""

    name = "oracle"

    def __init__(self, text: Sequence[int], *, length: int = 8, wrong_every: int = 0, vocab_size: int = 97) -> None:
        self.text, self.length, self.wrong_every, self.vocab_size = list(text), length, wrong_every, vocab_size

    def draft(self, history: list[int], budget: DraftBudget) -> DraftTree:
        n = len(history)
        tokens = self.text[n : n + self.length]
        if self.wrong_every:
            tokens = [(t + 1) % self.vocab_size if (n + i) % self.wrong_every == 0 else t for i, t in enumerate(tokens)]
        return DraftTree.chain(tokens, source=self.name, origins=range(n, n + len(tokens)))


class RandomTree(TestDrafter):
    """Random trees; with `text`, some of their paths are right. Many nodes, deep and wide."""

    name = "random"

    def __init__(self, *, vocab_size: int, text: Sequence[int] = (), seed: int = 0, nodes: int = 20) -> None:
        self.rng = np.random.default_rng(seed)
        self.text, self.vocab_size, self.nodes = list(text), vocab_size, nodes

    def draft(self, history: list[int], budget: DraftBudget) -> DraftTree:
        tokens: list[int] = []
        parents: list[int] = []
        depth: list[int] = []
        seen: set[tuple[int, int]] = set()
        for _ in range(self.nodes):
            parent = int(self.rng.integers(-1, len(tokens)))
            d = depth[parent] + 1 if parent >= 0 else 1
            at = len(history) + d - 1
            token = int(self.rng.integers(self.vocab_size))
            if at < len(self.text) and self.rng.random() < 0.7:
                token = self.text[at]
            if (parent, token) not in seen:
                seen.add((parent, token))
                tokens.append(token)
                parents.append(parent)
                depth.append(d)
        n = len(tokens)
        return DraftTree(
            np.array(tokens, dtype=np.int64),
            np.array(parents, dtype=np.int64),
            np.zeros(n, dtype=np.int64),
            np.full(n, 0.9, dtype=np.float32),
            np.full(n, -1, dtype=np.int64),
            (self.name,),
        )


class Raw(TestDrafter):
    """Returns whatever it was given: for proposals that no drafter should make."""

    name = "raw"

    def __init__(self, proposal: Any) -> None:
        self.proposal = proposal

    def draft(self, history: list[int], budget: DraftBudget) -> Any:
        return self.proposal


class Raising(Oracle):
    """Raises in the method named, on its n-th call."""

    name = "raising"

    def __init__(self, method: str, text: Sequence[int], *, call: int = 1) -> None:
        super().__init__(text)
        self.method, self.call, self.calls = method, call, 0

    def _count(self, method: str) -> None:
        if method == self.method:
            self.calls += 1
            if self.calls >= self.call:
                raise RuntimeError(f"{method} failed on purpose")

    def begin(self, context: Context) -> list[int]:
        self._count("begin")
        return super().begin(context)

    def propose(self, state: list[int], budget: DraftBudget) -> DraftTree:
        self._count("propose")
        return super().propose(state, budget)

    def commit(self, state: list[int], verified: Verified) -> None:
        self._count("commit")
        super().commit(state, verified)

    def truncate(self, state: list[int], n: int) -> None:
        self._count("truncate")
        super().truncate(state, n)

    def fork(self, state: list[int]) -> list[int]:
        self._count("fork")
        return super().fork(state)

    def close(self, state: list[int]) -> None:
        self._count("close")
        super().close(state)
