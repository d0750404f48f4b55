"""What a row sees of the target's keys, and how the chunks of it are chosen."""

from __future__ import annotations

import numpy as np
import pytest
from tiny_drafts import SOURCE, VOCAB, read

from exactspec.drafters.layer.sight import SINKS, Sight, Summaries
from exactspec.target.exact import ExactTarget

CHUNK = 128


def positions(pieces: list[tuple[int, int, int]]) -> list[int]:
    return [chunk * CHUNK + slot for chunk, first, end in pieces for slot in range(first, end)]


@pytest.mark.parametrize("recent", [128, 130, 200, 1024])
def test_every_key_is_seen_or_can_be_chosen(recent: int) -> None:
    for n in (1, 4, 127, 128, 129, recent + 3, recent + 4, recent + 5, 640, 1111, 2048, 5000):
        sight = Sight(recent, top=3)
        fixed, between = positions(sight.fixed(n)), positions(sight.between(n))
        assert sorted(fixed + between) == list(range(n))
        assert len(fixed) == min(n, SINKS + recent)
        assert [piece[0] for piece in sight.between(n)] == list(range(len(sight.between(n))))  # row i is chunk i


def test_a_chunk_that_is_not_full_cannot_be_chosen() -> None:
    for n in (255, 256):
        assert Sight(10, top=1).between(n) == [(0, 4, 128), (1, 0, 118)][: n // CHUNK]
    assert Sight(10).between(1000) == []
    assert Sight(None).fixed(300) == [(0, 0, 128), (1, 0, 128), (2, 0, 44)]


@pytest.mark.parametrize(
    ("recent", "top", "message"),
    [(0, 0, "at least 1 recent key"), (100, 65, "0 to 64 top chunks"), (100, -1, "0 to 64"), (None, 1, "has none")],
)
def test_what_is_no_sight(recent: int | None, top: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Sight(recent, top)


@pytest.mark.parametrize("cache_dtype", ["bfloat16", "float32", "int8"])
def test_summaries_are_means_of_the_keys_of_full_chunks(cache_dtype: str) -> None:
    target = ExactTarget(SOURCE, threads=1, context=512, cache_dtype=cache_dtype)
    tokens = np.random.default_rng(0).integers(0, VOCAB, 402)
    cache, _ = read(target, tokens)
    keys = cache.last_layer()[0]  # type: ignore[attr-defined]
    made = Summaries.empty(4, keys.shape[0], keys.shape[2])
    short = cache.fork()
    short.truncate(300)
    for one, known in ((short, 2), (cache, 3)):
        made.take_in(one)  # type: ignore[arg-type]
        assert made.known == known
        assert not made.means[known:].any()
        for at in range(known):
            part = keys[:, max(SINKS, at * CHUNK) : (at + 1) * CHUNK].astype(np.float64)
            np.testing.assert_allclose(made.means[at], part.mean(axis=1), atol=1e-5)
    twin = made.fork()
    made.truncate(300)
    assert (made.known, twin.known) == (2, 3)
    twin.means[:] = 0
    assert made.means.any()
