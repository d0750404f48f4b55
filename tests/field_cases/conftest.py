"""Engines for the field cases. A case that needs a model, and not a script, asks for `make_engine` and runs once for
every entry of `MODELS`; a new kind of target joins by one more entry."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import pytest
from scripted import EOS, ByteTokenizer, hash_target
from tiny_weights import RandomWeights

from exactspec.engine import Engine
from exactspec.target.base import Target


def exact(family: str) -> Callable[[int], Target]:
    def make(max_length: int) -> Target:
        from exactspec.target.exact import ExactTarget

        return ExactTarget(RandomWeights(family), threads=1, context=max_length)

    return make


MODELS: Mapping[str, Callable[[int], Target]] = {
    "list-order-2": lambda max_length: hash_target(vocab_size=260, order=2, max_length=max_length),
    "list-whole-path": lambda max_length: hash_target(vocab_size=260, order=None, max_length=max_length),
    "exact-llama": exact("llama"),
    "exact-qwen2": exact("qwen2"),
}
"""Name -> function of the longest context that makes a target with a vocabulary of 260 (`ByteTokenizer`)."""


class MakeEngine(Protocol):
    def __call__(self, *, max_length: int = 512, eos: Sequence[int] = (EOS,), **options: Any) -> Engine: ...


@pytest.fixture(scope="session")
def targets() -> dict[tuple[str, int], Target]:
    """Made once: kernels and threads of an exact target take a moment to start."""
    return {}


@pytest.fixture(params=list(MODELS))
def make_engine(request: pytest.FixtureRequest, targets: dict[tuple[str, int], Target]) -> MakeEngine:
    def make(*, max_length: int = 512, eos: Sequence[int] = (EOS,), **options: Any) -> Engine:
        key = (request.param, max_length)
        if key not in targets:
            targets[key] = MODELS[request.param](max_length)
        return Engine(targets[key], ByteTokenizer(eos=eos), **options)

    return make
