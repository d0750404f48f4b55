"""Sessions: what is reused, and that reuse never shows in the answer."""

from __future__ import annotations

import logging
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted import CLOSE, EOS, ByteTokenizer, IdTokenizer, ListTarget, Oracle, Raising, RandomTree, hash_target

from exactspec.engine import Engine
from exactspec.params import SamplingParams, Speculation
from exactspec.prompts import common_prefix
from exactspec.session import Session
from exactspec.splice import Transcript

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6] * 4
PARAMS = SamplingParams(max_tokens=25)
SAMPLED = SamplingParams(max_tokens=25, temperature=1.0, seed=4)


def engine(target: ListTarget | None = None, draft: Any = "copy") -> Engine:
    return Engine(target or hash_target(order=None), IdTokenizer(97), draft=draft, prefill_chunk=16)


def fresh(ids: list[int], params: SamplingParams = PARAMS) -> tuple[int, ...]:
    return engine(draft="none").generate(ids, params).token_ids


@pytest.mark.parametrize("draft", ["none", "copy", "copyspec", "auto", "oracle", "tree"])
@pytest.mark.parametrize("params", [PARAMS, SAMPLED], ids=["greedy", "sampled"])
def test_every_turn_equals_a_fresh_run(draft: str, params: SamplingParams) -> None:
    d: Any = {"oracle": Oracle(PROMPT * 9), "tree": RandomTree(vocab_size=97, text=PROMPT * 9)}.get(draft, draft)
    target = hash_target(order=None)
    session = engine(target, d).session()
    prompt = list(PROMPT)
    for turn in range(4):
        before = len(session.token_ids)
        rows = sum(target.rows)
        c = session.generate(prompt, params)
        assert c.token_ids == fresh(prompt, params)
        # All but the last emitted token of the turn before is in the cache.
        assert c.metrics.cached_tokens == (before - 1 if turn else 0)
        assert c.metrics.prompt_tokens == len(prompt)
        computed = sum(target.rows) - rows
        assert computed == len(prompt) - c.metrics.cached_tokens - 1 + c.metrics.num_steps + c.metrics.num_draft_tokens
        assert session.token_ids == (*prompt, *c.token_ids)
        prompt = [*session.token_ids, 7 + turn, 8]


def test_divergence_reuses_the_common_prefix_only() -> None:
    session = engine().session()
    session.generate(PROMPT, PARAMS)
    other = [*PROMPT[:20], 50, 51]
    c = session.generate(other, PARAMS)
    assert c.metrics.cached_tokens == 20
    assert c.token_ids == fresh(other)
    shorter = PROMPT[:9]
    c = session.generate(shorter, PARAMS)
    assert c.metrics.cached_tokens == 8  # the last prompt token is the root, computed anew
    assert c.token_ids == fresh(shorter)
    unrelated = [90, 91]
    c = session.generate(unrelated, PARAMS)
    assert c.metrics.cached_tokens == 0
    assert c.token_ids == fresh(unrelated)


def test_same_prompt_again() -> None:
    session = engine().session()
    one = session.generate(PROMPT, PARAMS)
    two = session.generate(PROMPT, PARAMS)
    assert two.token_ids == one.token_ids
    assert two.metrics.cached_tokens == len(PROMPT) - 1


@settings(max_examples=40, deadline=None)
@given(
    turns=st.lists(
        st.tuples(st.integers(0, 60), st.lists(st.integers(0, 96), min_size=1, max_size=12), st.integers(0, 12)),
        min_size=1,
        max_size=6,
    ),
    draft=st.sampled_from(["none", "copy", "copyspec", "recycle", "auto"]),
)
def test_any_sequence_of_prompts(turns: list[tuple[int, list[int], int]], draft: str) -> None:
    """Each prompt: some of the history, then other ids."""
    session = engine(hash_target(order=3), draft).session()
    plain = engine(hash_target(order=3), "none")
    for keep, more, n in turns:
        prompt = [*session.token_ids[:keep], *more]
        params = SamplingParams(max_tokens=n)
        assert session.generate(prompt, params).token_ids == plain.generate(prompt, params).token_ids


