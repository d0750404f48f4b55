"""Arms by name."""

from __future__ import annotations

import pytest

from exactspec.bench.arms import PEER_ARMS, parse_arm, parse_arms
from exactspec.params import Speculation


def test_names() -> None:
    assert parse_arm("plain") == parse_arm("none")
    assert parse_arm("none").speculation == Speculation(draft="none")
    arm = parse_arm("copyspec@gamma=5@block=8")
    assert arm.name == "copyspec@gamma=5@block=8"
    assert arm.speculation == Speculation(draft="copyspec", gamma=5, block=8)
    assert parse_arm("model:some/wh@re@draft_length=5").speculation == Speculation(
        draft="model:some/wh@re", draft_length=5
    )
    for word in PEER_ARMS:
        assert parse_arm(word).name == word
        assert parse_arm(word).peer
    modes = [parse_arm(word) for word in ("llama.cpp", "llama.cpp:lookup-2", "llama.cpp:mod-07", "llama.cpp:map-k4v-8")]
    assert [(arm.rule, arm.most) for arm in modes] == [("", 0), ("lookup", 2), ("mod", 7), ("map-k4v", 8)]
    assert [arm.name for arm in parse_arms("plain, copy,llama.cpp")] == ["none", "copy", "llama.cpp"]


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("fast", "draft must be one of"),
        ("copy@speed=3", "'speed=3' is no option"),
        ("copy@max_nodes=0", "max_nodes must be an integer"),
        ("copy@max_nodes=", "max_nodes must be an integer"),
        ("llama.cpp:ngram", "is no arm"),
        ("llama.cpp:lookup-0", "is no arm"),
        ("llama.cpp:lookup-x", "is no arm"),
        ("llama.cpp:simple-65", "1 to 64 tokens"),
    ],
)
def test_mistakes(word: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_arm(word)


def test_an_arm_is_named_once() -> None:
    with pytest.raises(ValueError, match="twice"):
        parse_arms("plain,copy,none")
