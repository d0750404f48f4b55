"""What a caller may ask for: `SamplingParams` and `Speculation`, frozen and validated on construction."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from exactspec.constraint import Constraint
from exactspec.draft_names import DRAFTS as DRAFTS
from exactspec.draft_names import check_draft


def _require(ok: bool, message: str) -> None:
    if not ok:
        raise ValueError(message)


def _finite(name: str, value: float) -> None:
    _require(isinstance(value, (int, float)) and math.isfinite(value), f"{name} must be a finite number, got {value!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How the target's rows become tokens, and when to stop. Names and meanings follow OpenAI's and vLLM's.

    Greedy by default (`temperature` 0). Processor order: penalties (repetition counts the prompt; presence and
    frequency the output), bias, minimum tokens, constraint, temperature, top-k, top-p, min-p. Ties go to the lowest id.

    `max_tokens`: most tokens to emit (None: up to the context end). `min_tokens`: no EOS before that many were
    emitted; a stop string that would match earlier is ignored too. `stop`: strings; text is cut before the match.
    `stop_token_ids`: further ids that end the answer. `ignore_eos`: go on past EOS. `seed`: None draws one, which the
    completion returns. `choice`: number of the choice of one request (part of the random key). `logprobs`: None for
    none, k for the chosen token and the k best, of the raw distribution. `constraint`: what the answer must look like
    (extra ``structured``); an ending id comes only where the answer may end, so `min_tokens` and `ignore_eos` cannot
    be kept beside it.
    Raises ValueError, naming the field, on anything out of range.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    max_tokens: int | None = None
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    seed: int | None = None
    choice: int = 0
    logprobs: int | None = None
    constraint: Constraint | None = None

    def __post_init__(self) -> None:
        for name in ("temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty"):
            _finite(name, getattr(self, name))
        _require(self.temperature >= 0, f"temperature must be >= 0, got {self.temperature}")
        _require(self.top_k >= 0, f"top_k must be >= 0 (0 switches it off), got {self.top_k}")
        _require(0 < self.top_p <= 1, f"top_p must be in (0, 1], got {self.top_p}")
        _require(0 <= self.min_p <= 1, f"min_p must be in [0, 1], got {self.min_p}")
        ok = 0.01 <= self.repetition_penalty <= 100  # of far smaller and larger ones, logits become infinite
        _require(ok, f"repetition_penalty must be in [0.01, 100], got {self.repetition_penalty}")
        for name in ("presence_penalty", "frequency_penalty"):
            _require(-2 <= getattr(self, name) <= 2, f"{name} must be in [-2, 2], got {getattr(self, name)}")
        _require(self.max_tokens is None or self.max_tokens >= 0, f"max_tokens must be >= 0, got {self.max_tokens}")
        _require(self.min_tokens >= 0, f"min_tokens must be >= 0, got {self.min_tokens}")
        _require(
            self.max_tokens is None or self.min_tokens <= self.max_tokens,
            f"min_tokens ({self.min_tokens}) must not exceed max_tokens ({self.max_tokens})",
        )
        stop = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)
        _require(all(isinstance(s, str) and s for s in stop), "stop must hold non-empty strings")
        object.__setattr__(self, "stop", stop)
        object.__setattr__(self, "stop_token_ids", tuple(int(t) for t in self.stop_token_ids))
        bias = {int(k): float(v) for k, v in self.logit_bias.items()}
        for token, value in bias.items():
            _finite(f"logit_bias[{token}]", value)
            _require(-100 <= value <= 100, f"logit_bias[{token}] must be in [-100, 100], got {value}")
        object.__setattr__(self, "logit_bias", bias)
        _require(self.seed is None or 0 <= self.seed < 2**64, f"seed must be in [0, 2**64), got {self.seed}")
        _require(0 <= self.choice < 2**32, f"choice must be in [0, 2**32), got {self.choice}")
        _require(self.logprobs is None or 0 <= self.logprobs <= 20, f"logprobs must be in [0, 20], got {self.logprobs}")
        if self.constraint is not None:
            ok = isinstance(self.constraint, Constraint)
            _require(ok, f"constraint must be a Constraint, got {type(self.constraint).__name__}")
            _require(self.min_tokens == 0, "min_tokens cannot be kept beside a constraint: leave it out")
            _require(not self.ignore_eos, "ignore_eos cannot be kept beside a constraint: leave it out")

    @property
    def greedy(self) -> bool:
        return self.temperature == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Speculation:
    """How to draft. No field can change the output, only the speed.

    `draft`: one of `DRAFTS`, or a name with a model in it (`exactspec.draft_names`). `max_nodes`: most drafted tokens
    verified in one step. `min_match`: shortest match the `copy` drafter copies from, in tokens. `gamma`, `block`: match
    length and draft length of the `copyspec` rule (arXiv 2502.08923). `draft_length`: where a model drafts, the tokens
    of every draft, a chain, as published protocols have it; 0: trees, as deep and as often as pays. `store`: name of a
    store of texts that the engine's requests of that name share and copy from ("": none); `store_bytes`: the most it
    may hold, fixed by the first request that names it.
    Raises ValueError, naming the field.
    """

    draft: str = "auto"
    max_nodes: int = 48
    min_match: int = 2
    gamma: int = 3
    block: int = 10
    draft_length: int = 0
    store: str = ""
    store_bytes: int = 16_000_000

    def __post_init__(self) -> None:
        check_draft(self.draft)
        for name in ("max_nodes", "min_match", "gamma", "block"):
            value = getattr(self, name)
            ok = isinstance(value, int) and 1 <= value <= 1024
            _require(ok, f"{name} must be an integer in [1, 1024], got {value!r}")
        ok = isinstance(self.draft_length, int) and 0 <= self.draft_length <= 64
        _require(ok, f"draft_length must be an integer in [0, 64], got {self.draft_length!r}")
        _require(isinstance(self.store, str), f"store must be a name, got {self.store!r}")
        ok = isinstance(self.store_bytes, int) and 1000 <= self.store_bytes <= 2**32
        _require(ok, f"store_bytes must be an integer in [1000, 2**32], got {self.store_bytes!r}")
