"""One running request: its history, cache, sampler and counters, and the two halves of a step.

Invariant between steps: the history has n tokens and the cache n - 1; the root is ``history[-1]``.
``step`` is ``propose``, ``segment``, a forward, ``take``; ``prefill`` is ``prompt_segment``, a forward,
``take_prompt``. The scheduler runs one forward between the halves of many requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from time import perf_counter

import numpy as np

from exactspec.counts import DraftCounts
from exactspec.drafters.base import Verified
from exactspec.drafting import Drafting
from exactspec.features import PromptFeatures
from exactspec.grammars import Matcher
from exactspec.params import SamplingParams
from exactspec.results import Completion, Metrics, StepRecord, TokenInfo
from exactspec.sampling import Sampler
from exactspec.stopping import Stopper
from exactspec.target.base import Cache, Segment, SegmentRows, Target, Want
from exactspec.target.tokenizer import Tokenizer
from exactspec.tree import DraftTree
from exactspec.walk import Walked, credits, walk

_NO_PARENT = np.array([-1], dtype=np.int64)


@dataclass(slots=True)
class _Open:
    """What was handed out for a forward: `prompt` rows of a prompt, or a step with its `tree`. Times in seconds."""

    start: float
    prompt: int = 0
    tree: DraftTree = field(default_factory=DraftTree.empty)
    proposed: float = 0.0


class Request:
    """State of one request. Not thread-safe: the engine advances it under its lock.

    `prompt` [n >= 1] ids within the vocabulary, n <= target.max_length. `cache`: holds the first `cache.length`
    tokens of the prompt (0 for a fresh one), fewer than n; what it holds is not computed again. `drafting`: where
    `drafted` is given, its state shares that many first tokens with the prompt; else it is begun after the prefill.
    `matcher`: follows `params.constraint`, which the engine compiled.
    """

    def __init__(
        self,
        target: Target,
        tokenizer: Tokenizer,
        *,
        prompt: Sequence[int],
        params: SamplingParams,
        seed: int,
        cache: Cache,
        drafting: Drafting,
        drafted: int | None = None,
        prediction: Sequence[int] = (),
        record_steps: bool = False,
        matcher: Matcher | None = None,
    ) -> None:
        self.history = list(prompt)
        self.cache = cache
        self.drafting = drafting
        self.finish_reason: str | None = None
        self._target = target
        self._tokenizer = tokenizer
        self._params = params
        self._seed = seed
        self._drafted = drafted
        self._prediction = prediction
        self.prompt_tokens = len(prompt)
        self._cached_tokens = cache.length
        self._limit = target.max_length - len(prompt)  # most tokens to emit
        if params.max_tokens is not None:
            self._limit = min(self._limit, params.max_tokens)
        self._eos_ids = tokenizer.eos_ids
        self._sampler = Sampler(
            params,
            seed=seed,
            prompt=np.array(prompt, dtype=np.int64),
            vocab_size=target.vocab_size,
            eos_ids=self._eos_ids,
            matcher=matcher,
        )
        self._fit = None if matcher is None else matcher.fit
        self._stopper = self._new_stopper()
        self._tokens: list[TokenInfo] = []
        self._records: list[StepRecord] | None = [] if record_steps else None
        self._steps = 0
        self._counts = DraftCounts()
        self._prefill_s = self._decode_s = 0.0
        self._begun = False
        self._features = PromptFeatures()
        self._open: _Open | None = None  # the part of a step, or of the prompt, that a forward is to compute
        if self._limit == 0:
            self.finish_reason = "length"

    # -- prefill ---------------------------------------------------------------------------------------------------

    @property
    def prompt_left(self) -> int:
        """Tokens that are still to be computed before the next step: of the prompt, whose last one is the first root
        and not among them; after `forget`, of the history."""
        return max(0, len(self.history) - 1 - self.cache.length)

    @property
    def prompt_done(self) -> int:
        """Prompt tokens computed or reused."""
        return min(self.cache.length, self.prompt_tokens)

    def prefill(self, rows: int) -> None:
        """Compute the next `rows` prompt tokens at most."""
        (computed,) = self._target.forward([self.prompt_segment(rows)])
        self.take_prompt(computed)

    def prompt_segment(self, rows: int) -> Segment:
        """The next `rows` prompt tokens at most, to be computed; `take_prompt` commits them."""
        at = self.cache.length
        tokens = self.history[at : min(at + rows, len(self.history) - 1)]
        self._open = _Open(perf_counter(), prompt=len(tokens))
        return Segment.chain(self.cache, tokens, Want.NONE)

    def reuse(self, cache: Cache) -> None:
        """Go on from a cache that holds more of the prompt than the request's own, before its first step."""
        if not self.cache.length < cache.length < self.prompt_tokens or self._begun:
            raise ValueError(f"a cache of {cache.length} tokens is none that this request could go on from")
        self._cached_tokens += cache.length - self.cache.length
        self.cache.truncate(0)
        self.cache = cache

    def forget(self) -> None:
        """Free the memory of keys and values, between steps; they are computed again like a prompt before the next."""
        self._drop_cache()
        self._cached_tokens = 0

    def release(self) -> None:
        """Free the memory of keys and values, and the drafter's, of a request that has ended."""
        self.drafting.close()
        self._drop_cache()

    def give_cache(self) -> Cache:
        """Hand over the cache of a request that has ended; it holds the first ``cache.length`` tokens of `history`."""
        cache, self.cache = self.cache, self._target.new_cache()
        cache.truncate(min(cache.length, len(self.history) - 1))  # drops what is staged, too
        return cache

    def _drop_cache(self) -> None:
        """Now, whoever else holds the object; pages must not wait for a garbage collection in some other thread."""
        self.cache.truncate(0)
        if self.cache.nbytes:  # one that gives memory back only as a whole
            self.cache = self._target.new_cache()

    def take_prompt(self, rows: SegmentRows) -> None:
        """The forward of `prompt_segment` is done."""
        assert self._open is not None
        if not self._begun:
            self._features.add(
                self.cache.length, rows.hidden, most=self.drafting.wants_features, end=self.prompt_tokens
            )
        self.cache.keep(range(self._open.prompt))
        self._prefill_s += perf_counter() - self._open.start
        self._open = None

    # -- one step: propose, verify, walk, commit -------------------------------------------------------------------

    def step(self) -> list[TokenInfo]:
        """Draft, verify, walk, commit; the tokens emitted, at least one. A plain step is one with an empty tree."""
        segment = self.segment(self.propose())
        start = perf_counter()
        (rows,) = self._target.forward([segment])
        self.drafting.took(rows=len(segment.tokens), seconds=perf_counter() - start)
        return self.take(rows)

    def propose(self, *, choose: bool = True) -> DraftTree:
        """Begin a step: the tree that is worth verifying if this request has the forward to itself; with `choose` False
        all that may be worth it, for a choice among several requests (`budget.choose_batch`)."""
        start = perf_counter()
        if not self._begun:
            self._begin_drafting()
        tree = self.drafting.propose(self.tokens_left - 1, choose=choose, fit=self._fit)
        self._open = _Open(start, tree=tree, proposed=perf_counter())
        return tree

    def segment(self, tree: DraftTree) -> Segment:
        """The rows to verify. `tree`: what `propose` gave, or a part of it that holds every node's parent (a batch of
        requests may have no room for all). Row 0 is the root, row i + 1 node i."""
        assert self._open is not None
        self._open.tree = tree
        root = np.array([self.history[-1]], dtype=np.int64)
        want = np.full(len(tree) + 1, max(self._sampler.want, self.drafting.want), dtype=np.int64)
        if not len(tree):
            return Segment(self.cache, root, _NO_PARENT, want)
        tokens = np.concatenate((root, tree.tokens))
        return Segment(self.cache, tokens, np.concatenate((_NO_PARENT, tree.parents + 1)), want)

    def take(self, rows: SegmentRows) -> list[TokenInfo]:
        """End the step with the rows of `segment`: walk, commit; the tokens emitted, at least one."""
        assert self._open is not None
        step, tree, verified = self._open, self._open.tree, perf_counter()
        walked = walk(tree, rows, self._sampler, self._stopper)
        emitted = self._commit(tree, rows, walked)
        if walked.stopped:
            self.finish_reason = self._stopper.finish_reason
        self._open = None
        end = perf_counter()
        self._decode_s += end - step.start
        if self._records is not None:
            self._record(tree, walked, step.proposed - step.start, verified - step.proposed, end - verified)
        return emitted

    def _commit(self, tree: DraftTree, rows: SegmentRows, walked: Walked) -> list[TokenInfo]:
        tokens = [choice.token for choice in walked.choices]
        # A stop that fell on a node: its row stays out, for the cache is one shorter than the history.
        self.cache.keep([0, *(node + 1 for node in walked.path)][: len(tokens)])
        emitted = [
            TokenInfo(
                choice.token,
                self._token_bytes(choice.token).decode("utf-8", "replace"),
                choice.logprob,
                choice.top,
                credit.source,
                credit.source_span,
            )
            for choice, credit in zip(walked.choices, credits(tree, walked), strict=True)
        ]
        self.history += tokens
        self._tokens += emitted
        self._steps += 1
        self._counts.add(tree, walked.path)
        path, ids = np.array(walked.path, dtype=np.int64), np.array(tokens, dtype=np.int64)
        self.drafting.commit(Verified(tree, path, ids, rows, self.cache))
        return emitted

    def _begin_drafting(self) -> None:
        """Counted in the decode time: drafting must pay for its own preparation."""
        self._begun = True
        features = self._features.take()
        if self._drafted is None:
            self.drafting.begin(self.history, self._prediction, self.cache, features)
        else:
            self.drafting.resume(self._drafted, self.history[self._drafted :], self.cache, features)

    def _record(self, tree: DraftTree, walked: Walked, propose_s: float, verify_s: float, walk_s: float) -> None:
        assert self._records is not None
        self._records.append(
            StepRecord(
                context=len(self.history) - len(walked.choices),
                rows=len(tree) + 1,
                depth=int(tree.depths().max()) if len(tree) else 0,
                accepted=len(walked.path),
                emitted=len(walked.choices),
                source=tree.sources[int(tree.source[walked.path[-1]])] if walked.path else "",
                propose_s=propose_s,
                verify_s=verify_s,
                walk_s=walk_s,
                tree=tree,
                path=walked.path,
            )
        )

    @property
    def tokens_left(self) -> int:
        """The most tokens that are still to be emitted."""
        return self._limit - len(self._tokens)

    # -- the end ---------------------------------------------------------------------------------------------------

    @property
    def begun(self) -> bool:
        """Whether the drafter has taken in the prompt."""
        return self._begun

    def take_text(self) -> str:
        """Text that became final since the last call."""
        return self._stopper.take_text()

    def cancel(self, *, broken: bool = False) -> None:
        """End the request from outside; what was emitted so far stays. `broken`: something was raised in mid-step,
        so cache and text are put back to the tokens that were emitted, and the drafter is switched off."""
        if self.finish_reason is not None and not broken:
            return
        if broken:
            self.drafting.close()
            del self.history[self.prompt_tokens + len(self._tokens) :]
            self.cache.truncate(min(self.cache.length, len(self.history) - 1))
            self._replay_text()
        self.finish_reason = "cancelled"
        self._stopper.finish()

    def _replay_text(self) -> None:
        """The stopper may have seen tokens of the broken step; one that saw the emitted ones alone takes its place."""
        self._stopper = self._new_stopper()
        for info in self._tokens:
            self._stopper.push(info.id)
        self._stopper.finish()

    def _token_bytes(self, token: int) -> bytes:
        """A model may have more rows than its tokenizer has ids; those stand for no text."""
        return self._tokenizer.token_bytes(token) if token < self._tokenizer.vocab_size else b""

    def _new_stopper(self) -> Stopper:
        return Stopper(self._params, eos_ids=self._eos_ids, token_bytes=self._token_bytes, max_new=self._limit)

    def completion(self) -> Completion:
        """The answer of a request that has ended."""
        if self.finish_reason is None:
            raise RuntimeError("the request is still running: cancel it first")
        metrics = Metrics(
            prompt_tokens=self.prompt_tokens,
            completion_tokens=len(self._tokens),
            cached_tokens=self._cached_tokens,
            num_steps=self._steps,
            num_draft_tokens=sum(self._counts.drafted.values()),
            num_accepted_tokens=sum(self._counts.accepted.values()),
            prefill_s=self._prefill_s,
            decode_s=self._decode_s,
            accepted_by_source=dict(self._counts.accepted),
            drafted_by_source=dict(self._counts.drafted),
            drafted_by_depth=tuple(self._counts.drafted_at),
            accepted_by_depth=tuple(self._counts.accepted_at),
        )
        return Completion(
            text=self._stopper.text,
            token_ids=tuple(info.id for info in self._tokens),
            finish_reason=self.finish_reason,
            seed=self._seed,
            identity=self._target.identity,
            exact=self._target.exact,
            metrics=metrics,
            tokens=tuple(self._tokens),
            steps=tuple(self._records or ()),
        )
