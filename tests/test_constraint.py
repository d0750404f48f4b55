"""Constrained answers: they match, they are the same with every drafter, and drafts do not cost rows outside."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from scripted import EOS, ByteTokenizer, ListTarget, Oracle, RandomTree, Raw, hash_target, script_target
from tiny_weights import RandomWeights

from exactspec.constraint import MAX_CHARACTERS, Constraint, Unanswerable
from exactspec.engine import Engine
from exactspec.grammars import Grammars
from exactspec.params import SamplingParams
from exactspec.target.base import Target
from exactspec.tree import DraftTree

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 20}, "note": {"type": ["string", "null"], "maxLength": 9}},
    "required": ["name", "note"],
    "additionalProperties": False,
}
CONSTRAINTS = {
    "schema": Constraint.schema(SCHEMA),
    "regex": Constraint("regex", "[0-9]{2}(-[a-c]{3,9})+x"),
    "grammar": Constraint("grammar", 'start: pair ("," pair)*\npair: KEY "=" KEY\nKEY: /[a-z]{1,12}/'),
    "choice": Constraint.choice(["north", "nowhere", 'south\n"west"', "östlich"]),
}
PROMPT = list(b'{"name": "Ada", "note": nil}\n{"name": "Ada", "note": nil}\n12-abc-abcx a=b,c=d nowhere {"name":')


@pytest.fixture(scope="module")
def tiny() -> Target:
    from exactspec.target.exact import ExactTarget

    return ExactTarget(RandomWeights("llama"), threads=2, context=512)


def matches(kind: str, text: str) -> bool:
    if kind == "schema":
        jsonschema.validate(json.loads(text), SCHEMA)
        return True
    if kind == "choice":
        return text in ("north", "nowhere", 'south\n"west"', "östlich")
    pattern = "[0-9]{2}(-[a-c]{3,9})+x" if kind == "regex" else "[a-z]{1,12}=[a-z]{1,12}(,[a-z]{1,12}=[a-z]{1,12})*"
    return re.fullmatch(pattern, text) is not None


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("kind", CONSTRAINTS)
def test_drafts_change_nothing(tiny: Target, kind: str, temperature: float) -> None:
    params = SamplingParams(max_tokens=60, temperature=temperature, seed=5, constraint=CONSTRAINTS[kind])
    plain = Engine(tiny, ByteTokenizer(), draft="none").generate(PROMPT, params)
    if plain.finish_reason == "stop":
        assert plain.token_ids[-1] == EOS
        assert matches(kind, plain.text)
    text = [*PROMPT, *plain.token_ids]
    drafters: list[Any] = [
        "auto",
        Oracle(text, length=9, wrong_every=4, vocab_size=260),
        RandomTree(vocab_size=260, text=text, nodes=30),
    ]
    for draft in drafters:
        found = Engine(tiny, ByteTokenizer(), draft=draft, prefill_chunk=11).generate(PROMPT, params)
        assert found.token_ids == plain.token_ids, draft
        assert found.finish_reason == plain.finish_reason
    assert found.metrics.tau > 1.2  # the random trees were accepted in part


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("kind", CONSTRAINTS)
def test_answers_match(kind: str, seed: int) -> None:
    """A model of noise that ends its answers: every answer that ended by itself matches."""
    target = hash_target(vocab_size=260, order=3, scale=4.0)
    params = SamplingParams(max_tokens=400, temperature=1.0, seed=seed, constraint=CONSTRAINTS[kind])
    done = Engine(target, ByteTokenizer()).generate(PROMPT, params)
    if done.finish_reason == "stop":
        assert matches(kind, done.text), done.text
    else:
        assert kind in ("schema", "grammar")  # noise may go on with blanks or pairs; the others are short


def two_digits_then_x(prefix: Sequence[int]) -> set[int]:
    """What may follow in the language [0-9]{2}x?, written out."""
    if len(prefix) < 2:
        return set(b"0123456789")
    return {ord("x"), EOS} if len(prefix) == 2 else {EOS}


@pytest.mark.parametrize("drafted", [False, True])
def test_greedy_equals_a_masked_loop(drafted: bool) -> None:
    target = hash_target(vocab_size=260, order=None)
    constraint = Constraint("regex", "[0-9]{2}x?")
    for start in range(20):
        prompt, expected = [start, 3], []
        while EOS not in expected:
            row = target._logits([*prompt, *expected]).astype(float)
            expected.append(max(sorted(two_digits_then_x(expected)), key=lambda t: row[t]))
        draft: Any = Oracle([*prompt, *expected], length=5) if drafted else "none"
        done = Engine(target, ByteTokenizer(), draft=draft).generate(prompt, SamplingParams(constraint=constraint))
        assert list(done.token_ids) == expected
        assert done.finish_reason == "stop"


def test_an_answer_ends_only_where_it_may() -> None:
    target = script_target(1, [EOS] * 10)
    done = Engine(target, ByteTokenizer()).generate([1], SamplingParams(constraint=Constraint("regex", "[3-5]{4}")))
    assert (done.text, done.finish_reason) == ("3333", "stop")


def test_penalties_bias_and_logprobs_beside_a_constraint() -> None:
    """The constraint comes after bias; logprobs are of the raw row."""
    target = script_target(1, list(b"zzzzzzzz"))
    params = SamplingParams(
        constraint=Constraint("regex", "[a-c]{3}"), logit_bias={ord("b"): 5.0}, logprobs=1, frequency_penalty=2.0
    )
    done = Engine(target, ByteTokenizer()).generate([1], params)
    assert done.text == "bbb"  # b loses 2 at each use: 5, 3, 1 against 0
    assert [t.top[0][0] for t in done.tokens] == [ord("z")] * 3 + [done.tokens[3].top[0][0]]


def test_drafts_are_cut_before_they_cost_rows() -> None:
    """Drafted 4, 5, z, 6: the row of z and what follows is not computed."""
    target = script_target(1, list(b"456"))
    draft = Raw(DraftTree.chain(list(b"45z6"), source="raw"))
    done = Engine(target, ByteTokenizer(), draft=draft).generate(
        [1], SamplingParams(constraint=Constraint("regex", "[0-9]{3}"))
    )
    assert done.text == "456"
    assert target.rows[0] == 3


def test_branches_are_cut_each_by_itself() -> None:
    grammars = Grammars(ByteTokenizer(), vocab_size=300)
    matcher = grammars.matcher(Constraint("regex", "a(b|c)d?"))
    #        a     b    z    d    c    d    e
    tokens = list(b"abzdcde")
    parents = [-1, 0, 0, 2, 0, 4, 5]
    zero = np.zeros(7, dtype=np.int64)
    tree = DraftTree(np.array(tokens), np.array(parents), zero, np.ones(7, dtype=np.float32), zero - 1, ("raw",))
    fitted = matcher.fit(tree)
    assert bytes(fitted.tokens.tolist()) == b"abcd"
    assert fitted.parents.tolist() == [-1, 0, 0, 2]
    matcher.take(ord("a"))
    assert bytes(matcher.fit(DraftTree.chain(list(b"bd"), source="raw")).tokens.tolist()) == b"bd"
    assert not len(matcher.fit(tree))


def test_ids_without_text_and_past_the_tokenizer_are_banned() -> None:
    matcher = Grammars(ByteTokenizer(), vocab_size=300).matcher(Constraint("regex", "(?s:.*)"))
    row = np.zeros(300)
    matcher.ban(row)
    assert np.isfinite(row[:128]).all()
    assert np.isinf(row[257:]).all()
    assert row[EOS] == 0


def test_a_bias_that_leaves_nothing_ends_the_request_alone() -> None:
    engine = Engine(script_target(1, list(b"12")), ByteTokenizer())
    bias = {ord(c): -100.0 for c in "0123456789"}
    with pytest.raises(Unanswerable):
        engine.generate([1], SamplingParams(constraint=Constraint("regex", "[0-9]+"), logit_bias=bias))
    assert engine.generate([1], SamplingParams(max_tokens=2)).text == "12"


def test_a_constraint_that_becomes_too_complex_ends_the_request_alone() -> None:
    """Found out at the first masks, not when it is compiled."""
    engine = Engine(hash_target(vocab_size=260), ByteTokenizer())
    with pytest.raises(Unanswerable, match="cannot be followed"):
        engine.generate([1], SamplingParams(constraint=Constraint("regex", "a{1000000}{1000}")))
    assert len(engine.generate([1], SamplingParams(max_tokens=2)).token_ids) == 2


def test_a_grammar_that_copies_nothing_still_drafts_after_the_request() -> None:
    """A draft that never fits is no failure of the drafter: it goes on for what fits."""
    text = list(b"0123456789" * 3)
    target = script_target(2, text)
    engine = Engine(target, ByteTokenizer(), draft=Oracle([1, 1, *text]))
    done = engine.generate([1, 1], SamplingParams(constraint=Constraint("regex", "[0-9]{30}"), max_tokens=30))
    assert bytes(done.token_ids) == bytes(text)
    assert done.metrics.num_steps < 15


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("regex", "(unclosed"),
        ("grammar", "start: missing"),
        ("grammar", "no grammar at all"),
        ("json_schema", '{"type": "wrong"}'),
        ("json_schema", '{"$ref": "#/nowhere"}'),
        ("grammar", "start: " + "(" * 40_000 + '"a"' + ")" * 40_000),
    ],
)
def test_what_cannot_be_compiled_is_refused_before_any_work(kind: str, text: str) -> None:
    target = hash_target(vocab_size=260)
    with pytest.raises(ValueError, match="constraint cannot be used"):
        Engine(target, ByteTokenizer()).generate([1], SamplingParams(constraint=Constraint(kind, text)))
    assert target.forwards == 0


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Constraint("xml", "a"), "one of json_object"),
        (lambda: Constraint("regex"), "needs a text"),
        (lambda: Constraint("json_object", "{}"), "takes no text"),
        (lambda: Constraint("json_schema", "{"), "no JSON"),
        (lambda: Constraint("json_schema", "[" * 50_000), "no JSON"),
        (lambda: Constraint("json_schema", "[1]"), "must be an object"),
        (lambda: Constraint("regex", "a" * (MAX_CHARACTERS + 1)), "make it shorter"),
        (lambda: Constraint.schema({"a": {1, 2}}), "JSON-like"),
        (lambda: Constraint.choice([]), "non-empty"),
        (lambda: SamplingParams(constraint=CONSTRAINTS["regex"], min_tokens=1), "min_tokens"),
        (lambda: SamplingParams(constraint=CONSTRAINTS["regex"], ignore_eos=True), "ignore_eos"),
        (lambda: SamplingParams(constraint="[a-z]"), "must be a Constraint"),  # type: ignore[arg-type]
    ],
)
def test_a_bad_description_says_so(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_a_pattern_that_unfolds_without_end_holds_nobody_up() -> None:
    """The interpreter stands still meanwhile, so it is the processor's time that counts. Ordinary ones stay allowed."""
    grammars = Grammars(ByteTokenizer(), vocab_size=260)
    grammars.prepare()
    words = [f"{i * 7919 % 10007}-{i}" for i in range(5000)]
    for constraint in (
        Constraint.choice(words),
        Constraint.schema({"type": "object", "properties": {word: {"type": "string"} for word in words[:500]}}),
        Constraint("regex", r"\p{L}{1,5000}"),
    ):
        grammars.matcher(constraint)
    start = time.process_time()
    with contextlib.suppress(ValueError):  # whether it is refused now or at a later token is the library's business
        grammars.matcher(Constraint("regex", "(a{1000}){1000}"))
    assert time.process_time() - start < 0.6


