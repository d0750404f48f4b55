"""The peer's process: its protocol, its end, its failures; and llama.cpp itself where it is installed."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path

import pytest

from exactspec.bench.peers.llama_cpp import LlamaCppPeer, PeerError

FAKE = Path(__file__).with_name("fake_peer.py")


def _peer(model: str) -> LlamaCppPeer:
    return LlamaCppPeer(Path(model), threads=2, context=64, child=FAKE)


def test_requests_and_end() -> None:
    with _peer("good") as peer:
        assert peer.info == {"version": "fake", "argv": ["2", "64"]}
        for start in (5, 50):
            done = peer.decode([1, 2, start], 4)
            assert done.token_ids == tuple(range(start + 1, start + 5))
            assert (done.prefill_s, done.decode_s, done.s_per_token) == (0.25, 2.0, 0.5)
        with pytest.raises(ValueError, match="at least 2 ids"):
            peer.decode([1], 4)
    with pytest.raises((PeerError, ValueError)):
        peer.decode([1, 2], 1)
    peer.close()


def test_rows_behind_contexts_and_prompts() -> None:
    with _peer("good") as peer:
        peer.fill(range(7), rows=4)
        assert peer.time_rows(7, (1, 4), [5, 6, 7, 8]) == (0.5, 2.0)
        assert peer.prefill(range(8), batch=4) == 2.0
        with pytest.raises(PeerError, match="no such context"):
            peer.time_rows(8, (1,), [5])
        for counts in ((1, 5), (0, 1)):
            with pytest.raises(ValueError, match="do not make rows"):
                peer.time_rows(7, counts, [5, 6, 7, 8])
    with _peer("short") as peer, pytest.raises(PeerError, match="filled 6 of 7"):
        peer.fill(range(7), rows=1)
    with _peer("leaks") as peer:
        peer.fill(range(7), rows=1)
        with pytest.raises(PeerError, match="7 tokens became 8"):
            peer.time_rows(7, (1,), [5])


def test_replaying_our_answer() -> None:
    with _peer("good") as peer:
        plain = peer.replay([1, 2, 3], [7, 8, 9, 7])
        assert plain.token_ids == (7, 8, 9, 7)
        assert (plain.prefill_s, plain.decode_s, plain.s_per_token) == (0.25, 2.0, 0.5)
        assert (plain.extra["tau"], plain.extra["choices_agree"]) == (1.0, 0.25)
        drafted = peer.replay([1, 2, 3], [7, 8, 9, 7], rule="lookup", most=10, held=True)
        assert (drafted.prefill_s, drafted.extra["tau"], drafted.extra["num_accepted_tokens"]) == (0.0, 4.0, 3)
        assert peer.replay([1, 2, 3], []).token_ids == ()
        with pytest.raises(ValueError, match="at least 2 ids"):
            peer.replay([1], [2])


def test_rejected_rows_that_stay_are_an_error() -> None:
    with _peer("leaks") as peer, pytest.raises(PeerError, match="holds 7 of 6 tokens"):
        peer.replay([1, 2, 3], [7, 8, 9, 7], rule="lookup", most=2)


def test_failures_are_one_line() -> None:
    with pytest.raises(PeerError, match="install the peers"):
        _peer("missing")
    with _peer("dies") as peer, pytest.raises(PeerError, match="exit code 3"):
        peer.decode([1, 2], 1)


needs_llama_cpp = pytest.mark.skipif(
    importlib.util.find_spec("llama_cpp") is None, reason="llama-cpp-python is not installed (make bench)"
)


@pytest.mark.model
@needs_llama_cpp
def test_llama_cpp_times_rows_and_keeps_the_context(named_model: Callable[[str], Path]) -> None:
    ids = list(range(1000, 1040))
    with LlamaCppPeer(named_model("smollm2-135m"), threads=1) as peer:
        peer.fill(ids[:20], rows=8)
        peer.fill(ids[:32], rows=8)
        for context in (20, 32, 20):
            times = peer.time_rows(context, (1, 8, 1), ids[:8])  # raises unless the rows came out again
            assert len(times) == 3
            assert min(times) > 0
        with pytest.raises(PeerError, match=r"llama\.cpp failed"):
            peer.time_rows(21, (1,), ids[:8])
        assert min(peer.prefill(ids, batch=16), peer.prefill(ids[:5], batch=16), peer.prefill(ids, batch=64)) > 0
        with pytest.raises(PeerError, match="do not fit a context of 0"):
            peer.decode(ids, 1)


@pytest.mark.model
@needs_llama_cpp
def test_llama_cpp_repeats_itself(named_model: Callable[[str], Path]) -> None:
    ids = list(range(1000, 1032))
    with LlamaCppPeer(named_model("smollm2-135m"), threads=1, context=64) as peer:
        first, second = peer.decode(ids, 6), peer.decode(ids, 6)
        assert first.token_ids == second.token_ids
        assert len(first.token_ids) == 6
        assert min(first.prefill_s, first.decode_s) > 0
        longer = peer.decode([*ids, *first.token_ids[:3]], 3)
        assert longer.token_ids == first.token_ids[3:]  # steps go on from the last id, nothing is skipped
        with pytest.raises(PeerError, match="do not fit"):
            peer.decode(ids * 2, 6)
    with pytest.raises(PeerError, match="cannot load nothing"):
        LlamaCppPeer(Path("nothing.gguf"), threads=1, context=64)


@pytest.mark.model
@needs_llama_cpp
def test_llama_cpp_says_what_it_is_told(named_model: Callable[[str], Path]) -> None:
    ids, around = list(range(1000, 1032)), [5, 6, 7, 8, 9, 10, 11, 12] * 5
    with LlamaCppPeer(named_model("smollm2-135m"), threads=1, context=80) as peer:
        own = peer.decode(ids, 6).token_ids
        plain = peer.replay(ids, own)
        assert (plain.extra["choices_agree"], plain.extra["num_steps"]) == (1.0, 6)  # its own text: all its choices
        for held in (False, True):
            drafted = peer.replay(ids, own, rule="lookup", most=10, held=held)
            assert drafted.extra["choices_agree"] == 1.0  # rows behind accepted and rejected drafts see the same text
            assert 0 < drafted.extra["num_steps"] <= 6
        # Worked out by hand. lookup: nine steps until a token has come again, then drafts of 8, 10 and 10. simple: when
        # 12 tokens have come again there are 20, and the last place is 8 back. mod: 24 and 8, then all that is left.
        for rule, most, steps in (("lookup", 10, 9 + 3), ("simple", 48, 20 + 3), ("mod", 64, 32 + 1)):
            other = peer.replay(ids, around, rule=rule, most=most)
            assert other.token_ids == tuple(around)
            assert other.extra["num_steps"] == steps, rule
            assert other.extra["num_accepted_tokens"] == len(around) - steps
        # Five steps, then 6 7 8 is drafted where 6 7 9 comes, one step, and 6 7 before the last token.
        twisted = peer.replay(ids, [5, 6, 7, 8, 5, 6, 7, 9, 5, 6, 7, 10], rule="lookup", most=3)
        counts = [twisted.extra[key] for key in ("num_steps", "num_draft_tokens", "num_accepted_tokens")]
        assert counts == [8, 5, 4]
