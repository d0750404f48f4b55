"""The engine: prompts in, completions out, one step at a time."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, overload

from exactspec.budget import Cost
from exactspec.draft_names import DRAFTS, layer_draft, models_of
from exactspec.drafters import Models, make_drafter
from exactspec.drafters.base import Drafter
from exactspec.drafters.model import ModelDrafter
from exactspec.drafters.store import Stores
from exactspec.drafting import Drafting, check_drafter
from exactspec.grammars import Grammars
from exactspec.params import SamplingParams, Speculation
from exactspec.prompts import Prompt, encode_prediction, is_many, prompt_ids
from exactspec.request import Request
from exactspec.results import Completion, TokenInfo
from exactspec.session import Session
from exactspec.stream import Progress, Stream
from exactspec.target.base import Cache, Target, check_cache
from exactspec.target.cache_types import DEFAULT_CACHE_DTYPE
from exactspec.target.tokenizer import Tokenizer
from exactspec.turns import Turns

PREFILL_CHUNK = 256  # prompt rows of one forward, unless told otherwise


class Engine:
    """Runs requests on one target.

    `draft`: how to draft, a value of `Speculation.draft` or an own `Drafter`; None takes `speculation.draft`, which
    is "auto" by default. `speculation`: the other drafting options. `prefill_chunk`: prompt rows in one forward; a
    request can be cancelled between chunks. `cost`: of the target's rows, for the budget of drafts (None: the built-in
    table; `from_pretrained` measures it once a machine). `draft_models`: models to draft with, by the names that
    ``model:NAME`` gives them, and layers by theirs. None of them can change a token.
    Raises ValueError on an unknown draft, a drafter without the methods of one, a target whose cache cannot be
    rewound, or a chunk below 1.

    Thread-safe: any number of threads may generate and stream at once. Forwards run one at a time; waiting requests
    take turns step by step, in order, and each gives the tokens it gives alone. A session is for one thread at a time.
    """

    def __init__(
        self,
        target: Target,
        tokenizer: Tokenizer,
        *,
        draft: str | Drafter | None = None,
        speculation: Speculation | None = None,
        prefill_chunk: int = PREFILL_CHUNK,
        cost: Cost | None = None,
        draft_models: Models | None = None,
    ) -> None:
        if prefill_chunk < 1:
            raise ValueError(f"prefill_chunk must be >= 1, got {prefill_chunk}")
        check_cache(target)
        self.target = target
        self.tokenizer = tokenizer
        self.speculation = speculation or Speculation()
        self._own_drafter: Drafter | None = None
        if isinstance(draft, str):
            self.speculation = replace(self.speculation, draft=draft)
        elif draft is not None:
            self._own_drafter = check_drafter(draft)
        self.prefill_chunk = prefill_chunk
        self.cost = cost
        self.grammars = Grammars(tokenizer, vocab_size=target.vocab_size)
        self._stores = Stores()
        self._models: Models = {"": ModelDrafter(target, tokenizer, cost=cost), **(draft_models or {})}
        make_drafter(self.speculation, models=self._models, cost=cost)  # a model that is not there is missed now
        self._turns = Turns()

    @classmethod
    def from_pretrained(
        cls,
        name: str,
        *,
        draft: str | Drafter | None = "auto",
        speculation: Speculation | None = None,
        threads: int | None = None,
        context: int | None = None,
        cache_dtype: str = DEFAULT_CACHE_DTYPE,
        dtype: str | None = None,
        device: str | None = None,
        draft_models: Sequence[str] = (),
        progress: Callable[[str], None] | None = None,
    ) -> Engine:
        """An engine on a model given by name, path (GGUF file, safetensors folder) or Hugging Face id; ``hf:`` before a
        folder or id runs it through transformers, in float and not bit-exact (docs/targets.md).

        `threads`: None takes all cores that this process may use. `context`: longest context in tokens; None takes
        what the model states. `cache_dtype`: of keys and values, "bfloat16", "float32" or "int8". `device`: "cpu"
        (None), or "cuda" or "cuda:N" for a GPU, where keys and values are float32 (docs/gpu.md). `dtype` ("float32",
        "bfloat16"): for ``hf:`` models alone. `draft_models`: further models to draft with, by name (that of a `draft`
        ``model:NAME`` is opened anyway), with the same options, and layers (``longspec:FOLDER``). `progress`: called
        with a line of text for each slow part.
        Raises ValueError if the model or the device cannot be used or, with the figures, if memory is too small.
        """
        from exactspec.drafters.compiling import prepare
        from exactspec.live_cost import LiveCost
        from exactspec.opening import Options, open_models

        chosen = speculation or Speculation()
        if isinstance(draft, str):
            chosen = replace(chosen, draft=draft)  # refused before anything is opened
        names = (*models_of(chosen.draft), *draft_models)
        options = Options(
            threads=threads, context=context, cache_dtype=cache_dtype, dtype=dtype, device=device, progress=progress
        )
        target, drafters = open_models(name, names, options)
        if draft is None or isinstance(draft, str):
            prepare(chosen.draft, progress)
        return cls(
            target.target,
            target.tokenizer,
            draft=draft,
            speculation=speculation,
            cost=LiveCost.of(target.cost),
            draft_models=drafters,
        )

    @property
    def identity(self) -> str:
        """What equal bits are promised for."""
        return self.target.identity

    @property
    def drafts(self) -> tuple[str, ...]:
        """Ways to draft that can be asked for by name: of `DRAFTS` those whose layer is there."""
        asked = ((draft, layer_draft(draft)) for draft in DRAFTS)
        return tuple(draft for draft, layer in asked if layer is None or layer.layer in self._models)

    def drafter(self, speculation: Speculation) -> Drafter | None:
        """A drafter as requests with this `speculation` get one; None where nothing is drafted. Raises ValueError for
        a model or layer that the engine was not given."""
        return make_drafter(speculation, stores=self._stores, models=self._models, cost=self.cost)

    def encode(self, prompt: Prompt) -> list[int]:
        """The ids that one prompt stands for. Raises ValueError if it cannot be served."""
        target = self.target
        return prompt_ids(prompt, self.tokenizer, vocab_size=target.vocab_size, max_length=target.max_length)

    @overload
    def generate(
        self,
        prompt: Prompt,
        params: SamplingParams | None = ...,
        *,
        speculation: Speculation | None = ...,
        prediction: str | Sequence[int] | None = ...,
        record_steps: bool = ...,
        progress: Progress | None = ...,
    ) -> Completion: ...

    @overload
    def generate(
        self,
        prompt: list[str] | list[list[int]] | list[list[dict[str, Any]]],
        params: SamplingParams | None = ...,
        *,
        speculation: Speculation | None = ...,
        prediction: str | Sequence[int] | None = ...,
        record_steps: bool = ...,
        progress: Progress | None = ...,
    ) -> list[Completion]: ...

    def generate(
        self,
        prompt: Prompt | Sequence[Prompt],
        params: SamplingParams | None = None,
        *,
        speculation: Speculation | None = None,
        prediction: str | Sequence[int] | None = None,
        record_steps: bool = False,
        progress: Progress | None = None,
    ) -> Completion | list[Completion]:
        """Answer a prompt: a text, a list of ids, a list of messages; or a list of those, answered in order.

        `params`: greedy up to the context end by default. `speculation`: for this call alone. `prediction`: text
        or ids expected in the answer, to be copied from, as many as the context holds. `record_steps`: fill
        `Completion.steps`.
        A prompt of exactly the context's length gives no tokens and finish reason "length", as does max_tokens 0.
        Raises ValueError, before any work, on a prompt or parameter that cannot be served.
        """
        prompts = list(prompt) if is_many(prompt) else [prompt]
        ids = [self.encode(p) for p in prompts]  # type: ignore[arg-type]
        answers = []
        for one in ids:
            request = self._request(
                one, params, speculation=speculation, prediction=prediction, record_steps=record_steps
            )
            answers.append(self._stream(request, _release, progress).result())
        return answers if is_many(prompt) else answers[0]

    def stream(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        speculation: Speculation | None = None,
        prediction: str | Sequence[int] | None = None,
        record_steps: bool = False,
        progress: Progress | None = None,
    ) -> Stream:
        """As `generate`, for one prompt, chunk by chunk. Nothing is computed before the first `next`."""
        if is_many(prompt):
            raise ValueError("stream takes one prompt: start one stream for each")
        request = self._request(
            self.encode(prompt), params, speculation=speculation, prediction=prediction, record_steps=record_steps
        )
        return self._stream(request, _release, progress)

    def session(self) -> Session:
        """A conversation whose shared prefix is not computed again."""
        return Session(self)

    # What sessions share with single requests.

    def _request(
        self,
        ids: Sequence[int],
        params: SamplingParams | None,
        *,
        speculation: Speculation | None,
        prediction: str | Sequence[int] | None,
        record_steps: bool,
        cache: Cache | None = None,
        drafting: Drafting | None = None,
        drafted: int | None = None,
    ) -> Request:
        params = params or SamplingParams()
        return Request(
            self.target,
            self.tokenizer,
            prompt=ids,
            params=params,
            seed=secrets.randbits(64) if params.seed is None else params.seed,
            cache=self.target.new_cache() if cache is None else cache,
            drafting=self._drafting(speculation) if drafting is None else drafting,
            drafted=drafted,
            prediction=encode_prediction(prediction, self.tokenizer, at_most=self.target.max_length),
            record_steps=record_steps,
            matcher=None if params.constraint is None else self.grammars.matcher(params.constraint),
        )

    def _drafting(self, speculation: Speculation | None) -> Drafting:
        own = self._own_drafter if speculation is None else None
        chosen = speculation or self.speculation
        return Drafting(own or self.drafter(chosen), chosen, vocab_size=self.target.vocab_size, cost=self.cost)

    def _stream(
        self, request: Request, on_end: Callable[[Request, Completion], None], progress: Progress | None
    ) -> Stream:
        return Stream(request, advance=self._advance, on_end=on_end, progress=progress)

    def _advance(self, request: Request) -> list[TokenInfo]:
        """One prompt chunk (no tokens) or one step. The rows of a forward are valid until the next one, so the
        whole step is one turn."""
        with self._turns:
            if request.prompt_left:
                request.prefill(self.prefill_chunk)
                return []
            return request.step()


def _release(request: Request, completion: Completion) -> None:
    request.drafting.close()