def test_cancelled_and_abandoned_turns_leave_a_usable_session() -> None:
    session = engine().session()
    stream = session.stream(PROMPT, PARAMS)
    next(stream)
    next(stream)
    longer = [*PROMPT, 5, 6]
    c = session.generate(longer, PARAMS)  # closes the open stream
    assert stream.completion is not None
    assert stream.completion.finish_reason == "cancelled"
    assert c.token_ids == fresh(longer)
    assert c.metrics.cached_tokens >= len(PROMPT) - 1
    # Cancelled in the middle of the prompt.
    long = [11] * 64
    part = session.stream(long, PARAMS, progress=lambda done, _: part.cancel() if done >= 32 else None)
    assert next(part).completion is not None
    c = session.generate([*long, 1], PARAMS)
    assert c.metrics.cached_tokens == 32
    assert c.token_ids == fresh([*long, 1])
    # Never begun.
    session.stream([1, 2, 3], PARAMS)
    assert session.generate(PROMPT, PARAMS).token_ids == fresh(PROMPT)


@pytest.mark.parametrize("at", range(1, 9))
def test_a_failure_in_a_turn_leaves_a_usable_session(at: int) -> None:
    armed = at

    def before(forward: int) -> None:
        if forward == armed:
            raise KeyboardInterrupt

    session = engine(hash_target(order=None, before=before)).session()
    with pytest.raises(KeyboardInterrupt):
        session.generate(PROMPT, PARAMS)
    armed = -1
    again = [*session.token_ids, 9]
    assert session.generate(again, PARAMS).token_ids == fresh(again)
    assert session.generate(PROMPT, PARAMS).token_ids == fresh(PROMPT)


def test_fork_is_independent() -> None:
    target = hash_target(order=None)
    session = engine(target).session()
    first = session.generate(PROMPT, PARAMS)
    twin = session.fork()
    a, b = [*session.token_ids, 1], [*session.token_ids, 2]
    ca, cb = session.generate(a, PARAMS), twin.generate(b, PARAMS)
    assert ca.token_ids == fresh(a)
    assert cb.token_ids == fresh(b)
    assert ca.metrics.cached_tokens == cb.metrics.cached_tokens == len(PROMPT) + len(first.token_ids) - 1
    assert twin.token_ids[: len(b)] == tuple(b)
    stream = session.stream(a, PARAMS)
    next(stream)
    with pytest.raises(ValueError, match="still open"):
        session.fork()


def test_drafter_state_goes_on_and_follows() -> None:
    """The drafters of scripted.py assert that they are told the history exactly."""
    begun: list[int] = []

    class Counts(Oracle):
        def begin(self, context: Any) -> list[int]:
            begun.append(len(context.tokens))
            return super().begin(context)

    session = engine(draft=Counts(PROMPT * 9)).session()
    session.generate(PROMPT, PARAMS)
    session.generate([*session.token_ids, 3], PARAMS)
    session.generate(PROMPT[:5], PARAMS)
    session.fork().generate([*session.token_ids, 3], PARAMS)
    assert begun == [len(PROMPT)]
    session.generate(PROMPT, PARAMS, prediction=[1, 2, 3])
    session.generate(PROMPT, PARAMS)  # knows nothing of the prediction
    assert begun == [len(PROMPT)] * 3
    session.generate(PROMPT, PARAMS, speculation=Speculation(draft="copy"))
    session.generate(PROMPT, PARAMS)
    assert begun == [len(PROMPT)] * 4


@pytest.mark.parametrize("method", ["truncate", "fork", "begin", "commit"])
def test_a_raising_drafter_is_off_for_one_request(method: str, caplog: pytest.LogCaptureFixture) -> None:
    draft = Raising(method, PROMPT * 9, call=1)
    session = engine(draft=draft).session()
    with caplog.at_level(logging.WARNING, logger="exactspec"):
        session.generate(PROMPT, PARAMS)
        session = session.fork()
        prompt = [*session.token_ids[:-3], 5]
        assert session.generate(prompt, PARAMS).token_ids == fresh(prompt)
    assert caplog.records
    draft.call = 10**9
    assert session.generate(PROMPT * 2, PARAMS).metrics.num_draft_tokens > 0


def test_wrong_prompts_change_nothing() -> None:
    session = engine(hash_target(order=None, max_length=64)).session()
    session.generate(PROMPT, PARAMS)
    before = session.token_ids
    for wrong in ([], [97], list(range(65)), [[1], [2]], None):
        with pytest.raises(ValueError):
            session.generate(wrong, PARAMS)  # type: ignore[arg-type]
    with pytest.raises(ValueError):
        session.generate(PROMPT, SamplingParams(logit_bias={500: 1.0}))
    assert session.token_ids == before
    again = [*before[:30], 1]
    assert session.generate(again, PARAMS).token_ids == fresh(again)


