"""Field cases 18 and 19: a drafting model with another tokenizer, or nearly the same vocabulary; 26: its state."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from field_cases.conftest import MakeEngine
from scripted import ByteTokenizer, Clock, IdTokenizer, ListTarget, hash_target, script_target
from tiny_tokenizers import metadata_of, train

from exactspec.drafters import ModelDrafter
from exactspec.drafters.base import DraftBudget, State
from exactspec.engine import Engine
from exactspec.params import SamplingParams, Speculation
from exactspec.target.base import Target
from exactspec.target.tokenizer_file import FileTokenizer
from exactspec.target.tokenizer_gguf import gguf_tokenizer
from exactspec.tree import DraftTree

PLAIN = Speculation(draft="none")
PROMPTS = ("a", "naïve café - 3 × 4", "    indented\tcode", " ".join(f"word{i} and more" for i in range(50)))


@pytest.fixture(scope="module")
def bpe() -> FileTokenizer:
    return gguf_tokenizer(*metadata_of("gpt-2", *train()))


def knowing(tokenizer: FileTokenizer, text: bytes) -> ListTarget:
    """A model with this tokenizer that knows the text."""

    def logits(path: list[int]) -> Any:
        row = np.linspace(0, 0.5, tokenizer.vocab_size, dtype=np.float32)
        read = b"".join(tokenizer.token_bytes(token) for token in path)
        if text.startswith(read) and len(read) < len(text):
            row[tokenizer.encode(text[len(read) :].decode("utf-8", "ignore"))[0]] = 12.0
        return row

    return ListTarget(logits, vocab_size=tokenizer.vocab_size)


@pytest.mark.parametrize("length", [0, 1, 4])
@pytest.mark.parametrize("prompt", PROMPTS)
def test_18_another_tokenizer(prompt: str, length: int, bpe: FileTokenizer) -> None:
    answer = ", naïve – and so on.\n    return (x + 1)  # 3 × 4 ✓ again\n\n"[:48]
    script = list(answer.encode())
    clock = Clock()
    target = script_target(len(prompt.encode()), script, before=clock.before)
    model = knowing(bpe, (prompt + answer).encode())
    drafter = ModelDrafter(model, bpe, target_tokenizer=ByteTokenizer(eos=()), clock=clock)
    engine = Engine(target, ByteTokenizer(eos=()), draft_models={"other": drafter})
    params = SamplingParams(max_tokens=len(script))
    spec = Speculation(draft="model:other", draft_length=length)
    done = engine.generate(prompt, params, speculation=spec)
    assert done.token_ids == tuple(script)
    assert done.text == answer
    if length != 1:  # one token ahead shows no end of a word
        assert done.metrics.accepted_by_source["model"] >= 20
    sampled = SamplingParams(max_tokens=30, temperature=2.0, seed=4)
    plain = engine.generate(prompt, sampled, speculation=PLAIN)
    assert engine.generate(prompt, sampled, speculation=spec).token_ids == plain.token_ids


@pytest.mark.parametrize("prompt", PROMPTS)
def test_18_on_models_of_every_kind(prompt: str, make_engine: MakeEngine, bpe: FileTokenizer) -> None:
    """Random models: bytes that are no text, and next to nothing is accepted."""
    model = hash_target(vocab_size=bpe.vocab_size, order=2)
    engine = make_engine(eos=(), max_length=2048)
    engine = Engine(
        engine.target,
        engine.tokenizer,
        draft_models={"other": ModelDrafter(model, bpe, target_tokenizer=engine.tokenizer)},
    )
    for params in (SamplingParams(max_tokens=48), SamplingParams(max_tokens=48, temperature=1.0, seed=2)):
        plain = engine.generate(prompt, params, speculation=PLAIN)
        for length in (0, 4):
            spec = Speculation(draft="model:other", draft_length=length)
            assert engine.generate(prompt, params, speculation=spec).token_ids == plain.token_ids


def small(vocab_size: int, seed: int) -> Target:
    from tiny_weights import RandomWeights

    from exactspec.target.exact import ExactTarget

    return ExactTarget(RandomWeights(vocab_size=vocab_size, seed=seed, num_layers=1), threads=1, context=512)


@pytest.mark.parametrize("sizes", [(512, 500), (500, 512)], ids=["a", "b"])
def test_19_tables_padded_to_different_sizes(sizes: tuple[int, int]) -> None:
    """Ids from 500 on stand for nothing. The drafting model has the target's weights but for its size, or others."""
    prompt = "def f(x):\n    return"
    target = small(sizes[0], seed=0)
    for seed in (0, 1):
        drafter = ModelDrafter(
            small(sizes[1], seed=seed), IdTokenizer(sizes[1]), target_tokenizer=IdTokenizer(sizes[0])
        )
        assert drafter.difference is None
        engine = Engine(target, IdTokenizer(sizes[0]), draft_models={"small": drafter})
        spec = Speculation(draft="model:small", draft_length=3)
        for params in (SamplingParams(max_tokens=40), SamplingParams(max_tokens=40, temperature=1.5, seed=9)):
            plain = engine.generate(prompt, params, speculation=PLAIN)
            done = engine.generate(prompt, params, speculation=spec)
            assert done.token_ids == plain.token_ids
            assert done.metrics.num_steps <= 40


