"""On the exact target: whatever is drafted, and however the prompt is cut, the tokens are those of plain decoding."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from scripted import ByteTokenizer, Oracle, RandomTree
from tiny_weights import RandomWeights

from exactspec.engine import Engine
from exactspec.params import SamplingParams
from exactspec.target.base import Target

LENGTH = 220
PARAMS = {
    "greedy": SamplingParams(max_tokens=LENGTH, ignore_eos=True),
    "sampled": SamplingParams(max_tokens=LENGTH, ignore_eos=True, temperature=1.0, top_p=0.9, seed=21),
}


def drafters(text: Sequence[int], vocab_size: int) -> dict[str, Any]:
    return {
        "copy": "copy",
        "copyspec": "copyspec",
        "recycle": "recycle",
        "auto": "auto",
        "oracle": Oracle(text, length=12),
        "often wrong": Oracle(text, length=24, wrong_every=7, vocab_size=vocab_size),
        "liar": Oracle([(t + 1) % vocab_size for t in text], length=9),
        "random tree": RandomTree(vocab_size=vocab_size, text=text, nodes=40),
    }


def compare(target: Target, tokenizer: Any, prompt: list[int], params: SamplingParams) -> None:
    plain = Engine(target, tokenizer, draft="none").generate(prompt, params)
    assert len(plain.token_ids) == LENGTH
    text = [*prompt, *plain.token_ids]
    for name, draft in drafters(text, target.vocab_size).items():
        found = Engine(target, tokenizer, draft=draft, prefill_chunk=37).generate(prompt, params)
        assert found.token_ids == plain.token_ids, name
        if name in ("oracle", "often wrong", "random tree"):
            assert found.metrics.tau > 2, name  # the drafts were there, and were accepted
    session = Engine(target, tokenizer, draft="copy").session()
    session.generate(prompt[: len(prompt) // 2], SamplingParams(max_tokens=9))
    again = session.generate(prompt, params)
    assert again.metrics.cached_tokens >= len(prompt) // 2
    assert again.token_ids == plain.token_ids


@pytest.fixture(scope="module", params=["llama", "qwen2"])
def tiny(request: pytest.FixtureRequest) -> Target:
    from exactspec.target.exact import ExactTarget

    return ExactTarget(RandomWeights(request.param), threads=2, context=1024)


@pytest.mark.parametrize("params", PARAMS)
@pytest.mark.parametrize("start", [30, 120, 250])
def test_tiny(tiny: Target, start: int, params: str) -> None:
    """Roots pass the borders of attention chunks at 128 and 256."""
    prompt = [(7 * i + i // 11) % 256 for i in range(start)]
    compare(tiny, ByteTokenizer(eos=()), prompt, PARAMS[params])


@pytest.mark.model
@pytest.mark.parametrize("params", PARAMS)
def test_smollm2(named_model: Callable[[str], Path], params: str) -> None:
    engine = Engine.from_pretrained(str(named_model("smollm2-135m")), context=2048)
    code = "def area(w, h):\n    return w * h\n\ndef volume(w, h, d):\n    return area(w, h) * d\n"
    prompt = engine.encode([{"role": "user", "content": f"Add a docstring to each function:\n{code}"}])
    compare(engine.target, engine.tokenizer, prompt, PARAMS[params])
