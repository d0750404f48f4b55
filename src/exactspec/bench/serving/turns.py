"""A second turn behind a long history, against the same conversation that the server has never seen."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from exactspec.bench.rounds import Measurement
from exactspec.bench.serving.contests import TURN, Serving
from exactspec.bench.workloads import build

COLD, SECOND = "cold", "second turn"
REPLY_TOKENS = 64
_TOKENS = 4  # of the turn that is timed: the first is what counts
_QUESTION = "Which of these changes was the largest?"
Messages = Sequence[Mapping[str, str]]


def measure_turns(at: Serving, *, history: int, rounds: int) -> list[str]:
    """The time to the first token of a second turn, through the chat endpoint, everything in it: the template, the
    tokenizer, what is found of the prefix, and the rest of the prompt.

    In every round two conversations differ in their first line alone, so that neither can be found for the other: of
    one, the first turn is asked and answered before; of the other, the second turn is the first that the server sees.
    `history`: length of the first turn's prompt in tokens. Returns the lines' `work`.
    """
    played = {COLD: 0, SECOND: 0}
    mark = time.time_ns()  # rounds of an earlier run may have been asked of this server

    def turn(arm: str) -> Measurement:
        number = played[arm] = played[arm] + 1
        made = build("code_edit", tokenizer=at.on.engine.tokenizer, size=history, seed=0)
        first = [dict(message) for message in made.messages]
        first[0]["content"] = f"Conversation {mark % 10**9}, {arm}, {number}.\n{first[0]['content']}"
        reply = made.gold[: 4 * REPLY_TOKENS]
        if arm == SECOND:
            _, reply, _ = chat(at, first, tokens=REPLY_TOKENS)
        asked = [*first, {"role": "assistant", "content": reply}, {"role": "user", "content": _QUESTION}]
        at.settle()
        seconds, _, usage = chat(at, asked, tokens=_TOKENS)
        return Measurement(
            token_ids=(0,),  # one token each: the time to it is the time that is compared
            prefill_s=seconds,
            decode_s=seconds,
            extra={
                "prompt_tokens": usage["prompt_tokens"],
                "cached_tokens": usage["prompt_tokens_details"]["cached_tokens"],
            },
        )

    head = {**at.head(TURN, f"history of {history} tokens", [history]), "size": history}
    at.recorder.rounds(
        {arm: partial(turn, arm) for arm in (COLD, SECOND)},
        repeats=rounds,
        same_tokens=False,
        head=head,
        warm_up=lambda: chat(at, [{"role": "user", "content": _QUESTION}], tokens=_TOKENS),
    )
    return [head["work"]]


def chat(at: Serving, messages: Messages, *, tokens: int) -> tuple[float, str, Mapping[str, Any]]:
    """Seconds to the first token of a greedy answer, its text, and the usage. Raises PeerError if the server fails."""
    body = {
        "messages": messages,
        "max_completion_tokens": tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
        "return_token_ids": True,
    }
    client = at.client()
    sent, events = client.events("/v1/chat/completions", body)
    first: float | None = None
    text = ""
    usage: Mapping[str, Any] = {}
    for when, event in events:
        if client.dialect.ids(event) and first is None:
            first = when
        for choice in event["choices"]:
            text += choice["delta"].get("content") or ""
        usage = event.get("usage") or usage
    if first is None:
        raise ValueError("a turn without tokens cannot be timed")
    return first - sent, text, usage
