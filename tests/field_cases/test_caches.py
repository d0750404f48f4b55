"""Field cases 7 and 8: windows when several tokens arrive at once; caches that cannot be rewound."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import reference
from field_cases.naive import naive
from scripted import IdTokenizer, ListCache, ListTarget, Raw, hash_target
from tiny_weights import RandomWeights

from exactspec.engine import Engine
from exactspec.params import SamplingParams, Speculation
from exactspec.target.base import IntArray, Segment, Want
from exactspec.target.exact import ExactTarget

TEXT = np.random.default_rng(7).integers(0, 97, 60).tolist()
WINDOWS = {"vocab_size": 97, "layer_windows": (16, 0)}
"""F5: layer 0 sees 16 tokens, layer 1 all."""


def last_row(target: ExactTarget, blocks: Sequence[int]) -> np.ndarray:
    cache, at, turn = target.new_cache(), 0, 0
    while at < len(TEXT):
        block = TEXT[at : at + blocks[turn % len(blocks)]]
        (rows,) = target.forward([Segment.chain(cache, block, Want.LOGITS, last_only=True)])
        cache.keep(range(len(block)))
        at, turn = at + len(block), turn + 1
    return np.array(rows.row_logits(len(block) - 1))


@pytest.mark.parametrize("cache_dtype", ["float32", "bfloat16", "int8"])
def test_07_a_window_and_tokens_in_blocks(cache_dtype: str) -> None:
    """Nothing is evicted: a window hides keys, and is the same however the tokens came."""
    target = ExactTarget(RandomWeights(**WINDOWS), threads=2, cache_dtype=cache_dtype)
    expected = last_row(target, [1])
    for blocks in ([3], [5], [8], [17], [60], [1, 17, 2, 8, 5]):
        assert np.array_equal(last_row(target, blocks), expected), blocks
    right = reference.logits(RandomWeights(**WINDOWS), TEXT, int8_weights=True)[-1]
    unseen = reference.logits(RandomWeights(vocab_size=97), TEXT, int8_weights=True)[-1]
    assert np.abs(expected - right).mean() < 0.06 * right.std()
    assert np.abs(expected - unseen).mean() > 0.1 * right.std()  # the window matters, and is the one asked for
    target.close()


class NoCrop:
    """The state of a recurrent model: it goes forward only."""

    length, nbytes = 0, 0

    def keep(self, rows: Sequence[int] | IntArray) -> None:
        raise AssertionError("used although it cannot be rewound")


class Recurrent(ListTarget):
    def new_cache(self) -> ListCache:
        return NoCrop()  # type: ignore[return-value]


def test_08_a_cache_that_cannot_be_rewound_is_refused() -> None:
    target = Recurrent(lambda path: np.zeros(97, dtype=np.float32), vocab_size=97)
    with pytest.raises(ValueError, match="NoCrop cannot be rewound: it lacks truncate, fork"):
        Engine(target, IdTokenizer(97))


def test_08_a_state_that_depends_on_every_token_survives_rejections() -> None:
    """A rolling hash of the whole path: what a rejected draft leaves behind would change all that follows."""
    prompt = [1, 2, 3, 9, 1, 2, 3, 8, 1, 2, 3]
    target = hash_target(order=None)
    right = naive(target, prompt, 40)
    for draft in ("copy", "copyspec"):
        engine = Engine(target, IdTokenizer(97), speculation=Speculation(draft=draft, min_match=1, gamma=1))
        assert list(engine.generate(prompt, SamplingParams(max_tokens=40)).token_ids) == right
    wrong = Engine(target, IdTokenizer(97), draft=Wrong())
    done = wrong.generate(prompt, SamplingParams(max_tokens=40))
    assert list(done.token_ids) == right
    assert done.metrics.num_draft_tokens - done.metrics.num_accepted_tokens >= 5


class Wrong(Raw):
    """Every draft is a chain of three ids that are hardly ever right."""

    def __init__(self) -> None:
        super().__init__(None)

    def draft(self, history: list[int], budget: object) -> object:
        from exactspec.tree import DraftTree

        n = len(history)
        return DraftTree.chain([n % 97, (n + 1) % 97, (n + 2) % 97], source=self.name, origins=[0, 1, 2])
