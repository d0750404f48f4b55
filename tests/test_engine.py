"""The engine on models made of lists: whatever is drafted, the tokens are those of plain decoding."""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scripted import (
    BOS,
    EOS,
    ByteTokenizer,
    IdTokenizer,
    ListCache,
    ListTarget,
    Oracle,
    Raising,
    RandomTree,
    Raw,
    hash_target,
    script_target,
)

from exactspec.engine import Engine
from exactspec.params import SamplingParams, Speculation
from exactspec.results import Completion
from exactspec.target.named import NAMED_MODELS
from exactspec.tree import DraftTree

VOCAB = 97
PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9] * 3
GREEDY = SamplingParams(max_tokens=220)
SAMPLED = SamplingParams(max_tokens=220, temperature=1.0, top_p=0.9, seed=11)
PENALISED = SamplingParams(
    max_tokens=120,
    temperature=0.8,
    seed=5,
    frequency_penalty=0.7,
    repetition_penalty=1.2,
    min_p=0.02,
    logit_bias={7: 3.0},
)


def engine(target: ListTarget | None = None, **options: Any) -> Engine:
    return Engine(target or hash_target(order=2), IdTokenizer(VOCAB), **options)


def plain(params: SamplingParams, *, order: int | None = 2, prompt: Sequence[int] = PROMPT) -> Completion:
    return engine(hash_target(order=order), draft="none").generate(list(prompt), params)


def naive(prompt: Sequence[int], n: int, *, order: int | None = 2) -> list[int]:
    """O1: no cache, no engine; the first maximal id of the row of the whole prefix."""
    logits = hash_target(order=order)._logits
    history = list(prompt)
    for _ in range(n):
        history.append(int(logits(history).argmax()))
    return history[len(prompt) :]


def drafters(text: Sequence[int]) -> dict[str, Any]:
    return {
        "copy": "copy",
        "copyspec": "copyspec",
        "auto": "auto",
        "oracle": Oracle(text, length=9),
        "half right": Oracle(text, length=16, wrong_every=6),
        "liar": Oracle([(t + 1) % VOCAB for t in text], length=12),
        "random tree": RandomTree(vocab_size=VOCAB, text=text, nodes=40),
        "random rubbish": RandomTree(vocab_size=VOCAB, seed=4),
        **{
            f"raising {m} {n}": Raising(m, text, call=n)
            for m in ("begin", "propose", "commit", "close")
            for n in (1, 4)
        },
    }


@pytest.mark.parametrize("order", [2, None])
@pytest.mark.parametrize("params", [GREEDY, SAMPLED, PENALISED], ids=["greedy", "sampled", "penalised"])
def test_no_drafter_changes_a_token(params: SamplingParams, order: int | None) -> None:
    expected = plain(params, order=order)
    assert len(expected.token_ids) == params.max_tokens
    for name, draft in drafters([*PROMPT, *expected.token_ids]).items():
        found = engine(hash_target(order=order), draft=draft).generate(PROMPT, params)
        assert found.token_ids == expected.token_ids, name
        assert found.text == expected.text, name
        assert found.finish_reason == "length", name


def test_plain_equals_the_naive_loop() -> None:
    assert plain(GREEDY).token_ids == tuple(naive(PROMPT, 220))
    assert plain(GREEDY, order=None).token_ids == tuple(naive(PROMPT, 220, order=None))


