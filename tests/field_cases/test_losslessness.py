"""Field cases 5, 10, 11, 12 and 14: no drafting option changes a token, a logprob, a penalty or a seed."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from field_cases.conftest import MakeEngine
from field_cases.naive import Row, naive, row_after
from scripted import EOS, ByteTokenizer, ListTarget, script_target

from exactspec.engine import Engine
from exactspec.params import SamplingParams, Speculation

PROMPTS = (
    "one two three one two three one two",
    "x = x + 1; x = x + 1; x =",
    '{"name": "open", "path": ""} {"name": "close", "path": ""} {"name": "read", "path": ""} call the second tool',
)
MODES = ("none", "copyspec", "copy", "auto")


@pytest.mark.parametrize("prompt", PROMPTS)
def test_05_one_token_list_for_all_settings(prompt: str, make_engine: MakeEngine) -> None:
    engine = make_engine(eos=())
    right = tuple(naive(engine.target, engine.encode(prompt), 64))
    params = SamplingParams(max_tokens=64)
    settings = itertools.product(("copy", "copyspec", "auto"), (1, 2, 3, 8), (1, 4, 10, 64))
    found = {
        (draft, match, k): engine.generate(
            prompt,
            params,
            speculation=Speculation(draft=draft, min_match=match, gamma=match, max_nodes=k, block=k),
        ).token_ids
        for draft, match, k in settings
    }
    found["none"] = engine.generate(prompt, params, speculation=Speculation(draft="none")).token_ids
    assert {key for key, ids in found.items() if ids != right} == set()


def counted(frequency: float = 0.0, presence: float = 0.0, bias: dict[int, float] | None = None) -> Callable[..., Row]:
    """The formulas written out: logit - frequency * count so far - presence * (count > 0) + bias."""

    def process(row: Row, prompt: list[int], output: list[int]) -> Row:
        for token in set(output):
            row[token] -= frequency * output.count(token) + presence
        for token, value in (bias or {}).items():
            row[token] = -np.inf if value <= -100 else row[token] + value
        return row

    return process


@pytest.mark.parametrize("mode", MODES)
def test_10_penalties_and_bias_count(mode: str, make_engine: MakeEngine) -> None:
    engine = make_engine(draft=mode, eos=())
    prompt = "Repeat the word ping: ping ping ping"
    ids = engine.encode(prompt)
    plain = naive(engine.target, ids, 24)
    banned = plain[3]
    texts: dict[float, tuple[int, ...]] = {}
    for value in (-1.5, 0.0, 1.5):
        done = engine.generate(prompt, SamplingParams(max_tokens=24, frequency_penalty=value))
        assert done.token_ids == tuple(naive(engine.target, ids, 24, process=counted(frequency=value)))
        texts[value] = done.token_ids
    done = engine.generate(prompt, SamplingParams(max_tokens=24, presence_penalty=2.0))
    assert done.token_ids == tuple(naive(engine.target, ids, 24, process=counted(presence=2.0)))
    done = engine.generate(prompt, SamplingParams(max_tokens=24, logit_bias={banned: -100}))
    assert done.token_ids == tuple(naive(engine.target, ids, 24, process=counted(bias={banned: -100})))
    assert banned not in done.token_ids
    done = engine.generate(prompt, SamplingParams(max_tokens=24, logit_bias={5: 1.25}))
    assert done.token_ids == tuple(naive(engine.target, ids, 24, process=counted(bias={5: 1.25})))
    assert engine.generate(prompt, SamplingParams(max_tokens=24, min_p=0.5)).token_ids == tuple(plain)
    sampled = SamplingParams(max_tokens=24, temperature=1.5, min_p=0.3, seed=1)
    without = engine.generate(prompt, sampled, speculation=Speculation(draft="none"))
    assert engine.generate(prompt, sampled).token_ids == without.token_ids


def test_10_the_sign_of_a_penalty_shows() -> None:
    """A model that likes to repeat: its row favours the last token, slightly."""

    def logits(path: list[int]) -> Any:
        row = np.linspace(1.0, 0.0, 260, dtype=np.float32)
        row[path[-1]] += 1.0
        return row

    for mode in MODES:
        engine = Engine(ListTarget(logits, vocab_size=260), ByteTokenizer(eos=()), draft=mode)
        ids = {v: engine.generate("ping ping", SamplingParams(max_tokens=24, frequency_penalty=v)) for v in (-1.5, 1.5)}
        assert len(set(ids[-1.5].token_ids)) == 1
        assert len(set(ids[1.5].token_ids)) > 5


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("minimum", [0, 1, 3, 5, 6])
def test_11_minimum_length(minimum: int, mode: str) -> None:
    """At output positions 2 to 8 EOS scores 10 and id 40 scores 9."""
    prompt = [7, 8, 40, 40, 40, EOS, 40, EOS, 7, 8, EOS, EOS, 7, 8]

    def logits(path: list[int]) -> Any:
        row = np.zeros(300, dtype=np.float32)
        at = len(path) - len(prompt)
        row[EOS], row[40] = (10, 9) if 2 <= at <= 8 else (0, 9)
        return row

    engine = Engine(ListTarget(logits, vocab_size=300), ByteTokenizer())
    spec = Speculation(draft=mode, max_nodes=8, gamma=2, block=8, min_match=1)
    done = engine.generate(prompt, SamplingParams(max_tokens=20, min_tokens=minimum), speculation=spec)
    # Positions 0 and 1 want 40 anyway.
    assert done.token_ids == (40,) * max(minimum, 2) + (EOS,)
    assert done.finish_reason == "stop"


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("minimum", [0, 2, 3, 5])
def test_11_stop_strings_before_the_minimum_are_text(minimum: int, mode: str) -> None:
    script = b"a##b##c##d"
    prompt = script.decode() * 2
    engine = Engine(script_target(len(prompt), list(script)), ByteTokenizer())
    spec = Speculation(draft=mode, max_nodes=8, block=8)
    params = SamplingParams(max_tokens=10, min_tokens=minimum, stop=("##",))
    done = engine.generate(prompt, params, speculation=spec)
    # The first match that ends at or after token number `minimum`.
    end = next(i for i in (3, 6, 9) if i >= minimum)
    assert done.token_ids == tuple(script[:end])
    assert done.text == script[: end - 2].decode()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_12_logprobs_are_the_models(temperature: float, mode: str, make_engine: MakeEngine) -> None:
    engine = make_engine(draft=mode, eos=())
    prompt = [5, 6, 7, 8, 9, 10] * 5
    params = SamplingParams(max_tokens=40, temperature=temperature, seed=3, logprobs=3)
    done = engine.generate(prompt, params)
    assert len(done.tokens) == 40
    history = list(prompt)
    for info in done.tokens:
        row = row_after(engine.target, history)
        raw = row - np.log(np.exp(row - row.max()).sum()) - row.max()
        assert info.logprob == pytest.approx(raw[info.id], abs=1e-6)
        assert info.logprob is not None
        assert info.logprob < 0
        best = np.argsort(-raw, kind="stable")[:3]
        assert [t for t, _ in info.top] == best.tolist()
        assert [p for _, p in info.top] == pytest.approx(raw[best].tolist(), abs=1e-6)
        if temperature == 0:
            assert info.top[0] == (info.id, info.logprob)
        history.append(info.id)


@pytest.mark.parametrize("mode", MODES)
def test_14_seeds(mode: str, make_engine: MakeEngine) -> None:
    engine = make_engine(draft=mode, eos=())

    def ask(seed: int | None) -> Any:
        params = SamplingParams(max_tokens=32, temperature=1.0, top_p=0.9, seed=seed)
        return engine.generate("Three unusual fruit names:", params)

    first = ask(7)
    for i in range(9):
        ask(1 + i % 5)
        again = ask(7)
        assert (again.token_ids, again.text, again.seed) == (first.token_ids, first.text, 7)
    assert ask(8).token_ids != first.token_ids
    one, two = ask(None), ask(None)
    assert one.seed != two.seed
    assert one.token_ids != two.token_ids
    assert ask(one.seed).token_ids == one.token_ids


def test_14_another_process_gives_the_same() -> None:
    """Nothing of the process (hash seed, addresses, times) is in a random number."""
    script = (
        f"import sys; sys.path[:0] = {[str(Path(__file__).parents[1])]!r}\n"
        "from scripted import *; from exactspec.engine import Engine; from exactspec.params import SamplingParams\n"
        "e = Engine(hash_target(vocab_size=260), ByteTokenizer(eos=()), draft=sys.argv[1])\n"
        "p = SamplingParams(max_tokens=32, temperature=1.0, top_p=0.9, seed=7)\n"
        "print(e.generate('Three unusual fruit names:', p).token_ids)\n"
    )
    runs = [
        subprocess.run([sys.executable, "-c", script, mode], capture_output=True, text=True, check=True).stdout
        for mode in ("none", "copy")
    ]
    assert runs[0] == runs[1]
    assert runs[0].startswith("(")
