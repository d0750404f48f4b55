"""What a first request would otherwise wait for: compiled kernels, a drafter's index, the library of constraints."""

from __future__ import annotations

import logging

from exactspec.engine import Engine
from exactspec.params import SamplingParams

_log = logging.getLogger(__name__)


def warm_up(engine: Engine) -> None:
    """Answer one short prompt greedily and one sampled, and prepare constraints where they can be had."""
    prompt = [token for token in (1, 2, 3, 4) * 8 if token < engine.target.vocab_size]
    prompt = prompt[: max(1, engine.target.max_length - 8)]
    for params in (
        SamplingParams(max_tokens=4, ignore_eos=True),
        SamplingParams(max_tokens=2, ignore_eos=True, temperature=1.0, top_p=0.9, seed=0),
    ):
        engine.generate(prompt, params)
    try:
        engine.grammars.prepare()
    except ValueError as error:
        _log.warning("no constraints: %s", error)
