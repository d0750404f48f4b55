"""What a client reads of a stream, and what several of them make together."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from typing import Any

import pytest
from bench.piece_tokenizer import PieceTokenizer
from scripted import ByteTokenizer

from exactspec.bench.case import Case
from exactspec.bench.peers.error import PeerError
from exactspec.bench.serving.cases import copy_cases, plain_cases
from exactspec.bench.serving.client import Reply, timed_events
from exactspec.bench.serving.dialects import LlamaServer, Ours
from exactspec.bench.serving.load import Load, load
from exactspec.params import SamplingParams


def case(name: str = "a", **params: Any) -> Case:
    return Case(id=name, ids=(1, 2), params=SamplingParams(max_tokens=4, ignore_eos=True, **params))


def reply(sent: float, *arrivals: tuple[float, int], notes: dict[str, Any] | None = None) -> Reply:
    return Reply(token_ids=tuple(range(sum(n for _, n in arrivals))), sent=sent, arrivals=arrivals, notes=notes or {})


def test_an_event_has_come_when_its_end_has() -> None:
    parts = [(1.0, b'data: {"a": 1}\n\nda'), (2.0, b'ta: {"a": 2}\r\n'), (3.0, b"\r\n"), (4.0, b": keep alive\n\n")]
    parts += [(5.0, b'error: {"error": {"message": "x"}}\n\ndata: [DONE]\n\n'), (6.0, b'data: {"never": "ended"}')]
    assert list(timed_events(parts)) == [(1.0, {"a": 1}), (3.0, {"a": 2}), (5.0, {"error": {"message": "x"}})]


def test_times_of_a_reply() -> None:
    one = reply(10.0, (10.5, 3), (11.0, 1), (13.0, 4))
    assert one.first_token_s == 0.5
    assert one.gaps_s == [0.5, 2.0]
    assert one.s_per_token == pytest.approx(2.5 / 5)  # the first event's three tokens are no decoding
    assert reply(0.0, (1.0, 2)).s_per_token == 0
    with pytest.raises(ValueError, match="without tokens"):
        reply(0.0).first_token_s  # noqa: B018


def test_dialects() -> None:
    body = Ours("copy").body(case(temperature=0.5, seed=3))
    assert body["prompt"] == [1, 2]
    assert (body["max_tokens"], body["temperature"], body["seed"], body["ignore_eos"]) == (4, 0.5, 3, True)
    assert body["speculative"] == {"draft": "copy"}
    assert "speculative" not in Ours().body(case())
    event = {"choices": [{"text": "x", "token_ids": [5, 6]}, {"finish_reason": "stop"}]}
    assert Ours().ids(event) == [5, 6]
    assert Ours().notes(event) == Ours().notes({**event, "exactspec": {"tokens": []}}) == {}
    assert Ours().notes({**event, "exactspec": {"identity": "i", "tau": 2.0}})["tau"] == 2.0
    theirs = LlamaServer().body(case())
    assert (theirs["prompt"], theirs["n_predict"], theirs["ignore_eos"]) == ([1, 2], 4, True)
    assert "cache_prompt" not in theirs  # as it comes
    with pytest.raises(ValueError, match="greedy"):
        LlamaServer().body(case(temperature=1.0))
    for dialect in (Ours(), LlamaServer()):
        with pytest.raises(PeerError, match="out of slots"):
            dialect.ids({"error": {"message": "out of slots"}})


def test_clients_take_cases_in_order_and_all_at_once() -> None:
    running, most, lock = 0, 0, threading.Lock()

    def ask(one: Case) -> Reply:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        time.sleep(0.05)
        with lock:
            running -= 1
        return reply(0.0, (1.0, int(one.id)))

    cases = [case(str(i)) for i in range(1, 8)]
    done = load(ask, cases, clients=3)
    assert most == 3
    assert [len(r.token_ids) for r in done.replies] == list(range(1, 8))
    assert sorted(i for asked in done.clients for i in asked) == list(range(7))
    assert [asked[0] for asked in done.clients] == [0, 1, 2]
    for few in (0, 8):
        with pytest.raises(ValueError, match="at least as many"):
            load(ask, cases, clients=few)


def test_the_first_error_of_a_client_is_raised() -> None:
    asked = []

    def ask(one: Case) -> Reply:
        asked.append(one.id)
        if one.id == "1":
            raise PeerError("gone")
        time.sleep(0.05)
        return reply(0.0, (1.0, 1))

    with pytest.raises(PeerError, match="gone"):
        load(ask, [case(str(i)) for i in range(20)], clients=2)
    assert len(asked) < 5
    with pytest.raises(ValueError, match="a: an answer without tokens"):
        load(lambda one: reply(0.0), [case()], clients=1)


def test_rates_of_a_load() -> None:
    # Two clients; the second one's answers are over at 6, the first token of all was sent for at 0.
    replies = (
        reply(0.0, (1.0, 2), (4.0, 10), (8.0, 4), notes={"num_steps": 3}),
        reply(1.0, (2.0, 1), (3.0, 1), notes={"num_steps": 2}),
        reply(3.0, (5.0, 4), (6.0, 2), notes={"num_steps": 3}),
    )
    done = Load(replies, ((0,), (1, 2)))
    assert (done.tokens, done.wall_s) == (24, 8.0)
    assert done.together_tokens_per_s == pytest.approx((10 + 1 + 4 + 2) / (6 - 2))
    found = done.measurement({"more": 1})
    assert (len(found.token_ids), found.decode_s, found.prefill_s) == (24, 8.0, 1.0)
    assert found.extra["first_token_max_s"] == 2.0
    assert (found.extra["gap_p50_s"], found.extra["more"], found.extra["clients"]) == (2.0, 1, 2)
    assert found.extra["tau"] == pytest.approx(24 / 8)
    after = Load((replies[0], replace(replies[1], arrivals=((9.0, 2),))), ((0,), (1,)))
    assert after.together_tokens_per_s == 0


def test_cases_differ_and_have_lengths_of_their_own() -> None:
    plain = plain_cases(ByteTokenizer(), 16, max_tokens=20)
    assert len({c.ids for c in plain}) == 16
    assert all(c.params.ignore_eos and c.params.max_tokens == 20 for c in plain)
    with pytest.raises(ValueError, match="16 plain prompts, not 17"):
        plain_cases(ByteTokenizer(), 17, max_tokens=20)
    copying = copy_cases(PieceTokenizer(), 6, sizes=[512, 1024], max_tokens=300)
    assert [c.id for c in copying] == [
        "code_edit-512-0", "json_reemit-512-0", "code_edit-1024-0", "json_reemit-1024-0",
        "code_edit-512-1", "json_reemit-512-1",
    ]  # fmt: skip
    assert all(c.params.ignore_eos and 64 <= (c.params.max_tokens or 0) <= 300 for c in copying)
