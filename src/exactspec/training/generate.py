"""Text that the target writes itself: many conversations in every forward, features kept on the way.

A conversation is a function of the target, its prompt and the seed: neither the other conversations of a forward nor an
interruption changes it. Sampling takes the target's best ids alone (`Target.top_k` of them).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from exactspec.philox import uniform
from exactspec.target.exact import ExactTarget
from exactspec.target.tokenizer import Tokenizer
from exactspec.training.capture import Capture, trained_rows
from exactspec.training.shards import Document

_LOOP, _LONGEST_PERIOD, _LOOK_EVERY = 48, 32, 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A conversation to be held. `turns`: what the user says. `seed` in [0, 2**64)."""

    name: str
    kind: str
    turns: Sequence[str]
    temperature: float
    seed: int


class _Talk:
    """A conversation that goes on: its document so far, and the tokens that the next forward takes."""

    def __init__(self, asked: Asked, capture: Capture, prompt: Sequence[int]) -> None:
        self.asked, self.capture = asked, capture
        self.next: list[int] = list(prompt)
        self.tokens: list[int] = list(prompt)  # all, those to come through next included
        self.answer: list[bool] = [False] * len(prompt)
        self.turn = 0
        self.written = 0  # tokens of this turn's answer

    def say(self, token: int) -> None:
        self.next = [token]
        self.tokens.append(token)
        self.answer.append(True)
        self.written += 1

    def ask(self, tokens: Sequence[int]) -> None:
        """The user's next turn, after the answer's last token."""
        self.next = [self.tokens[-1], *tokens]
        self.tokens += tokens
        self.answer += [False] * len(tokens)
        self.turn += 1
        self.written = 0


def generate(
    target: ExactTarget,
    tokenizer: Tokenizer,
    asked: Iterable[Asked],
    *,
    max_answer: int,
    slots: int = 32,
    progress: Callable[[int], None] | None = None,
) -> Iterator[Document]:
    """Documents in the order in which conversations end, `slots` of them at a time.

    `max_answer`: tokens of one answer. An answer that goes in circles is ended. `progress`: called after each forward
    with its rows. Prompts that leave no room for an answer are left out.
    """
    waiting = iter(asked)
    talks: list[_Talk] = []
    room = target.max_length
    while True:
        while len(talks) < slots and (one := next(waiting, None)) is not None:
            prompt = tokenizer.chat([{"role": "user", "content": one.turns[0]}])
            if len(prompt) + max_answer < room:
                talks.append(_Talk(one, Capture(target.new_cache()), prompt))
        if not talks:
            return
        results = target.forward([talk.capture.segment(talk.next, every_row=False) for talk in talks])
        going: list[_Talk] = []
        ended: list[_Talk] = []
        for talk, rows in zip(talks, results, strict=True):
            talk.capture.take(talk.next, rows)
            token = _choose(rows.topk_ids[-1], rows.topk_logits[-1], talk)
            talk.say(token)
            over = token in tokenizer.eos_ids
            full = talk.written >= max_answer or len(talk.tokens) + 1 >= room or _circles(talk.tokens, talk.written)
            if over and talk.turn + 1 < len(talk.asked.turns):
                more = _next_turn(tokenizer, talk.asked.turns, talk.turn + 1)
                if more and len(talk.tokens) + len(more) + max_answer < room:
                    talk.ask(more)
                    going.append(talk)
                    continue
            (ended if over or full else going).append(talk)
        talks = going
        if progress is not None:
            progress(sum(len(rows) for rows in results))
        for talk in ended:
            yield talk.capture.document(
                talk.asked.name,
                talk.asked.kind,
                greedy=talk.asked.temperature == 0,
                after=talk.tokens[-1],
                trained=trained_rows(np.array(talk.answer)),
                head_dim=target.config.head_dim,
            )


def _choose(ids: npt.NDArray[np.integer], logits: npt.NDArray[np.float32], talk: _Talk) -> int:
    temperature = talk.asked.temperature
    if temperature == 0:
        return int(ids[0])
    weights = np.exp((logits.astype(np.float64) - float(logits[0])) / temperature)
    cumulated = np.cumsum(weights)
    u = uniform(seed=talk.asked.seed, choice=0, index=len(talk.tokens))
    return int(ids[min(int(np.searchsorted(cumulated, u * cumulated[-1], side="right")), len(ids) - 1)])


def _circles(tokens: Sequence[int], written: int) -> bool:
    """Whether the last 48 tokens repeat, with a period of at most 32, what came just before them."""
    if written % _LOOK_EVERY or written < _LOOP:
        return False
    tail = list(tokens[-_LOOP - _LONGEST_PERIOD :])
    last = tail[-_LOOP:]
    return any(tail[-_LOOP - period : -period] == last for period in range(1, len(tail) - _LOOP + 1))


def _next_turn(tokenizer: Tokenizer, turns: Sequence[str], turn: int) -> list[int]:
    """Ids between the end of an answer and the start of the next: what the template writes around the user's words.

    Found by the ends of turns, because the answer itself may not survive decoding and encoding. Empty if the template
    marks them otherwise.
    """
    messages: list[Mapping[str, str]] = []
    for said in turns[:turn]:
        messages += [{"role": "user", "content": said}, {"role": "assistant", "content": "x"}]
    before = tokenizer.chat(messages[:-1])
    ids = tokenizer.chat([*messages, {"role": "user", "content": turns[turn]}])
    ends = [i for i, token in enumerate(ids) if token in tokenizer.eos_ids]
    earlier = sum(token in tokenizer.eos_ids for token in before)
    return ids[ends[earlier] + 1 :] if len(ends) > earlier else []
