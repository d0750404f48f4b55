"""Engines for the field cases. A case that needs a model, and not a script, asks for `make_engine` and runs once for
every entry of `MODELS`; a new kind of target joins by one more entry."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import pytest
from scripted import EOS, ByteTokenizer, hash_target

from exactspec.engine import Engine
from exactspec.target.base import Target

MODELS: Mapping[str, Callable[[int], Target]] = {
    "list-order-2": lambda max_length: hash_target(vocab_size=260, order=2, max_length=max_length),
    "list-whole-path": lambda max_length: hash_target(vocab_size=260, order=None, max_length=max_length),
}
"""Name -> function of the longest context that makes a target with a vocabulary of 260 (`ByteTokenizer`)."""


class MakeEngine(Protocol):
    def __call__(self, *, max_length: int = 512, eos: Sequence[int] = (EOS,), **options: Any) -> Engine: ...


@pytest.fixture(params=list(MODELS))
def make_engine(request: pytest.FixtureRequest) -> MakeEngine:
    def make(*, max_length: int = 512, eos: Sequence[int] = (EOS,), **options: Any) -> Engine:
        return Engine(MODELS[request.param](max_length), ByteTokenizer(eos=eos), **options)

    return make