def test_close_starts_from_nothing() -> None:
    session = engine().session()
    session.generate(PROMPT, PARAMS)
    session.close()
    c = session.generate(PROMPT, PARAMS)
    assert c.metrics.cached_tokens == 0
    assert c.token_ids == fresh(PROMPT)


# -- conversations ----------------------------------------------------------------------------------------------------

MERGED = ByteTokenizer(merges=[b"ab", b"cd", b"hello"])


def says(*replies: bytes | list[int], merges: ByteTokenizer = MERGED) -> ListTarget:
    """Answers turn k with reply k: after "assistant\\n" the model emits its bytes one by one, then ends the turn."""
    opening = merges.encode("assistant\n")

    def logits(path: list[int]) -> Any:
        import numpy as np

        row = np.zeros(300, dtype=np.float32)
        starts = [i + len(opening) for i in range(len(path)) if path[i : i + len(opening)] == opening]
        reply = [*replies[len(starts) - 1], CLOSE]
        at = len(path) - starts[-1]
        row[reply[at] if at < len(reply) else EOS] = 9.0
        return row

    return ListTarget(logits, vocab_size=300)


def chat(
    engine: Engine, users: list[str], params: SamplingParams | None = None
) -> tuple[Session, list[dict[str, str]], list[Any]]:
    session = engine.session()
    messages: list[dict[str, str]] = []
    answers = []
    for user in users:
        messages.append({"role": "user", "content": user})
        answers.append(session.generate(messages, params))
        messages.append({"role": "assistant", "content": answers[-1].text})
    return session, messages, answers


@pytest.mark.parametrize("draft", ["none", "copy", "auto"])
def test_generated_ids_survive_re_templating(draft: str) -> None:
    tokenizer = ByteTokenizer(merges=[b"ab", b"cd", b"hello"], eos=[CLOSE])
    replies = [b"abcd hello", b"cdcd", b"x"]
    e = Engine(says(*replies), tokenizer, draft=draft)
    _, messages, answers = chat(e, ["hi ab", "again", "more"])
    assert [c.text.encode() for c in answers] == replies
    # The template would tokenise "abcd hello" as three ids; the model spelt it in ten.
    assert 260 in tokenizer.chat(messages)
    for before, after in pairwise(answers):
        history = before.metrics.prompt_tokens + before.metrics.completion_tokens
        assert after.metrics.cached_tokens == history - 1
    # The prompt in use means what the template says: the same bytes, the same control tokens in the same places.
    session = e.session()
    built: list[dict[str, str]] = []
    for message in messages:
        built.append(message)
        if message["role"] == "user":
            used, templated = session.encode(built), tokenizer.chat(built)
            assert meaning(tokenizer, used) == meaning(tokenizer, templated)
            c = session.generate(built)
            assert c.token_ids == Engine(says(*replies), tokenizer, draft="none").generate(used).token_ids


def meaning(tokenizer: ByteTokenizer, ids: list[int]) -> list[bytes | int]:
    out: list[bytes | int] = [b""]
    for token in ids:
        piece = tokenizer.token_bytes(token)
        if not piece:
            out += [token, b""]
        else:
            out[-1] += piece  # type: ignore[operator]
    return out


def test_regenerating_and_editing_a_turn() -> None:
    tokenizer = ByteTokenizer(merges=[b"ab", b"cd", b"hello"], eos=[CLOSE])
    e = Engine(says(b"abcd", b"abab", b"cd"), tokenizer)
    session, messages, answers = chat(e, ["one", "two", "three"])
    # The last turn again: its whole prompt is there.
    again = session.generate(messages[:5])
    assert again.token_ids == answers[2].token_ids
    assert again.metrics.cached_tokens == answers[2].metrics.prompt_tokens - 1
    # Another second question: the first reply is kept as generated.
    edited = [*messages[:2], {"role": "user", "content": "2b"}]
    used = session.encode(edited)
    assert meaning(tokenizer, used) == meaning(tokenizer, tokenizer.chat(edited))
    first = answers[0].metrics.prompt_tokens + answers[0].metrics.completion_tokens
    assert session.generate(edited).metrics.cached_tokens >= first
    # Another reply put into the first turn's place is taken as it is written.
    forged = [messages[0], {"role": "assistant", "content": "abXX"}, {"role": "user", "content": "2b"}]
    assert session.encode(forged) == tokenizer.chat(forged)
    other = [{"role": "user", "content": "new"}]
    assert session.encode(other) == tokenizer.chat(other)