def test_a_wrong_commit_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison above can fail: a cache that commits another row than the last accepted one gives other tokens."""
    expected = plain(GREEDY, order=None)
    right = ListCache.keep

    def wrong(self: ListCache, rows: Sequence[int]) -> None:
        right(self, rows)
        if len(rows) > 1:
            self.tokens[-1] = (self.tokens[-1] + 1) % 16

    monkeypatch.setattr(ListCache, "keep", wrong)
    oracle = Oracle([*PROMPT, *expected.token_ids])
    # The drafter's own checks of the contract see it too and switch it off; without them:
    monkeypatch.setattr(Oracle, "commit", lambda self, state, verified: state.extend(verified.tokens.tolist()))
    found = engine(hash_target(order=None), draft=oracle, prefill_chunk=1).generate(PROMPT, GREEDY)
    assert found.token_ids != expected.token_ids


@pytest.mark.parametrize("chunk", [1, 2, 7, 44, 45, 256])
def test_prompt_chunks_change_nothing(chunk: int) -> None:
    target = hash_target(order=None)
    found = engine(target, draft="copy", prefill_chunk=chunk).generate(PROMPT, SamplingParams(max_tokens=20))
    assert found.token_ids == tuple(naive(PROMPT, 20, order=None))
    prefills = -(-(len(PROMPT) - 1) // chunk)
    assert target.forwards == prefills + found.metrics.num_steps
    assert max(target.rows[:prefills]) <= chunk


def test_first_step_may_carry_a_draft() -> None:
    text = [*PROMPT, *naive(PROMPT, 12)]
    target = hash_target()
    found = engine(target, draft=Oracle(text, length=11)).generate(PROMPT, SamplingParams(max_tokens=12))
    assert target.rows == [len(PROMPT) - 1, 12]
    assert found.metrics.num_steps == 1
    assert found.metrics.tau == 12


def test_metrics_and_steps_are_honest() -> None:
    text = [*PROMPT, *naive(PROMPT, 100)]
    target = hash_target()
    draft = Oracle(text, length=7, wrong_every=5)
    c = engine(target, draft=draft).generate(PROMPT, SamplingParams(max_tokens=100), record_steps=True)
    m = c.metrics
    assert m.prompt_tokens == len(PROMPT)
    assert m.completion_tokens == len(c.token_ids) == len(c.tokens) == 100
    assert m.num_steps == len(c.steps) == target.forwards - 1
    assert m.tau == 100 / m.num_steps
    assert m.num_draft_tokens == sum(s.rows - 1 for s in c.steps) == sum(target.rows[1:]) - m.num_steps
    assert m.num_accepted_tokens == sum(s.accepted for s in c.steps) == m.accepted_by_source["oracle"]
    assert m.num_accepted_tokens == sum(t.source == "oracle" for t in c.tokens)
    assert sum(s.emitted for s in c.steps) == 100
    context = len(PROMPT)
    for s in c.steps:
        assert s.context == context
        assert s.emitted - s.accepted in (0, 1)
        assert s.depth == s.rows - 1  # chains
        assert s.source == ("oracle" if s.accepted else "")
        assert min(s.propose_s, s.verify_s, s.walk_s) >= 0
        context += s.emitted
    assert sum(s.propose_s + s.verify_s + s.walk_s for s in c.steps) == pytest.approx(m.decode_s)
    assert m.decode_s > 0
    assert m.prefill_s > 0
    assert c.identity == target.identity
    assert c.exact


def test_stats_of_a_drafter_that_is_always_right_and_always_wrong() -> None:
    text = [*PROMPT, *naive(PROMPT, 100)]
    right = engine(draft=Oracle(text, length=4)).generate(PROMPT, SamplingParams(max_tokens=100)).metrics
    assert right.num_accepted_tokens == right.num_draft_tokens
    assert right.tau == 5
    wrong = engine(draft=Oracle([t + 1 if t < 96 else 0 for t in text])).generate(
        PROMPT, SamplingParams(max_tokens=100)
    )
    assert wrong.metrics.num_accepted_tokens == 0
    assert wrong.metrics.tau == 1
    assert wrong.metrics.num_draft_tokens > 0
    assert wrong.metrics.accepted_by_source == {}


def test_credit_says_where_a_token_was_copied_from() -> None:
    prompt = [1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3]
    target = script_target(len(prompt), [4, 5, 6, 7, 9], vocab_size=VOCAB)
    c = engine(target, draft="copy").generate(prompt, SamplingParams(max_tokens=5))
    assert c.token_ids == (4, 5, 6, 7, 9)
    history = [*prompt, *c.token_ids]
    copied = [t for t in c.tokens if t.source == "copy"]
    assert copied
    for info in copied:
        assert info.source_span is not None
        start, end = info.source_span
        assert info.id in history[start:end]
    assert c.tokens[-1].source == "target"
    assert c.tokens[-1].source_span is None


def test_prediction_is_copied_from_and_credited() -> None:
    prompt, answer = [1, 2, 3], [50, 51, 52, 53, 54, 55, 56, 57, 58, 59]
    for prediction in (answer, "".join(chr(97 + t % 26) for t in answer)):
        target = script_target(len(prompt), answer, vocab_size=VOCAB)
        e = Engine(target, IdTokenizer(VOCAB), draft="copy")
        c = e.generate(prompt, SamplingParams(max_tokens=10), prediction=prediction)
        assert c.token_ids == tuple(answer)
        if isinstance(prediction, list):
            assert c.metrics.accepted_by_source.get("prediction", 0) >= 5
            spans = [t.source_span for t in c.tokens if t.source == "prediction"]
            assert all(s is not None and 0 <= s[0] < s[1] <= len(answer) for s in spans)


# -- proposals that no drafter should make ---------------------------------------------------------------------------


def odd_tree(ids: list[Any], parents: list[int], **changes: Any) -> DraftTree:
    n = len(ids)
    columns: dict[str, Any] = {
        "tokens": np.array(ids),
        "parents": np.array(parents),
        "source": np.zeros(n, dtype=np.int64),
        "score": np.ones(n, dtype=np.float32),
        "origin": np.full(n, -1),
        "sources": ("raw",),
    }
    return DraftTree(**(columns | changes))


FIRST = naive(PROMPT, 3)
ODD: dict[str, Any] = {
    "None": None,
    "list": [1, 2, 3],
    "text": "draft",
    "empty": DraftTree.empty(),
    "too many": DraftTree.chain(list(range(90)) * 30, source="raw"),
    "id is the vocabulary size": DraftTree.chain([VOCAB, 1], source="raw"),
    "negative id": DraftTree.chain([-1, 1], source="raw"),
    "right, then outside": DraftTree.chain([FIRST[0], VOCAB + 5, FIRST[2]], source="raw"),
    "duplicate siblings": odd_tree([FIRST[0], FIRST[0], FIRST[1]], [-1, -1, 1]),
    "parent after child": odd_tree([FIRST[0], FIRST[1]], [1, -1]),
    "own parent": odd_tree([FIRST[0], FIRST[1]], [0, 1]),
    "parent below root": odd_tree([FIRST[0], FIRST[1]], [-2, -7]),
    "lengths differ": odd_tree([1, 2, 3], [-1]),
    "tokens are floats": odd_tree([1.0, float("nan")], [-1, 0]),
    "tokens are objects": odd_tree([1, 2], [-1, 0], tokens=np.array([None, "x"], dtype=object)),
    "scores are nan": odd_tree([1, 2], [-1, 0], score=np.array([np.nan, np.inf], dtype=np.float32)),
    "source out of range": odd_tree([FIRST[0], 2], [-1, 0], source=np.array([9, -3])),
    "arrays are None": DraftTree(None, None, None, None, None, ()),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("name", ODD)
@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_an_odd_proposal_is_cut_and_the_request_goes_on(name: str, params: SamplingParams) -> None:
    target = hash_target()
    found = engine(target, draft=Raw(ODD[name])).generate(PROMPT, params)
    assert found.token_ids == plain(params).token_ids
    assert max(target.rows[1:]) <= 1 + Speculation().max_nodes


@pytest.mark.parametrize("method", ["begin", "propose", "commit", "close"])
def test_a_raising_drafter_is_logged_once_and_off(method: str, caplog: pytest.LogCaptureFixture) -> None:
    draft = Raising(method, [*PROMPT, *naive(PROMPT, 60)])
    with caplog.at_level(logging.WARNING, logger="exactspec"):
        found = engine(draft=draft).generate(PROMPT, SamplingParams(max_tokens=60))
    assert found.token_ids == tuple(naive(PROMPT, 60))
    assert len(caplog.records) == 1
    assert method in caplog.records[0].message
    assert "raising" in caplog.records[0].message
    assert draft.calls == 1
    # The next request has it back.
    draft.call = 10**9
    again = engine(draft=draft).generate(PROMPT, SamplingParams(max_tokens=60))
    assert again.metrics.num_accepted_tokens > 0


def test_a_drafter_without_methods_is_refused_at_once() -> None:
    class Half:
        name = "half"

        def propose(self) -> None: ...

    with pytest.raises(ValueError, match=r"Half is no drafter: it lacks begin, commit"):
        engine(draft=Half())


def test_speculation_of_one_call_replaces_the_engines() -> None:
    e = engine(draft="none")
    assert e.generate(PROMPT, GREEDY).metrics.num_draft_tokens == 0
    with_copy = e.generate(PROMPT, GREEDY, speculation=Speculation(draft="copy", max_nodes=3), record_steps=True)
    assert with_copy.metrics.num_draft_tokens > 0
    assert max(s.rows for s in with_copy.steps) <= 4
    with pytest.raises(ValueError, match="draft must be one of"):
        engine(draft="magic")


# -- limits -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("draft", ["none", "copy", "copyspec", "auto", "tree"])
def test_no_row_past_what_can_be_emitted(draft: str) -> None:
    prompt = [1, 2, 3] * 5
    for max_tokens in (1, 2, 3, 9):
        target = hash_target(max_length=20)
        text = [*prompt, *naive(prompt, 5)]
        d: Any = RandomTree(vocab_size=VOCAB, text=text) if draft == "tree" else draft
        c = engine(target, draft=d).generate(prompt, SamplingParams(max_tokens=max_tokens))
        assert c.token_ids == tuple(naive(prompt, min(max_tokens, 5)))
        assert c.finish_reason == "length"
        assert target.last_position <= min(15 + max_tokens, 20) - 2


def test_prompt_against_context() -> None:
    target = hash_target(max_length=16)
    e = engine(target)
    full = e.generate(list(range(16)))
    assert (full.token_ids, full.text, full.finish_reason) == ((), "", "length")
    assert target.forwards == 0
    with pytest.raises(ValueError, match="17 tokens but the context holds 16"):
        e.generate(list(range(17)))
    assert len(e.generate(list(range(15))).token_ids) == 1
    assert len(e.generate([1]).token_ids) == 15


def test_max_tokens_zero_is_an_empty_answer() -> None:
    target = hash_target()
    c = engine(target).generate(PROMPT, SamplingParams(max_tokens=0))
    assert (c.token_ids, c.text, c.finish_reason, c.metrics.num_steps) == ((), "", "length", 0)
    assert c.metrics.tau == 0
    assert target.forwards == 0
    chunks = list(engine().stream(PROMPT, SamplingParams(max_tokens=0)))
    assert len(chunks) == 1
    assert chunks[0].completion is not None


@pytest.mark.parametrize("draft", ["none", "copyspec", "copy", "auto"])
def test_a_drafter_that_was_never_begun_is_not_closed(draft: str, caplog: pytest.LogCaptureFixture) -> None:
    e = engine(draft=draft)
    with caplog.at_level(logging.WARNING, logger="exactspec"):
        e.generate(PROMPT, SamplingParams(max_tokens=0))
        stream = e.stream(PROMPT, SamplingParams(max_tokens=8))
        stream.close()  # before its first step
        session = e.session()
        session.generate(PROMPT, SamplingParams(max_tokens=0))
        session.fork().generate(PROMPT, SamplingParams(max_tokens=8))
    assert caplog.records == []


# -- prompts ----------------------------------------------------------------------------------------------------------


def test_kinds_of_prompt() -> None:
    target = ListTarget(lambda path: np.eye(300, dtype=np.float32)[66], vocab_size=300)
    e = Engine(target, ByteTokenizer(bos=BOS))
    p = SamplingParams(max_tokens=2)
    messages = [{"role": "user", "content": "hi"}]
    assert e.encode("hi") == [BOS, 104, 105]
    assert e.encode(messages) == e.tokenizer.chat(messages)
    assert e.encode(np.array([5, 6])) == [5, 6]  # type: ignore[arg-type]
    assert e.generate("hi", p).metrics.prompt_tokens == 3
    assert e.generate([104, 105], p).metrics.prompt_tokens == 2
    assert e.generate(messages, p).metrics.prompt_tokens == len(e.tokenizer.chat(messages))
    assert e.generate("", p).metrics.prompt_tokens == 1  # the BOS
    many = e.generate(["hi", "hello"], p)
    assert [c.metrics.prompt_tokens for c in many] == [3, 6]
    assert [c.metrics.prompt_tokens for c in e.generate([[1], [1, 2]], p)] == [1, 2]
    assert len(e.generate([messages, messages], p)) == 2
    mixed: Any = ["hi", [1, 2], messages]
    assert len(e.generate(mixed, p)) == 3


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ("", "the prompt is empty"),
        ([], "the prompt is empty"),
        ([1, 97], "prompt token 97 is outside the vocabulary"),
        ([1, -1], "prompt token -1 is outside the vocabulary"),
        ([1, 10**30], f"prompt token {10**30} is outside the vocabulary"),
        ([1, 2.5], "a prompt is a text"),
        ([1, True], "a prompt is a text"),
        (None, "a prompt is a text"),
        (b"bytes", "a prompt is a text"),
        ([{"role": "user"}, 5], "a prompt is a text"),
        ([[1], []], "the prompt is empty"),
    ],
)
def test_prompts_that_are_none(prompt: Any, message: str) -> None:
    target = hash_target()
    with pytest.raises(ValueError, match=message):
        engine(target).generate(prompt, GREEDY)
    assert target.forwards == 0
    with pytest.raises(ValueError):
        engine().stream(prompt, GREEDY)


@pytest.mark.parametrize("token", [-1, 2**63, 10**30])
def test_a_prediction_of_no_ids(token: int) -> None:
    target = hash_target()
    with pytest.raises(ValueError, match=f"prediction token {token} is no token id"):
        engine(target).generate([1, 2], GREEDY, prediction=[1, token])
    assert target.forwards == 0


def test_ids_without_text() -> None:
    """A model may have more rows than its tokenizer has ids."""
    target = script_target(1, [70, 299, 71], vocab_size=300)
    c = Engine(target, ByteTokenizer()).generate([65], SamplingParams(max_tokens=3))
    assert c.token_ids == (70, 299, 71)
    assert c.text == "FG"


# -- seeds ------------------------------------------------------------------------------------------------------------


def test_seed_is_drawn_returned_and_enough_to_repeat() -> None:
    e = engine()
    params = SamplingParams(max_tokens=30, temperature=1.0)
    random.seed(1)
    before = random.getstate(), np.random.get_state()[1].tolist()  # type: ignore[index]
    one, two = e.generate(PROMPT, params), e.generate(PROMPT, params)
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before  # type: ignore[index]
    assert one.seed != two.seed
    assert one.token_ids != two.token_ids
    again = e.generate(PROMPT, SamplingParams(max_tokens=30, temperature=1.0, seed=one.seed))
    assert again.token_ids == one.token_ids


def test_random_numbers_are_keyed_by_place_and_choice() -> None:
    whole = engine().generate(PROMPT, SAMPLED)
    assert whole.seed == 11
    cut = 30
    rest = engine(draft="none").generate(
        [*PROMPT, *whole.token_ids[:cut]], SamplingParams(max_tokens=220 - cut, temperature=1.0, top_p=0.9, seed=11)
    )
    assert rest.token_ids == whole.token_ids[cut:]
    other = engine().generate(PROMPT, SamplingParams(max_tokens=220, temperature=1.0, top_p=0.9, seed=11, choice=1))
    assert other.token_ids != whole.token_ids


# -- threads ----------------------------------------------------------------------------------------------------------


def test_threads_give_their_lone_outputs_and_forwards_never_meet() -> None:
    inside = 0
    worst = 0

    def before(_: int) -> None:
        nonlocal inside, worst
        inside += 1
        worst = max(worst, inside)
        threading.Event().wait(0.0002)
        inside -= 1

    e = engine(hash_target(before=before), draft="copy")
    jobs = [(PROMPT[i:], SamplingParams(max_tokens=40, temperature=i % 2, seed=i)) for i in range(6)]
    alone = [engine().generate(prompt, params).token_ids for prompt, params in jobs]
    found: dict[int, tuple[int, ...]] = {}

    def run(i: int) -> None:
        found[i] = e.generate(*jobs[i]).token_ids

    threads = [threading.Thread(target=run, args=(i,)) for i in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(60)
    assert [found[i] for i in range(6)] == alone
    assert worst == 1


def test_waiting_requests_take_turns() -> None:
    """A short request does not wait for a long one that began before it."""
    order: list[str] = []
    e = engine(hash_target(before=lambda _: threading.Event().wait(0.001) and None), draft="none")
    started = threading.Event()

    def long() -> None:
        for _ in e.stream([1, 2, 3], SamplingParams(max_tokens=400)):
            started.set()
        order.append("long")

    def short() -> None:
        e.generate([4, 5], SamplingParams(max_tokens=5))
        order.append("short")

    a = threading.Thread(target=long)
    a.start()
    assert started.wait(60)
    b = threading.Thread(target=short)
    b.start()
    b.join(60)
    a.join(60)
    assert order == ["short", "long"]


def test_eos_is_kept_in_the_ids_and_out_of_the_text() -> None:
    target = script_target(2, [72, 105, EOS, 88], vocab_size=300)
    c = Engine(target, ByteTokenizer()).generate([65, 66])
    assert (c.text, c.token_ids, c.finish_reason) == ("Hi", (72, 105, EOS), "stop")
    assert [t.text for t in c.tokens] == ["H", "i", ""]


def test_a_model_that_cannot_run_is_refused_before_any_download(monkeypatch: pytest.MonkeyPatch) -> None:
    named = replace(NAMED_MODELS["gemma3-270m"], note="cannot be run by this version yet", runnable=False)
    monkeypatch.setattr("exactspec.target.named.NAMED_MODELS", {"gemma3-270m": named})
    told: list[str] = []
    with pytest.raises(ValueError, match=r"gemma3-270m: cannot be run by this version"):
        Engine.from_pretrained("gemma3-270m", progress=told.append)
    assert told == []
