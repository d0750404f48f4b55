"""Conversations that come back as text."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from scheduling.harness import Client, run
from scripted import CLOSE, EOS, ByteTokenizer, ListTarget

from exactspec.engine import Engine
from exactspec.params import SamplingParams
from exactspec.scheduling import Scheduler
from exactspec.scheduling.replies import Replies

TOKENIZER = ByteTokenizer(merges=[b"ab", b"cd", b"hello"], eos=[CLOSE])


def says(*replies: bytes) -> ListTarget:
    """Answers turn k with reply k, byte by byte, then ends the turn."""
    opening = TOKENIZER.encode("assistant\n")

    def logits(path: list[int]) -> Any:
        row = np.zeros(300, dtype=np.float32)
        starts = [i + len(opening) for i in range(len(path)) if path[i : i + len(opening)] == opening]
        reply = [*replies[len(starts) - 1], CLOSE]
        at = len(path) - starts[-1]
        row[reply[at] if at < len(reply) else EOS] = 9.0
        return row

    return ListTarget(logits, vocab_size=300)


def meaning(ids: Sequence[int]) -> list[bytes | int]:
    out: list[bytes | int] = [b""]
    for token in ids:
        piece = TOKENIZER.token_bytes(token)
        if piece:
            out[-1] += piece  # type: ignore[operator]
        else:
            out += [token, b""]
    return out


REPLIES = [b"abcd hello", b"cdcd", b"x"]


def conversations(scheduler: Scheduler, names: list[str]) -> dict[str, list[Client]]:
    """Turn by turn, several conversations in each other's way."""
    messages: dict[str, list[dict[str, str]]] = {name: [] for name in names}
    answers: dict[str, list[Client]] = {name: [] for name in names}
    for turn in range(3):
        for name in names:
            messages[name].append({"role": "user", "content": f"{name} {turn}"})
            answers[name].append(Client().submit(scheduler, list(messages[name])))
        run(scheduler)
        for name in names:
            messages[name].append({"role": "assistant", "content": answers[name][-1].text})
    return answers


def test_generated_ids_are_found_again_where_asked_for() -> None:
    scheduler = Scheduler(Engine(says(*REPLIES), TOKENIZER), thread=False, keep_replies=True)
    for clients in conversations(scheduler, ["hi", "you"]).values():
        assert [c.text.encode() for c in clients] == REPLIES
        done = [c.completion.metrics for c in clients if c.completion is not None]
        for before, after in pairwise(done):
            assert after.cached_tokens == before.prompt_tokens + before.completion_tokens - 1


def test_otherwise_a_reply_depends_on_its_request_alone() -> None:
    scheduler = Scheduler(Engine(says(*REPLIES), TOKENIZER), thread=False)
    (clients,) = conversations(scheduler, ["hi"]).values()
    messages: list[dict[str, str]] = []
    for turn, client in enumerate(clients):
        messages.append({"role": "user", "content": f"hi {turn}"})
        assert client.completion is not None
        # The template spells "abcd hello" in four ids: those are used, whatever was generated before.
        assert client.completion.metrics.prompt_tokens == len(TOKENIZER.chat(messages))
        fresh = Engine(says(*REPLIES), TOKENIZER, draft="none").generate(messages)
        assert client.ids == fresh.token_ids
        messages.append({"role": "assistant", "content": client.text})
        # The prompt before the reply is found nevertheless.
        if turn:
            assert client.completion.metrics.cached_tokens >= clients[turn - 1].completion.metrics.prompt_tokens  # type: ignore[union-attr]


def test_ids_from_a_template_count_as_messages_only_if_said_so() -> None:
    scheduler = Scheduler(Engine(says(*REPLIES), TOKENIZER), thread=False, keep_replies=True)
    messages = [{"role": "user", "content": "hi"}]
    first = Client().submit(scheduler, TOKENIZER.chat(messages), templated=True)
    run(scheduler)
    messages += [{"role": "assistant", "content": first.text}, {"role": "user", "content": "more"}]
    ids = TOKENIZER.chat(messages)
    for templated in (True, False):
        client = Client().submit(scheduler, ids, SamplingParams(max_tokens=1), templated=templated)
        run(scheduler)
        assert client.completion is not None
        assert (client.completion.metrics.prompt_tokens > len(ids)) == templated


def chat(*contents: str) -> list[int]:
    roles = ["user", "assistant"] * len(contents)
    return TOKENIZER.chat([{"role": r, "content": c} for r, c in zip(roles, contents, strict=False)])


def test_a_splice_changes_the_tokenisation_and_nothing_else() -> None:
    replies = Replies(TOKENIZER)
    prompt = chat("one")
    replies.record(prompt, prompt, [*b"abcd", CLOSE], "abcd")
    turn = chat("one", "abcd", "two")
    used = replies.splice(turn)
    assert used != turn
    assert meaning(used) == meaning(turn)
    assert used[: len(prompt) + 5] == [*prompt, *b"abcd", CLOSE]
    # An edited reply, another conversation, and the prompt itself stay as they are written.
    for other in (chat("one", "abXX", "two"), chat("won", "abcd", "two"), prompt):
        assert replies.splice(other) == other
    # The next turn goes on from the ids in use.
    replies.record(turn, used, [*b"hello", CLOSE], "hello")
    last = chat("one", "abcd", "two", "hello", "three")
    assert replies.splice(last)[: len(used) + 6] == [*used, *b"hello", CLOSE]
    assert meaning(replies.splice(last)) == meaning(last)


@pytest.mark.parametrize("reply", [b"ab\xc3", b"\xffab"])
def test_replies_that_text_does_not_carry_are_not_remembered(reply: bytes) -> None:
    replies = Replies(TOKENIZER)
    replies.record(chat("one"), chat("one"), [*reply, CLOSE], reply.decode("utf-8", "replace"))
    assert len(replies) == 0


def test_the_oldest_replies_are_forgotten() -> None:
    replies = Replies(TOKENIZER, limit=3)
    prompts = [chat("x" * n) for n in range(6)]
    for prompt in prompts:
        replies.record(prompt, prompt, [*b"ab", CLOSE], "ab")
    assert len(replies) == 3
    assert replies._lengths == [len(p) for p in prompts[3:]]
    turns = [chat("x" * n, "ab", "y") for n in range(6)]
    assert [replies.splice(t) == t for t in turns] == [True] * 3 + [False] * 3
    replies.record(prompts[3], prompts[3], [*b"ab", CLOSE], "ab")  # used again: the next one to go is another
    assert len(replies) == 3
    replies.record(prompts[0], prompts[0], [*b"ab", CLOSE], "ab")
    assert [replies.splice(t) == t for t in turns] == [False, True, True, False, True, False]
