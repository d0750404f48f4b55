"""From a row of logits and the history to a token: processors, keyed random numbers, raw log-probabilities.

Processor order: penalties, bias, minimum tokens, constraint, temperature, top-k, top-p, min-p. Logits come in as
float32 and are processed in float64; ties go to the lowest id everywhere; no sum depends on anything but the row.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from exactspec.constraint import Unanswerable
from exactspec.grammars import Matcher
from exactspec.params import SamplingParams
from exactspec.philox import uniform
from exactspec.softmax.load import compiled
from exactspec.target.base import FloatArray, IntArray, Want

Float64Array: TypeAlias = npt.NDArray[np.float64]
IdArray: TypeAlias = npt.NDArray[np.int64]

BAN = -100.0
"""A logit bias at or below this bans the id outright, as OpenAI documents; adding -100 alone might not."""


@dataclass(frozen=True, slots=True)
class Sampled:
    """One drawn token. `logprob`: of the token in the raw distribution, None unless asked for. `top`: the best
    (id, logprob) of the raw distribution, best first, ties to the lowest id; ids of probability 0 are left out."""

    token: int
    logprob: float | None
    top: tuple[tuple[int, float], ...]


class Sampler:
    """Draws one request's tokens, one after another; holds the running counts of its history.

    `seed`: the key of the random numbers, in [0, 2**64) (`params.seed` is not read: the engine draws one where it
    is None). `prompt` [n]: ids before the first drawn token, whose index in the history is therefore n.
    `vocab_size`: length of a row. `eos_ids`: masked, with `params.stop_token_ids`, until `params.min_tokens` tokens
    were drawn. `matcher`: follows `params.constraint`, at the start of the answer.
    Raises ValueError on an id outside the vocabulary, naming it.

    Cost per token is O(vocab_size) at most, whatever the length of the history; penalties touch only the ids that
    occurred.
    """

    __slots__ = (
        "_always",
        "_banned",
        "_bias",
        "_bias_ids",
        "_index",
        "_matcher",
        "_min_end",
        "_occurred",
        "_output",
        "_params",
        "_row",
        "_scratch",
        "_seed",
        "_stops",
        "_vocab",
    )

    def __init__(
        self,
        params: SamplingParams,
        *,
        seed: int,
        prompt: IntArray,
        vocab_size: int,
        eos_ids: frozenset[int],
        matcher: Matcher | None = None,
    ) -> None:
        ids = np.asarray(prompt, dtype=np.int64)
        _check_ids("logit_bias", params.logit_bias, vocab_size)
        _check_ids("stop_token_ids", params.stop_token_ids, vocab_size)
        _check_ids("prompt", (int(ids.min()), int(ids.max())) if len(ids) else (), vocab_size)
        self._params = params
        self._seed = seed
        self._vocab = vocab_size
        self._index = len(ids)
        self._min_end = len(ids) + params.min_tokens
        # A tokenizer may know ids the model has no row for; they cannot be drawn and need no mask.
        stops = {t for t in eos_ids if 0 <= t < vocab_size} | set(params.stop_token_ids)
        self._stops = np.array(sorted(stops), dtype=np.int64)
        bans = sorted(t for t, b in params.logit_bias.items() if b <= BAN)
        biased = sorted(t for t, b in params.logit_bias.items() if b > BAN)
        self._banned = np.array(bans, dtype=np.int64)
        self._bias_ids = np.array(biased, dtype=np.int64)
        self._bias = np.array([params.logit_bias[t] for t in biased], dtype=np.float64)
        self._occurred = _Counts(vocab_size, ids) if params.repetition_penalty != 1 else None
        counted = params.presence_penalty != 0 or params.frequency_penalty != 0
        self._output = _Counts(vocab_size, ids[:0]) if counted else None
        # Reused for every token: fresh arrays of this size cost more in page faults than the arithmetic on them.
        self._row, self._scratch = np.empty(vocab_size), np.empty(vocab_size)
        self._matcher = matcher
        self._always = bool(
            not params.greedy or params.logprobs is not None or params.logit_bias or self._occurred or self._output
        )

    @property
    def needs_logits(self) -> bool:
        """False where the row's argmax decides: greedy, no penalty, bias, logprobs or constraint, `min_tokens` reached.

        Rows of a draft may lie past `min_tokens` while the next token does not: the answer stays True until the
        tokens drawn so far reach it.
        """
        return self._always or self._matcher is not None or self._held

    @property
    def _held(self) -> bool:
        """Whether ending ids are masked for the next token."""
        return self._index < self._min_end and len(self._stops) > 0

    @property
    def want(self) -> Want:
        """What to ask the target for, for every row that may be sampled in the next step."""
        return Want.LOGITS if self.needs_logits else Want.ARGMAX

    def sample(self, *, argmax: int, logits: FloatArray | None) -> Sampled:
        """Draw the next token of the history and append it.

        `argmax`: id with the highest logit of the row; `logits` [vocab_size], or None where only the argmax was
        asked for. The row is read, never written.
        Raises ValueError, leaving the history as it was, if logits are needed and missing, of the wrong length,
        NaN or +inf; `Unanswerable`, which is one, if every id is masked.
        """
        if not self.needs_logits:
            if not 0 <= argmax < self._vocab:
                raise ValueError(f"argmax {argmax} is outside the vocabulary: was the row asked for with Sampler.want?")
            self._append(argmax)
            return Sampled(argmax, None, ())
        if not self._always and self._matcher is not None and self._matcher.allows(argmax):
            self._append(argmax)  # the best of all is the best of those allowed
            return Sampled(argmax, None, ())
        if logits is None:
            raise ValueError("these sampling parameters need the row's logits: ask the target with Sampler.want")
        if logits.shape != (self._vocab,):
            raise ValueError(f"a row of logits must have shape ({self._vocab},), got {logits.shape}")
        row, scratch = self._row, self._scratch
        row[:] = logits
        wanted = self._params.logprobs
        norm, top = (0.0, ()) if wanted is None else _raw_logprobs(row, wanted, scratch)
        self._process(row)
        if self._params.greedy:
            token = int(row.argmax())
            _check_peak(row[token])
        else:
            u = uniform(seed=self._seed, choice=self._params.choice, index=self._index)
            token = draw(row, u, self._params, scratch)
        self._append(token)
        return Sampled(token, None if wanted is None else float(logits[token]) - norm, top)

    def _append(self, token: int) -> None:
        if self._matcher is not None:
            self._matcher.take(token)
        self._index += 1
        for counts in (self._occurred, self._output):
            if counts is not None:
                counts.add(token)

    def _process(self, row: Float64Array) -> None:
        """Penalties, bias, minimum tokens and constraint, in place."""
        p = self._params
        if self._occurred is not None:
            ids = self._occurred.ids
            seen = row[ids]
            row[ids] = np.where(seen > 0, seen / p.repetition_penalty, seen * p.repetition_penalty)
        if self._output is not None:
            ids = self._output.ids
            row[ids] -= p.frequency_penalty * self._output.count[ids] + p.presence_penalty
        if len(self._bias):
            row[self._bias_ids] += self._bias
        row[self._banned] = -np.inf
        if self._index < self._min_end:
            row[self._stops] = -np.inf
        if self._matcher is not None:
            self._matcher.ban(row)


class _Counts:
    """How often each id occurred, and the distinct ids in order of first occurrence. O(1) per token."""

    __slots__ = ("_distinct", "_ids", "count")

    def __init__(self, vocab_size: int, tokens: IdArray) -> None:
        self.count: IdArray = np.bincount(tokens, minlength=vocab_size).astype(np.int64, copy=False)
        first = np.flatnonzero(self.count)
        self._distinct = len(first)
        self._ids = np.concatenate([first, np.empty(len(first) + 64, dtype=np.int64)])

    @property
    def ids(self) -> IdArray:
        return self._ids[: self._distinct]

    def add(self, token: int) -> None:
        if self.count[token] == 0:
            if self._distinct == len(self._ids):
                self._ids = np.concatenate([self._ids, np.empty_like(self._ids)])
            self._ids[self._distinct] = token
            self._distinct += 1
        self.count[token] += 1


def draw(row: Float64Array, u: float, params: SamplingParams, scratch: Float64Array) -> int:
    """The id that `u` in [0, 1) selects: inverse of the cumulative distribution over ids in increasing order.

    `row` [vocab_size] holds processed logits; it and `scratch` [vocab_size] are overwritten. An id of probability 0
    is never returned.
    Raises ValueError on NaN, on +inf, or if every id is masked.

    >>> draw(np.log([0.25, 0.5, 0.25]), 0.3, SamplingParams(temperature=1.0), np.empty(3))
    1
    """
    ids, weights = support(row, params, scratch)
    at = int(compiled().pick(weights, u))
    return at if ids is None else int(ids[at])


def support(row: Float64Array, params: SamplingParams, scratch: Float64Array) -> tuple[IdArray | None, Float64Array]:
    """Temperature, top-k, top-p and min-p: the ids that may be drawn, increasing (None: all), and their weights.

    `row` [vocab_size]: processed logits; it and `scratch` [vocab_size] are overwritten. Weights are relative to the
    most probable id, which has 1.
    top-k keeps exactly k ids. top-p keeps the shortest run of the most probable ids whose share of what top-k left
    is >= top_p. min-p keeps ids of weight >= min_p.
    """
    peak = float(row.max())
    _check_peak(peak)
    row -= peak  # before the division: a tiny temperature then gives -inf at worst, never inf or NaN
    with np.errstate(over="ignore"):
        row /= params.temperature
    ids: IdArray | None = None
    if 0 < params.top_k < len(row):
        ids = _largest(row, params.top_k, scratch)
        row = row[ids]
    compiled().exp(row)
    weights = row
    if params.top_p < 1:
        kept = _nucleus(weights, params.top_p)
        if kept is not None:
            ids, weights = kept if ids is None else ids[kept], weights[kept]
    if params.min_p > 0:
        kept = np.flatnonzero(weights >= params.min_p)
        ids, weights = kept if ids is None else ids[kept], weights[kept]
    return ids, weights


def _nucleus(weights: Float64Array, top_p: float) -> IdArray | None:
    """Indices (increasing) of the shortest run of largest weights holding `top_p` of the mass; None: all of them.

    Quickselect by mass: halve the candidates around their median until the boundary falls on one value. O(n), no
    sort. Masses are summed in id order, so the result does not depend on how a partition arranges its output.
    """
    total = float(weights.sum())
    need = top_p * total
    # Weights below this hold less than 1 - top_p of the mass together: on a peaked row, nearly all of them.
    floor = 0.999 * (total - need) / len(weights)
    rest = np.compress(weights >= floor, weights)  # on a random mask, 4 times as fast as indexing by it
    mass = 0.0  # of the weights above the candidates
    while len(rest):
        middle = len(rest) // 2
        edge = float(np.partition(rest, middle)[middle])
        above = np.compress(rest > edge, rest)
        with_above = mass + float(above.sum())
        if with_above >= need:
            rest = above
            continue
        ties = int(np.count_nonzero(rest == edge))
        with_ties = with_above + ties * edge
        if with_ties >= need:
            return _at_least(weights, edge, min(ties, max(1, math.ceil((need - with_above) / edge))))
        mass = with_ties
        rest = np.compress(rest < edge, rest)
    return None  # top_p so close to 1 that rounding hides the difference


def _largest(values: Float64Array, k: int, scratch: Float64Array) -> IdArray:
    """Indices, increasing, of the k largest values, ties to the lowest index; 1 <= k <= len(values)."""
    cut = len(values) - k
    scratch[:] = values
    scratch.partition(cut)
    edge = float(scratch[cut])
    return _at_least(values, edge, k - int(np.count_nonzero(values > edge)))


def _at_least(values: Float64Array, edge: float, ties: int) -> IdArray:
    """Indices, increasing, of the values above `edge` and of the first `ties` that equal it."""
    keep = values > edge
    keep[np.flatnonzero(values == edge)[:ties]] = True
    return np.flatnonzero(keep)


def _raw_logprobs(row: Float64Array, k: int, scratch: Float64Array) -> tuple[float, tuple[tuple[int, float], ...]]:
    """log sum exp of a row, and its k best (id, log-probability), best first, ties to the lowest id."""
    peak = float(row.max())
    _check_peak(peak)
    np.exp(np.subtract(row, peak, out=scratch), out=scratch)
    norm = peak + math.log(float(scratch.sum()))
    if k == 0:
        return norm, ()
    best = _largest(row, min(k, len(row)), scratch)
    best = best[np.argsort(-row[best], kind="stable")]
    return norm, tuple((int(t), float(row[t]) - norm) for t in best if row[t] > -np.inf)


def _check_peak(peak: float) -> None:
    """Refuse a row whose largest value is not finite (NaN wins every max)."""
    if math.isfinite(peak):
        return
    if peak < 0:
        raise Unanswerable("every token is masked: loosen logit_bias, or min_tokens with the stop tokens")
    raise ValueError(f"a row of logits holds {peak}: the model's weights or kernels are broken, check the model file")


def _check_ids(name: str, ids: Iterable[int], vocab_size: int) -> None:
    for token in ids:
        if not 0 <= token < vocab_size:
            raise ValueError(f"{name}: token {token} is outside the vocabulary (0 to {vocab_size - 1})")
