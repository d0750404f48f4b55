"""The n-gram rules of llama.cpp's server, as the peer's process has them, against the rules spelled out."""

from __future__ import annotations

import importlib.util
import random
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import exactspec.bench.peers.llama_cpp as peer
from exactspec.bench.arms import PEER_ARMS, parse_arm


@pytest.fixture(scope="module")
def child() -> Any:
    """The child is a program: loaded by its file, as it runs."""
    path = Path(peer.__file__).with_name("llama_cpp_child.py")
    spec = importlib.util.spec_from_file_location("llama_cpp_child", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def edited(seed: int, n: int = 160) -> list[int]:
    rng = random.Random(seed)
    part = [rng.randrange(40) for _ in range(n // 4)]
    return [t if rng.random() > 0.03 else rng.randrange(40) for t in part * 4]


def drafts(rule: Any, text: list[int], start: int) -> list[list[int]]:
    """What it drafts at every length of the text from `start` on."""
    history = np.array(text, dtype=np.intc)
    return [[int(token) for token in rule(history[:n])] for n in range(start, len(text) + 1)]


def test_every_arm_has_its_rule(child: Any) -> None:
    assert {parse_arm(arm).rule for arm in PEER_ARMS} == {"", *child.RULES}


@pytest.mark.parametrize("seed", range(3))
def test_simple_and_map_k(child: Any, seed: int) -> None:
    text, most = edited(seed), 9

    def expected(n: int, behind: int) -> list[int]:
        ends = [e for e in range(12, n - behind + 1) if text[e - 12 : e] == text[n - 12 : n]]
        return text[ends[-1] : min(n, ends[-1] + most)] if ends else []

    lengths = range(1, len(text) + 1)
    assert drafts(child.Simple(most), text, 1) == [expected(n, 1) for n in lengths]
    assert drafts(child.MapKey(most), text, 1) == [expected(n, most) for n in lengths]
    assert sum(map(bool, drafts(child.MapKey(most), text, 1))) > 20


@pytest.mark.parametrize("seed", range(3))
def test_mod(child: Any, seed: int) -> None:
    text = edited(seed)
    for n, draft in zip(range(1, len(text) + 1), drafts(child.Mod(9), text, 1), strict=True):
        window, expected = text[:n][-24:], list[int]()
        while len(expected) < 9:
            follows = [text[e] for e in range(24, n) if text[e - 24 : e] == window]
            if len(window) < 24 or not follows:
                break
            expected.append(follows[-1])
            window = [*window[1:], follows[-1]]
        assert draft == expected


@pytest.mark.parametrize("seed", range(3))
def test_cache(child: Any, seed: int) -> None:
    text = [t % 7 for t in edited(seed)]
    for n, draft in zip(range(1, len(text) + 1), drafts(child.Cache(5), text, 1), strict=True):
        grown = text[:n]
        while len(grown) < n + 5:
            for length in range(min(4, len(grown)), 0, -1):
                follows = Counter(text[e] for e in range(length, n) if text[e - length : e] == grown[-length:])
                total = sum(follows.values())
                if total < (2, 2, 1, 1)[length - 1]:
                    continue
                token, times = follows.most_common(1)[0]
                if times * 100 >= (66, 50, 50, 50)[length - 1] * total:
                    break
            else:
                break
            grown.append(token)
        assert draft == grown[n:]


KEY = list(range(100, 112))


def test_map_k4v_drafts_what_came_clearly_most_often(child: Any) -> None:
    often, seldom = [1, 2, 3, 4], [5, 6, 7, 8]

    def after(*values: list[int]) -> list[int]:
        text = [token for i, value in enumerate(values) for token in (*KEY, *value, 50 + i)]
        return drafts(child.MapValues(4), [*text, *KEY], len(text) + len(KEY))[0]

    assert after(often) == often
    assert after(often, seldom) == []
    assert after(often, often, seldom) == []
    assert after(often, often, seldom, often) == often
    assert after(*([i] * 4 for i in range(20, 24)), *[often] * 20) == []  # the fifth has no place


def test_map_k4v_drafts_as_much_as_was_accepted(child: Any) -> None:
    rule, text = child.MapValues(4), [*KEY, 1, 2, 3, 4, 99, *KEY]
    assert drafts(rule, text, len(text)) == [[1, 2, 3, 4]]
    text += [1, 2, 77]  # two of them came
    assert drafts(rule, text, len(text)) == [[]]
    text += [9, *KEY, 1, 2, 3, 4, *KEY, 1, 2, 3, 4, *KEY]
    assert drafts(rule, text, len(text)) == [[1, 2]]
