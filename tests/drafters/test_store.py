"""Texts shared between requests: only under one name, only where asked for, and never more than may be."""

from __future__ import annotations

import random
import time
import tracemalloc

import numpy as np
import pytest
from scripted import IdTokenizer, script_target

from exactspec.bench.propose import NoCache, agreeing_path, rows_of_nothing
from exactspec.drafters import CopyDrafter
from exactspec.drafters.base import Context, DraftBudget, Verified
from exactspec.drafters.store import TEXT_BYTES, TOKEN_BYTES, Stores, TextStore
from exactspec.engine import Engine
from exactspec.params import SamplingParams, Speculation

WIDE = DraftBudget(48, 1000)


def text(seed: int, n: int = 100) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(10_000) for _ in range(n)]


def begin(drafter: CopyDrafter, tokens: list[int]):  # type: ignore[no-untyped-def]
    return drafter.begin(Context(np.array(tokens), np.empty(0, dtype=np.int64), None))  # type: ignore[arg-type]


def leave(drafter: CopyDrafter, tokens: list[int]) -> None:
    drafter.close(begin(drafter, tokens))


def holds(store: TextStore, tokens: list[int]) -> bool:
    whole = store.index.tokens.tolist()
    return any(whole[i : i + len(tokens)] == tokens for i in range(len(whole)))


def test_a_later_request_copies_what_an_earlier_one_left() -> None:
    drafter = CopyDrafter(store=TextStore(100_000))
    leave(drafter, text(1))
    tree = drafter.propose(begin(drafter, [5, 6, *text(1)[:10]]), WIDE)
    assert tree.sources == ("store",)
    assert tree.tokens.tolist()[:5] == text(1)[10:15]
    assert set(tree.origin.tolist()) == {-1}  # where it lies in another's text is nobody's business


def test_a_request_that_runs_sees_what_is_added_meanwhile() -> None:
    drafter = CopyDrafter(store=TextStore(100_000))
    running = begin(drafter, text(2)[:10])
    assert len(drafter.propose(running, WIDE)) == 0
    leave(drafter, text(2))
    assert drafter.propose(running, WIDE).tokens.tolist()[:5] == text(2)[10:15]


def test_nothing_is_shared_unless_named_and_names_are_apart() -> None:
    stores = Stores()
    a, b = (CopyDrafter(store=stores.get(name, max_bytes=100_000)) for name in ("a", "b"))
    leave(a, text(1))
    assert len(b.propose(begin(b, text(1)[:10]), WIDE)) == 0
    assert len(CopyDrafter().propose(begin(CopyDrafter(), text(1)[:10]), WIDE)) == 0
    assert len(a.propose(begin(a, text(1)[:10]), WIDE)) > 0
    assert stores.get("a", max_bytes=5) is stores.get("a", max_bytes=7)


def test_bytes_are_bounded_and_the_least_used_goes_first() -> None:
    most = TOKEN_BYTES * 420 + TEXT_BYTES * 5
    store = TextStore(most)
    drafter = CopyDrafter(store=store)
    for seed in range(4):
        leave(drafter, text(seed))
    assert all(holds(store, text(seed)) for seed in range(4))
    state = begin(drafter, text(0)[:20])  # copies from the oldest, which makes it the newest
    tree = drafter.propose(state, WIDE)
    emitted = np.array(text(0)[20:30])
    path = np.array(agreeing_path(tree, emitted), dtype=np.int64)
    drafter.commit(state, Verified(tree, path, emitted[: len(path) + 1], rows_of_nothing(len(tree) + 1), NoCache(1)))
    drafter.close(state)
    leave(drafter, text(9))
    assert store.nbytes <= most
    assert holds(store, text(9))
    assert holds(store, text(0))
    assert not holds(store, text(1))


def test_texts_are_kept_once_and_long_ones_by_their_end() -> None:
    most = TOKEN_BYTES * 150 + TEXT_BYTES
    store = TextStore(most)
    for _ in range(3):
        store.add(np.array(text(1), dtype=np.int32))
    assert len(store.index) == 100
    store.add(np.array(text(2, 400), dtype=np.int32))
    assert store.nbytes <= most
    assert holds(store, text(2, 400)[-150:])
    with pytest.raises(ValueError, match="at least one token"):
        TextStore(3)


@pytest.mark.parametrize("longest", [3, 400])
def test_the_bytes_are_those_that_are_held(longest: int) -> None:
    """Also of thousands of texts of a few tokens, each of which is an object or two beside its tokens."""
    most, rng = 400_000, random.Random(0)
    tracemalloc.start()
    try:
        store = TextStore(most)
        before = tracemalloc.get_traced_memory()[0]
        held = []
        for number in range(4000 if longest < 10 else 100):
            store.add(np.array([number, *text(number, rng.randrange(1, longest))], dtype=np.int32))
            held.append(tracemalloc.get_traced_memory()[0] - before)
    finally:
        tracemalloc.stop()
    assert store.nbytes <= most
    assert max(held) < most + 2 * 64_000  # the index's table, of which there are two while one is being made
    assert max(held) > most / 3  # and it is not counted far too high


def test_adding_and_copying_do_not_slow_down_with_the_number_of_texts() -> None:
    """Texts of a few tokens: 500 of them against 16,000. Looking at all would take 32 times as long."""
    store = TextStore(2**30)
    drafter = CopyDrafter(store=store)
    took: list[float] = []
    added = 0
    for n in (500, 16_000):
        while added < n:
            store.add(np.array([added, added + 1, added % 7], dtype=np.int32))
            added += 1
        rounds = []
        for _ in range(5):
            begun = time.process_time()
            for i in range(100):
                store.add(np.array([i, i + 1, i % 7], dtype=np.int32))
                store.touch(store.index, [3 * i])
            rounds.append(time.process_time() - begun)
        took.append(min(rounds))
    assert len(store.index) == 3 * added
    assert took[1] < 6 * took[0]
    assert len(drafter.propose(begin(drafter, [15_000, 15_001, 15_000 % 7]), WIDE)) > 0


def test_an_engine_shares_by_name_and_its_tokens_stay_the_same() -> None:
    script = [t % 290 for t in text(3, 60)]
    prompt = [1, 2, 3]
    engine = Engine(script_target(len(prompt), script), IdTokenizer(), draft="copy")
    params = SamplingParams(max_tokens=60)
    shared, other = Speculation(draft="copy", store="team"), Speculation(draft="copy", store="else")
    first = engine.generate(prompt, params, speculation=shared)
    again = engine.generate(prompt, params, speculation=shared)
    apart = engine.generate(prompt, params, speculation=other)
    alone = engine.generate(prompt, params)
    assert again.token_ids == first.token_ids == apart.token_ids == alone.token_ids == tuple(script)
    assert again.metrics.num_steps < first.metrics.num_steps / 3
    assert apart.metrics.num_steps == alone.metrics.num_steps == first.metrics.num_steps
    assert again.metrics.accepted_by_source.keys() <= {"store", "copy"}


@pytest.mark.parametrize(("field", "value"), [("store", 3), ("store_bytes", 10), ("store_bytes", 2**40)])
def test_bad_options_are_named(field: str, value: object) -> None:
    with pytest.raises(ValueError, match=field):
        Speculation(**{field: value})  # type: ignore[arg-type]
