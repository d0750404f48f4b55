"""The suffix index against a search that looks at everything."""

from __future__ import annotations

import random
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from exactspec.drafters.suffix_index import MAX_MATCH, SuffixIndex


def search(text: list[int], suffix: list[int] | None = None) -> list[tuple[int, int]]:
    """Every earlier place, newest first; those kept whose match is longer than all newer ones'; longest first."""
    end = text if suffix is None else suffix
    found: list[tuple[int, int]] = []
    for position in range(len(text) - 1, 0, -1):
        length = 0
        while length < min(position, len(end), MAX_MATCH) and text[position - 1 - length] == end[len(end) - 1 - length]:
            length += 1
        if length > (found[-1][1] if found else 0):
            found.append((position, length))
    return found[::-1]


class Growing(RuleBasedStateMachine):
    """Random appends, truncations and forks, over alphabets small enough for long and many matches."""

    @initialize(alphabet=st.integers(1, 4))
    def start(self, alphabet: int) -> None:
        self.alphabet = alphabet
        self.text: list[int] = []
        self.index = SuffixIndex()
        self.others: list[tuple[SuffixIndex, list[int]]] = []

    @rule(tokens=st.lists(st.integers(0, 3), max_size=12))
    def append(self, tokens: list[int]) -> None:
        new = [t % self.alphabet for t in tokens]
        self.index.append(new)
        self.text += new

    @rule(start=st.floats(0, 1), n=st.integers(1, 3 * MAX_MATCH))
    def repeat(self, start: float, n: int) -> None:
        at = int(start * len(self.text))
        new = self.text[at : at + n]
        self.index.append(np.array(new, dtype=np.int64))
        self.text += new

    @rule(n=st.integers(0, 40))
    def take_back(self, n: int) -> None:
        keep = max(len(self.text) - n, 0)
        self.index.truncate(keep)
        del self.text[keep:]

    @rule(share=st.floats(0, 1))
    def take_back_far(self, share: float) -> None:
        keep = int(share * len(self.text))
        self.index.truncate(keep)
        del self.text[keep:]

    @rule(change=st.booleans())
    def fork(self, change: bool) -> None:
        twin = self.index.fork()
        if change:  # go on with the copy; the one left behind must not notice
            self.index, twin = twin, self.index
        self.others.append((twin, self.text[:]))

    @invariant()
    def finds_what_a_full_search_finds(self) -> None:
        assert len(self.index) == len(self.text)
        assert self.index.match() == search(self.text)
        for other, text in self.others[-2:]:
            assert other.match() == search(text)


Growing.TestCase.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
TestGrowing = Growing.TestCase


@settings(deadline=None, max_examples=25)
@given(st.integers(1, 5), st.integers(256, 700), st.randoms(use_true_random=False))
def test_filled_at_once_or_one_by_one_is_the_same(alphabet: int, n: int, rng: random.Random) -> None:
    text = [rng.randrange(alphabet) for _ in range(n)]
    text[n // 2 : n // 2 + 150] = text[:150]
    at_once, slowly = SuffixIndex(text), SuffixIndex()
    for token in text:
        slowly.append([token])
    for _ in range(12):
        assert at_once.match() == slowly.match() == search(text)
        keep = rng.randrange(max(len(text) - 60, 0), len(text) + 1)
        at_once.truncate(keep)
        slowly.truncate(keep)
        del text[keep:]
        new = [rng.randrange(alphabet) for _ in range(5)]
        at_once.append(new)
        slowly.append(new)
        text += new


@settings(deadline=None, max_examples=100)
@given(st.lists(st.integers(0, 2), max_size=60), st.lists(st.integers(0, 2), max_size=20))
def test_the_end_of_another_text(text: list[int], suffix: list[int]) -> None:
    assert SuffixIndex(text).match(SuffixIndex(suffix)) == search(text, suffix)


def test_matches_are_told_apart_up_to_the_limit() -> None:
    run = list(range(MAX_MATCH + 6))
    index = SuffixIndex([*run, 900, *run, 901, *run])
    first, second = len(run), 2 * len(run) + 1
    assert index.tokens[first] == 900
    assert index.tokens[second] == 901
    assert index.match() == [(second, MAX_MATCH)]  # both are longer than the limit: the newer one
    index.truncate(second + 1)
    assert index.match() == []
    index.truncate(second)
    assert index.match() == [(first, MAX_MATCH)]


def test_bad_input_changes_nothing() -> None:
    index = SuffixIndex([1, 2, 1])
    with pytest.raises(OverflowError):
        index.append([5, 2**31])
    with pytest.raises(ValueError, match="cannot truncate 3 tokens to 4"):
        index.truncate(4)
    with pytest.raises(ValueError, match="-1"):
        index.truncate(-1)
    assert (len(index), index.match()) == (3, [(1, 1)])
    assert SuffixIndex().match() == []
    assert SuffixIndex([7]).match() == []


def test_memory_of_a_long_history() -> None:
    rng = np.random.default_rng(0)
    index = SuffixIndex(rng.integers(0, 30_000, 128 * 1024))
    assert index.nbytes < 8e6


def _texts(n: int) -> dict[str, list[int]]:
    rng = random.Random(0)
    part = [rng.randrange(2000) for _ in range(max(n // 6, 1))]
    edited: list[int] = []
    while len(edited) < n:
        edited += [t if rng.random() > 0.03 else rng.randrange(2000) for t in part]
    fib, other = [1], [1, 2]
    while len(other) < n:
        fib, other = other, other + fib
    table = [token for i in range(n // 4 + 1) for token in (5000 + i, 7, 90_000 - i, 7)]
    return {
        "same": [3] * n,
        "period 2": [3, 4] * (n // 2),
        "edited": edited[:n],
        "fibonacci": other[:n],
        "table": table[:n],
    }


@pytest.mark.parametrize("kind", ["same", "period 2", "edited", "fibonacci", "table"])
def test_work_per_token_does_not_grow_with_the_history(kind: str) -> None:
    """Best of several runs, 1k against 32k; a scan of the history, or of one run of it, would cost 32 times more."""

    def seconds(n: int) -> float:
        text = _texts(n)[kind]
        best = float("inf")
        for _ in range(5):
            index = SuffixIndex(text)
            started = time.process_time()
            for token in text[:40]:
                index.match()
                index.append([token])
            index.append([999_999])  # unlike all before
            index.truncate(n)
            best = min(best, time.process_time() - started)
        return best

    assert seconds(32_000) < 5 * seconds(1000)
