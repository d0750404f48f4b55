"""Field cases 6 and 17: cropping a cache at its edges, and the end of the context."""

from __future__ import annotations

import pytest
from field_cases.conftest import MakeEngine
from field_cases.naive import naive

from exactspec.params import SamplingParams, Speculation
from exactspec.target.base import Segment, Want

WRITTEN, ADDED = [11, 12, 13, 14, 15], [21, 22, 23]


@pytest.mark.parametrize("left", [5, 4, 1, 0])
def test_06_crop_and_go_on(left: int, make_engine: MakeEngine) -> None:
    target = make_engine().target
    cache, fresh = target.new_cache(), target.new_cache()
    target.forward([Segment.chain(cache, WRITTEN)])
    cache.keep(range(5))
    assert cache.length == 5
    cache.truncate(left)
    assert cache.length == left
    (after,) = target.forward([Segment.chain(cache, ADDED, Want.LOGITS)])
    got = [after.row_logits(row).tobytes() for row in range(3)]
    (right,) = target.forward([Segment.chain(fresh, WRITTEN[:left] + ADDED, Want.LOGITS)])
    assert got == [right.row_logits(left + row).tobytes() for row in range(3)]


def test_06_one_after_another_and_too_much(make_engine: MakeEngine) -> None:
    cache = make_engine().target.new_cache()
    cache.truncate(0)
    target = make_engine().target
    cache = target.new_cache()
    target.forward([Segment.chain(cache, WRITTEN)])
    cache.keep(range(5))
    for left in (5, 4, 1, 0):
        cache.truncate(left)
        assert cache.length == left
    for wrong in (1, -1):
        with pytest.raises(ValueError):
            cache.truncate(wrong)
        assert cache.length == 0


@pytest.mark.parametrize("mode", ["none", "copyspec", "copy", "auto"])
def test_17_up_to_the_end_of_the_context(mode: str, make_engine: MakeEngine) -> None:
    engine = make_engine(max_length=64, eos=())
    spec = Speculation(draft=mode, max_nodes=8, block=8)
    for length, new in [(40, 24), (60, 4), (62, 2), (63, 1), (64, 0)]:
        prompt = ([1, 2, 3, 4, 5] * 13)[:length]
        done = engine.generate(prompt, SamplingParams(max_tokens=100), speculation=spec)
        assert len(done.token_ids) == new
        assert done.finish_reason == "length"
        assert done.token_ids == tuple(naive(engine.target, prompt, new))
        assert engine.generate(prompt, speculation=spec).token_ids == done.token_ids  # no max_tokens: the context end
    with pytest.raises(ValueError, match="65 tokens but the context holds 64"):
        engine.generate([1] * 65, SamplingParams(max_tokens=100), speculation=spec)
    assert len(engine.generate([1, 2, 3], SamplingParams(max_tokens=5), speculation=spec).token_ids) == 5