@pytest.mark.parametrize("reply", [b"ab\xc3", b"\xffab", [97, EOS, 98]])
def test_replies_that_text_does_not_carry_are_not_spliced(reply: bytes | list[int]) -> None:
    """Cut characters, invalid bytes, control tokens inside: the text differs from the ids, the template's ids count."""
    tokenizer = ByteTokenizer(merges=[b"ab"], eos=[CLOSE])
    e = Engine(says(reply, b"x", merges=tokenizer), tokenizer)
    session, messages, _ = chat(e, ["one"])
    messages.append({"role": "user", "content": "two"})
    used, templated = session.encode(messages), tokenizer.chat(messages)
    assert meaning(tokenizer, used) == meaning(tokenizer, templated)


def test_stop_string_and_length_endings_are_spliced_where_they_fall_on_a_border() -> None:
    tokenizer = ByteTokenizer(merges=[b"ab", b"cd"], eos=[CLOSE])
    for params, text in [(SamplingParams(stop=("STOP",)), "abcd"), (SamplingParams(max_tokens=3), "abc")]:
        e = Engine(says(b"abcdSTOPxx", b"y", merges=tokenizer), tokenizer)
        session, messages, answers = chat(e, ["one"], params)
        assert answers[0].text == text
        messages.append({"role": "user", "content": "two"})
        used = session.encode(messages)
        assert meaning(tokenizer, used) == meaning(tokenizer, tokenizer.chat(messages))
        assert common_prefix(session.token_ids, used) == answers[0].metrics.prompt_tokens + len(text)


def test_templates_that_change_earlier_replies_are_obeyed() -> None:
    class Strips(ByteTokenizer):
        """As templates do that drop the thinking part of earlier turns, or trim."""

        def chat(self, messages: Any, **options: Any) -> list[int]:
            shown = [m | {"content": m["content"].split("|")[-1].strip()} for m in messages]
            return super().chat(shown, **options)

    tokenizer = Strips(merges=[b"ab"], eos=[CLOSE])
    e = Engine(says(b"hm|abab", b" abab ", b"x", merges=tokenizer), tokenizer)
    session, messages, answers = chat(e, ["one", "two"])
    assert [c.text for c in answers] == ["hm|abab", " abab "]
    messages.append({"role": "user", "content": "three"})
    used = session.encode(messages)
    assert meaning(tokenizer, used) == meaning(tokenizer, tokenizer.chat(messages))
    assert session.generate(messages).text == "x"


def test_a_splice_that_no_longer_fits_gives_way_to_the_templates_ids() -> None:
    tokenizer = ByteTokenizer(merges=[b"hello"], eos=[CLOSE])
    e = Engine(says(b"hello" * 20, b"hello", b"x", merges=tokenizer), tokenizer)
    session, messages, _ = chat(e, ["one", "two"])
    messages.append({"role": "user", "content": "three"})
    spliced, templated = session.encode(messages), tokenizer.chat(messages)
    assert len(spliced) == len(templated) + 84
    e.target.max_length = len(templated) + 5  # type: ignore[misc]
    assert session.encode(messages) == templated
    assert session.generate(messages).text == "x"
    # The second turn's prompt is no longer the spliced one: going on from it must not mix the two.
    e.target.max_length = 4096  # type: ignore[misc]
    edited = [*messages[:3], {"role": "assistant", "content": "other"}, {"role": "user", "content": "three"}]
    for conversation in (edited, messages, messages[:3]):
        assert meaning(tokenizer, session.encode(conversation)) == meaning(tokenizer, tokenizer.chat(conversation))


def test_transcript_holds_one_prompt_only() -> None:
    """Older prompts are prefixes of the newest: memory grows with the conversation, not with its square."""
    tokenizer = ByteTokenizer(eos=[CLOSE])
    transcript = Transcript(tokenizer)
    templated: list[int] = []
    for turn in range(50):
        templated = [*templated, *tokenizer.encode(f"turn {turn} ")]
        used = transcript.splice(templated)
        transcript.record(templated, used, [*b"yes", CLOSE], "yes")
        templated += [*b"yes", CLOSE]
    assert sum(len(t.reply or ()) for t in transcript._turns) == 150
    assert len(transcript._templated) < len(templated)