def test_a_deep_description_does_not_end_the_process() -> None:
    """A chain of rules that overflows an ordinary stack; in a child, which would die alone."""
    rules = "start: r0\n" + "".join(f"r{i}: r{i + 1}\n" for i in range(6000)) + 'r6000: "a"'
    code = (
        "from scripted import ByteTokenizer\n"
        "from exactspec.constraint import Constraint\n"
        "from exactspec.grammars import Grammars\n"
        f"m = Grammars(ByteTokenizer(), vocab_size=260).matcher(Constraint('grammar', {rules!r}))\n"
        "print(m.allows(97), m.allows(98))"
    )
    tests = str(Path(__file__).parent)
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": f"{tests}:{os.environ.get('PYTHONPATH', '')}"},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["True", "False"]


def test_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    engine = Engine(hash_target(vocab_size=260), ByteTokenizer())
    with pytest.raises(ValueError, match="exactspec\\[structured\\]"):
        engine.generate([1], SamplingParams(constraint=CONSTRAINTS["regex"]))
    assert len(engine.generate([1], SamplingParams(max_tokens=3)).token_ids) == 3


def test_without_an_end_token() -> None:
    with pytest.raises(ValueError, match="ends an answer"):
        Grammars(ByteTokenizer(eos=()), vocab_size=260).prepare()


def test_a_session_follows_each_turn_anew(tiny: Target) -> None:
    session = Engine(tiny, ByteTokenizer()).session()
    params = SamplingParams(max_tokens=60, constraint=CONSTRAINTS["choice"])
    first = session.generate(PROMPT, params)
    again = session.generate(PROMPT, params)
    assert first.text == again.text
    assert matches("choice", first.text)


def test_a_target_that_gives_no_logits_is_not_asked_twice() -> None:
    """A greedy constrained row whose best token fits needs no look at the row; one that does not fit, does."""
    asked: list[int] = []

    class Watching(ListTarget):
        def forward(self, segments: Any) -> Any:
            rows = super().forward(segments)
            asked.extend(int(w) for s in segments for w in s.want)
            return rows

    target = Watching(script_target(1, list(b"1z3"))._logits, vocab_size=300)
    done = Engine(target, ByteTokenizer(), draft="none").generate(
        [1], SamplingParams(constraint=Constraint("regex", "[0-9]{3}"))
    )
    assert done.text == "103"
    assert set(asked) == {3}