def test_19_a_history_with_ids_that_the_model_lacks() -> None:
    target = hash_target(vocab_size=512)
    model = hash_target(vocab_size=500)
    drafter = ModelDrafter(model, IdTokenizer(500), target_tokenizer=IdTokenizer(512), length=2)
    fixed = Speculation(draft="self", draft_length=2)  # all that is drafted is verified
    engine = Engine(target, IdTokenizer(512), draft=drafter, speculation=fixed)
    prompt = [1, 505, 2, 511, 3, 500]
    params = SamplingParams(max_tokens=60, temperature=2.0, seed=1, logit_bias={505: 4.0, 500: 4.0})
    done = engine.generate(prompt, params, record_steps=True)
    plain = engine.generate(prompt, params, speculation=PLAIN)
    assert done.token_ids == plain.token_ids
    assert max(done.token_ids) >= 500
    assert all(step.rows == 3 for step in done.steps[:-2])  # it went on drafting, switched off by nothing


def test_19_an_id_the_target_lacks_is_dropped() -> None:
    """(c) The model wants 505 first and 7 second."""

    def logits(path: list[int]) -> Any:
        row = np.zeros(512, dtype=np.float32)
        row[505], row[7] = 5.0, 4.5
        return row

    drafter = ModelDrafter(ListTarget(logits, vocab_size=512), IdTokenizer(512), target_tokenizer=IdTokenizer(500))
    proposed: list[DraftTree] = []

    class Seen(ModelDrafter):
        def propose(self, state: State, budget: DraftBudget) -> DraftTree:
            proposed.append(super().propose(state, budget))
            return proposed[-1]

    drafter.__class__ = Seen
    target = hash_target(vocab_size=500)
    engine = Engine(target, IdTokenizer(500), draft=drafter)
    params = SamplingParams(max_tokens=30)
    done = engine.generate([1, 2, 3], params)
    assert done.token_ids == engine.generate([1, 2, 3], params, speculation=PLAIN).token_ids
    assert any(len(tree) for tree in proposed)
    assert all((tree.tokens < 500).all() for tree in proposed)


def test_19_same_size_and_two_texts_swapped() -> None:
    """(d) As another tokenizer: named, and its text encoded anew."""

    class Swapped(ByteTokenizer):
        def encode(self, text: str, **options: Any) -> list[int]:
            return [{10: 11, 11: 10}.get(token, token) for token in super().encode(text)]

        def token_bytes(self, token: int) -> bytes:
            return super().token_bytes({10: 11, 11: 10}.get(token, token))

    answer = b"one\ntwo\nthree\nfour and\nfive and six\n"

    def logits(path: list[int]) -> Any:
        row = np.zeros(260, dtype=np.float32)
        at = len(path) - 3
        row[{10: 11}.get(answer[at], answer[at]) if 0 <= at < len(answer) else 0] = 9.0
        return row

    drafter = ModelDrafter(ListTarget(logits, vocab_size=260), Swapped(), target_tokenizer=ByteTokenizer())
    assert str(drafter.difference) == "id 10 is '\\x0b' in one and '\\n' in the other"
    engine = Engine(script_target(3, list(answer)), ByteTokenizer(), draft_models={"d": drafter})
    spec = Speculation(draft="model:d", draft_length=8)
    done = engine.generate("abc", SamplingParams(max_tokens=len(answer)), speculation=spec)
    assert done.text.encode() == answer
    assert done.metrics.accepted_by_source["model"] > len(answer) / 2


class Traced(ModelDrafter):
    proposed: list[list[int]]

    def propose(self, state: State, budget: DraftBudget) -> DraftTree:
        tree = super().propose(state, budget)
        self.proposed.append(tree.tokens.tolist())
        return tree


@pytest.mark.parametrize("kind", ["engine", "session"])
@pytest.mark.parametrize("bpe_model", [False, True], ids=["same", "other"])
def test_26_one_request_after_another(kind: str, bpe_model: bool, bpe: FileTokenizer) -> None:
    """The drafting model's state of A is no part of B's: drafts and counts are those of a fresh engine."""
    tokenizer = ByteTokenizer(eos=())

    def fresh() -> Engine:
        if bpe_model:
            model: Any = Traced(hash_target(vocab_size=bpe.vocab_size), bpe, target_tokenizer=tokenizer, length=6)
        else:
            model = Traced(hash_target(vocab_size=260), tokenizer, length=3)
        model.proposed = []
        return Engine(hash_target(vocab_size=260), tokenizer, draft=model)

    a, b = "A: " + "def f(x): return x\n" * 9, "B: eggs, milk, flour"
    params = SamplingParams(max_tokens=20, temperature=0.8, seed=3)
    alone_engine = fresh()
    alone = alone_engine.generate(b, params)
    right = alone_engine._own_drafter.proposed  # type: ignore[union-attr]
    engine = fresh()
    drafter: Any = engine._own_drafter
    slot: Any = engine.session() if kind == "session" else engine
    for _ in range(3):
        slot.generate(a, params)
        drafter.proposed.clear()
        done = slot.generate(b, params)
        assert done.token_ids == alone.token_ids
        assert drafter.proposed == right
        assert done.metrics.num_draft_tokens == alone.metrics.num_draft_tokens
