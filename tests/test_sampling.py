"""Sampling: closed forms, invariances, degenerate rows. Statistical tests have fixed seeds: they cannot flicker."""

from __future__ import annotations

import math
import random
import subprocess
import sys
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import stats

from exactspec.params import SamplingParams
from exactspec.philox import philox4x32, uniform
from exactspec.sampling import Sampled, Sampler, draw, support
from exactspec.target.base import Want

DRAWS = 50_000
EOS = 2


def sampler(params: SamplingParams, *, prompt=(), vocab=8, eos=frozenset(), seed=1) -> Sampler:
    return Sampler(params, seed=seed, prompt=np.array(prompt, dtype=np.int64), vocab_size=vocab, eos_ids=frozenset(eos))


def row_of(*values: float) -> np.ndarray:
    return np.array(values, dtype=np.float32)


def take(s: Sampler, row: np.ndarray) -> int:
    return s.sample(argmax=int(np.argmax(row)), logits=row).token


def distribution(row, **options) -> np.ndarray:
    """What the processors leave of a row, as probabilities over all ids."""
    params = SamplingParams(**{"temperature": 1.0, **options})
    ids, weights = support(np.array(row, dtype=np.float64), params, np.empty(len(row)))
    out = np.zeros(len(row))
    out[slice(None) if ids is None else ids] = weights
    return out / out.sum()


def assert_fits(counts: Counter, probabilities: dict) -> None:
    """Chi-square at 1e-3, total variation, and nothing impossible was drawn."""
    n = sum(counts.values())
    assert set(counts) <= {k for k, p in probabilities.items() if p > 0}
    keys = [k for k, p in probabilities.items() if p > 0]
    observed = np.array([counts[k] for k in keys])
    expected = np.array([probabilities[k] for k in keys]) * n
    assert expected.sum() == pytest.approx(n)
    assert expected.min() > 5
    assert len(keys) == 1 or stats.chisquare(observed, expected).pvalue > 1e-3
    assert 0.5 * np.abs(observed - expected).sum() / n < 0.01


# --- random numbers -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [  # kat_vectors of Random123
        ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
    ],
)
def test_philox_known_answers(counter, key, words):
    c, k, w = (tuple(int(x, 16) for x in text.split()) for text in (counter, key, words))
    assert philox4x32(c, k) == w


def test_uniform_is_53_bits_of_the_first_two_words():
    words = (0x6627E8D5 << 32) | 0xE169C58D
    top_27_and_26 = ((words >> 37) << 26) | ((words & 0xFFFFFFFF) >> 6)
    assert uniform(seed=0, choice=0, index=0) == top_27_and_26 / 2**53


def test_uniform_is_uniform_and_every_part_of_the_key_counts():
    values = [uniform(seed=5, choice=0, index=i) for i in range(20_000)]
    assert stats.kstest(values, "uniform").pvalue > 1e-3
    assert all(0 <= v < 1 and v * 2**53 == int(v * 2**53) for v in values)
    base = {"seed": 5, "choice": 0, "index": 9}
    for change in ({"seed": 6}, {"seed": 5 + 2**32}, {"choice": 1}, {"index": 10}, {"index": 9 + 2**32}):
        assert uniform(**{**base, **change}) != uniform(**base)
    # Neighbouring seeds are independent streams.
    other = [uniform(seed=6, choice=0, index=i) for i in range(20_000)]
    assert abs(np.corrcoef(values, other)[0, 1]) < 0.03
    with pytest.raises(ValueError, match="seed"):
        uniform(seed=2**64, choice=0, index=0)


# --- closed forms ---------------------------------------------------------------------------------------------------

P = np.array([0.05, 0.4, 0.15, 0.1, 0.3])
LOGITS = np.log(P)


def normal(p) -> np.ndarray:
    return np.asarray(p, dtype=float) / np.sum(p)


CLOSED_FORMS = [
    ({}, P),
    ({"temperature": 0.5}, normal(P**2)),
    ({"temperature": 2.0}, normal(np.sqrt(P))),
    ({"top_k": 1}, [0, 1, 0, 0, 0]),
    ({"top_k": 3}, normal([0, 0.4, 0.15, 0, 0.3])),
    ({"top_k": 9}, P),
    ({"top_p": 0.3}, [0, 1, 0, 0, 0]),
    ({"top_p": 0.5}, normal([0, 0.4, 0, 0, 0.3])),
    ({"top_p": 0.8}, normal([0, 0.4, 0.15, 0, 0.3])),
    ({"top_p": 0.99}, P),
    ({"top_p": 1e-9}, [0, 1, 0, 0, 0]),
    ({"min_p": 0.3}, normal([0, 0.4, 0.15, 0, 0.3])),
    ({"min_p": 1.0}, [0, 1, 0, 0, 0]),
    # top-p counts shares of what top-k left: 0.4 / 0.7 alone is >= 0.55
    ({"top_k": 2, "top_p": 0.55}, [0, 1, 0, 0, 0]),
    ({"top_k": 2, "top_p": 0.6}, normal([0, 0.4, 0, 0, 0.3])),
    # the temperature comes first: two ids hold 0.7 at 1, and 0.56 at 2
    ({"temperature": 2.0, "top_p": 0.65}, normal([0, math.sqrt(0.4), math.sqrt(0.15), 0, math.sqrt(0.3)])),
    ({"temperature": 0.5, "min_p": 0.5}, normal([0, 0.4**2, 0, 0, 0.3**2])),
    ({"top_k": 4, "top_p": 0.9, "min_p": 0.5}, normal([0, 0.4, 0, 0, 0.3])),
]


@pytest.mark.parametrize(("options", "expected"), CLOSED_FORMS, ids=[str(o) for o, _ in CLOSED_FORMS])
def test_support_has_the_closed_form(options, expected):
    np.testing.assert_allclose(distribution(LOGITS, **options), expected, rtol=1e-12)


@pytest.mark.parametrize("options", [{"temperature": 0.5}, {"top_k": 3}, {"top_p": 0.8}, {"min_p": 0.3}])
def test_samples_follow_the_closed_form(options):
    row = LOGITS.astype(np.float32)
    s = sampler(SamplingParams(**{"temperature": 1.0, **options}), vocab=5, seed=11)
    counts = Counter(take(s, row) for _ in range(DRAWS))
    assert_fits(counts, dict(enumerate(distribution(row, **options))))


def test_penalised_sequences_follow_the_closed_form():
    """All 25 answers of two tokens: the second row sees the first token, and repetition sees the prompt."""
    params = SamplingParams(
        temperature=1.0, repetition_penalty=1.3, presence_penalty=0.4, frequency_penalty=0.3, logit_bias={0: 0.7}
    )
    prompt = [3, 3, 1]
    rows = row_of(0.5, -0.2, 0.1, 1.0, -0.6), row_of(-0.3, 0.9, 0.2, -0.1, 0.4)

    def softmax_after(row, output):
        x = row.astype(float).copy()
        for t in set(prompt) | set(output):
            x[t] = x[t] / 1.3 if x[t] > 0 else x[t] * 1.3
        for t in output:
            x[t] -= 0.3
        for t in set(output):
            x[t] -= 0.4
        x[0] += 0.7
        return np.exp(x) / np.exp(x).sum()

    first = softmax_after(rows[0], [])
    expected = {(a, b): first[a] * softmax_after(rows[1], [a])[b] for a in range(5) for b in range(5)}
    counts: Counter = Counter()
    for seed in range(DRAWS):
        s = sampler(params, prompt=prompt, vocab=5, seed=seed)
        counts[take(s, rows[0]), take(s, rows[1])] += 1
    assert_fits(counts, expected)


def brute_force(row, *, temperature, top_k, top_p, min_p) -> set[int]:
    """The kept ids by one full sort."""
    z = (row - row.max()) / temperature
    order = sorted(range(len(z)), key=lambda i: (-z[i], i))
    if top_k:
        order = order[:top_k]
    w = {i: math.exp(z[i]) for i in order}
    total, mass, kept = math.fsum(w.values()), 0.0, []
    for i in order:
        kept.append(i)
        mass = math.fsum(w[j] for j in kept)
        if mass >= top_p * total:
            break
    return {i for i in kept if w[i] >= min_p}


@given(
    # multiples of 1/4 in a small range: many ties
    row=arrays(np.int8, st.integers(1, 40), elements=st.integers(-12, 12)),
    temperature=st.sampled_from([0.3, 1.0, 1.7]),
    top_k=st.integers(0, 45),
    top_p=st.sampled_from([0.1234567, 0.5123456, 0.9012345, 0.9912345, 1.0]),
    min_p=st.sampled_from([0.0, 0.0512345, 0.51]),
)
@settings(max_examples=300, deadline=None)
def test_kept_ids_equal_a_full_sort(row, temperature, top_k, top_p, min_p):
    row = row.astype(np.float64) / 4
    options = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p}
    ids, weights = support(row.copy(), SamplingParams(**options), np.empty(len(row)))
    ids = np.arange(len(row)) if ids is None else ids
    assert np.all(np.diff(ids) > 0)
    assert set(ids.tolist()) == brute_force(row, **options)
    np.testing.assert_allclose(weights, np.exp((row[ids] - row.max()) / temperature), rtol=1e-12)


def test_top_p_on_a_large_row_equals_a_full_sort():
    rng = np.random.default_rng(3)
    for scale in (0.1, 2.0, 6.0):
        row = (rng.standard_normal(50_000) * scale).astype(np.float32).astype(np.float64)
        for top_p in (0.2, 0.9, 0.999):
            ids, _ = support(row.copy(), SamplingParams(temperature=1.0, top_p=top_p), np.empty(len(row)))
            order = np.argsort(-row, kind="stable")
            mass = np.cumsum(np.exp(row[order] - row.max()))
            n = int(np.searchsorted(mass, top_p * mass[-1])) + 1
            assert sorted(order[:n].tolist()) == ids.tolist()


def test_ties_go_to_the_lowest_id():
    assert np.flatnonzero(distribution([1.0, 2, 1, 2, 1, 2], top_k=4)).tolist() == [0, 1, 3, 5]
    assert np.flatnonzero(distribution([0.0] * 10, top_p=0.3)).tolist() == [0, 1, 2]
    assert np.flatnonzero(distribution([0.0] * 10, top_k=3)).tolist() == [0, 1, 2]
    assert np.flatnonzero(distribution([0.0] * 10, min_p=1.0)).tolist() == list(range(10))
    assert take(sampler(SamplingParams(logit_bias={7: -1.0})), row_of(0, 3, 3, 3, 0, 0, 0, 3)) == 1


# --- the inverse of the distribution function -----------------------------------------------------------------------


@given(
    row=arrays(np.float64, st.integers(1, 12), elements=st.one_of(st.floats(-800, 800), st.just(-np.inf))),
    u=st.one_of(st.floats(0, 1, exclude_max=True), st.sampled_from([0.0, 5e-324, 1 - 2**-53])),
    temperature=st.sampled_from([1e-6, 0.5, 1.0, 1e6, 5e-324]),
)
@settings(max_examples=300, deadline=None)
def test_a_draw_is_never_an_id_of_probability_zero(row, u, temperature):
    params = SamplingParams(temperature=temperature)
    if not np.isfinite(row).any():
        with pytest.raises(ValueError, match="masked"):
            draw(row, u, params, np.empty(len(row)))
        return
    _, weights = support(row.copy(), params, np.empty(len(row)))
    token = draw(row.copy(), u, params, np.empty(len(row)))
    assert weights[token] > 0
    assert not np.isnan(weights).any()
    total = math.fsum(weights)
    slack = 1e-12 * total
    assert math.fsum(weights[:token]) - slack <= u * total <= math.fsum(weights[: token + 1]) + slack


def test_borders_of_the_draw():
    def at(u):
        return draw(np.array([-np.inf, math.log(0.25), math.log(0.25), math.log(0.5), -np.inf]), u, params, np.empty(5))

    params = SamplingParams(temperature=1.0)
    assert [at(u) for u in (0.0, 0.2499, 0.2501, 0.4999, 0.5001, 1 - 2**-53)] == [1, 1, 2, 2, 3, 3]


def test_tiny_and_huge_temperature():
    row = row_of(-3e38, 5.0, 4.999999, 3e38, 0, 0, 0, 0)
    with np.errstate(all="raise", under="ignore"):
        assert all(
            take(sampler(SamplingParams(temperature=t), seed=i), row) == 3 for t in (1e-6, 5e-324) for i in range(9)
        )
    flat = distribution([0.0, 10.0], temperature=1e9)
    np.testing.assert_allclose(flat, [0.5, 0.5], atol=1e-7)


# --- degenerate rows ------------------------------------------------------------------------------------------------

SETTINGS = [
    SamplingParams(logprobs=1),
    SamplingParams(repetition_penalty=1.1),
    SamplingParams(temperature=0.7),
    SamplingParams(temperature=0.7, top_k=3, top_p=0.9, min_p=0.01),
]


@pytest.mark.parametrize("params", SETTINGS)
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_broken_row_is_an_error_and_leaves_the_history_alone(params, bad):
    row = np.zeros(8, dtype=np.float32)
    row[4] = bad
    s, fresh = sampler(params), sampler(params)
    with pytest.raises(ValueError, match=r"logits holds (nan|inf)"):
        s.sample(argmax=0, logits=row)
    good = row_of(*np.linspace(0, 1, 8))
    assert [take(s, good) for _ in range(20)] == [take(fresh, good) for _ in range(20)]


@pytest.mark.parametrize("params", SETTINGS)
def test_rows_with_masked_ids_and_equal_logits(params):
    row = np.full(8, -np.inf, dtype=np.float32)
    row[5] = -40.0
    assert take(sampler(params), row) == 5
    row[:] = 1.0
    assert 0 <= take(sampler(params), row) < 8
    if params.greedy:
        assert take(sampler(params), row) == 0


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_masking_everything_is_an_error(temperature):
    params = SamplingParams(temperature=temperature, logit_bias=dict.fromkeys(range(8), -100.0))
    with pytest.raises(ValueError, match="every token is masked"):
        take(sampler(params), np.zeros(8, dtype=np.float32))


def test_wrong_calls_are_refused():
    s = sampler(SamplingParams(temperature=1.0))
    with pytest.raises(ValueError, match="need the row's logits"):
        s.sample(argmax=0, logits=None)
    with pytest.raises(ValueError, match=r"shape \(8,\)"):
        s.sample(argmax=0, logits=np.zeros(7, dtype=np.float32))
    with pytest.raises(ValueError, match="argmax -1"):
        sampler(SamplingParams()).sample(argmax=-1, logits=None)
    with pytest.raises(ValueError, match=r"logit_bias: token 8 is outside the vocabulary \(0 to 7\)"):
        sampler(SamplingParams(logit_bias={3: 1.0, 8: 1.0}))
    with pytest.raises(ValueError, match="stop_token_ids: token 99"):
        sampler(SamplingParams(stop_token_ids=(99,)))
    with pytest.raises(ValueError, match="prompt: token -1"):
        sampler(SamplingParams(), prompt=[4, -1])


def test_the_row_is_not_written():
    row = np.linspace(-1, 1, 8, dtype=np.float32)
    row.flags.writeable = False
    params = SamplingParams(
        temperature=1.0, top_p=0.9, repetition_penalty=1.5, logit_bias={1: -100}, logprobs=2, min_tokens=3
    )
    s = sampler(params, prompt=[1, 2], eos=[EOS])
    for _ in range(5):
        take(s, row)


# --- greedy and what is asked of the target -------------------------------------------------------------------------


def test_plain_greedy_needs_the_argmax_only():
    s = sampler(SamplingParams(), eos=[EOS])
    assert s.want is Want.ARGMAX
    assert s.sample(argmax=6, logits=None) == Sampled(6, None, ())


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 1e-9},
        {"logprobs": 0},
        {"logit_bias": {1: 0.5}},
        {"repetition_penalty": 1.01},
        {"presence_penalty": -0.1},
        {"frequency_penalty": 0.1},
    ],
)
def test_anything_else_needs_logits(options):
    s = sampler(SamplingParams(**options))
    assert s.needs_logits
    take(s, np.zeros(8, dtype=np.float32))
    assert s.want is Want.LOGITS


def test_minimum_tokens_need_logits_until_they_are_over():
    s = sampler(SamplingParams(min_tokens=2), eos=[EOS])
    wants = []
    for _ in range(4):
        wants.append(s.want)
        take(s, np.zeros(8, dtype=np.float32))
    assert wants == [Want.LOGITS, Want.LOGITS, Want.ARGMAX, Want.ARGMAX]
    assert sampler(SamplingParams(min_tokens=2)).want is Want.ARGMAX  # no EOS: nothing to mask


@given(seed=st.integers(0, 2**32), top_k=st.integers(1, 6), top_p=st.floats(0.01, 1), min_p=st.floats(0, 1))
@settings(max_examples=100, deadline=None)
def test_truncation_never_loses_the_best_id(seed, top_k, top_p, min_p):
    row = np.random.default_rng(seed).integers(-9, 9, 6).astype(np.float32)
    params = SamplingParams(temperature=1.0, top_k=top_k, top_p=top_p, min_p=min_p)
    ids, _ = support(row.astype(np.float64), params, np.empty(6))
    assert ids is None or int(row.argmax()) in ids
    sharp = SamplingParams(temperature=1e-6, top_k=top_k, top_p=top_p, min_p=min_p)
    assert row[take(sampler(sharp, vocab=6, seed=seed), row)] == row.max()


# --- invariances ----------------------------------------------------------------------------------------------------


def random_rows(n: int, vocab: int = 8, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((n, vocab)).astype(np.float32) * 2


@pytest.mark.parametrize("options", [{}, {"top_p": 0.9}, {"repetition_penalty": 1.4, "top_k": 5}])
def test_a_draw_depends_on_the_history_not_on_the_calls_before(options):
    """Resumed at any token of its own answer, a request goes on as if never interrupted."""
    params = SamplingParams(temperature=1.0, **options)
    rows = random_rows(30)
    s = sampler(params, prompt=[1, 2, 3], seed=7)
    answer = [take(s, row) for row in rows]
    for n in (0, 1, 11, 29):
        resumed = sampler(params, prompt=[1, 2, 3, *answer[:n]], seed=7)
        assert [take(resumed, row) for row in rows[n:]] == answer[n:]


def test_shifting_a_row_changes_nothing():
    params = SamplingParams(temperature=0.8, top_p=0.9)
    for i, row in enumerate(random_rows(50)):
        row = np.round(row * 64) / 64  # so that the shift is exact
        a, b = (take(sampler(params, seed=i), r.astype(np.float32)) for r in (row, row + 16))
        assert a == b


def test_prompt_tokens_before_the_answer_move_the_random_numbers():
    row = np.zeros(8, dtype=np.float32)
    params = SamplingParams(temperature=1.0)
    answers = []
    for n in (3, 4):
        s = sampler(params, prompt=[0] * n, seed=7)
        answers.append([take(s, row) for _ in range(40)])
    assert answers[0][1:] == answers[1][:-1]
    assert answers[0] != answers[1]


# --- field cases ----------------------------------------------------------------------------------------------------


def test_case_10_frequency_penalty_and_bias():
    rows = random_rows(40, seed=5)

    def answer(**options):
        s = sampler(SamplingParams(**options), prompt=[3, 3, 5])
        return [take(s, row) for row in rows]

    def naive(penalty):
        out: list[int] = []
        for row in rows:
            out.append(int(np.argmax([float(x) - penalty * out.count(t) for t, x in enumerate(row)])))
        return out

    for penalty in (-1.5, 1.5):
        assert answer(frequency_penalty=penalty) == naive(penalty)
    assert answer() == rows.argmax(axis=1).tolist()
    assert answer(frequency_penalty=1.5) != answer(frequency_penalty=-1.5)
    assert answer(presence_penalty=2.0) != answer()
    favourite = Counter(answer()).most_common(1)[0][0]
    assert favourite not in answer(logit_bias={favourite: -100})
    # The ban holds against a logit that adding -100 would leave in front, sampled or not.
    for temperature in (0.0, 1.0):
        banned = sampler(SamplingParams(temperature=temperature, logit_bias={4: -100, 0: 100}))
        assert all(take(banned, row_of(0, 0, 0, 0, 500, 0, 0, 0)) == 0 for _ in range(20))


def test_repetition_penalty_counts_the_prompt_once_and_only_what_occurred():
    s = sampler(SamplingParams(repetition_penalty=2.0), prompt=[1, 1, 1, 3])
    assert take(s, row_of(0, 4, 2.5, 0, 0, 0, 0, 0)) == 2  # 4 / 2 < 2.5
    assert take(s, row_of(-3, -2, -9, -9, -3.5, -9, -9, -9)) == 0  # -2 * 2 < -3
    assert take(s, row_of(0, 4.5, 4.4, 0, 2.2, 0, 0, 0)) == 1  # 2.25, 2.2 (drawn before), 2.2


@pytest.mark.parametrize("options", [{}, {"logprobs": 1}, {"temperature": 1e-3}])
@pytest.mark.parametrize("min_tokens", [0, 1, 3, 5, 6])
def test_case_11_minimum_length(min_tokens, options):
    """EOS is best everywhere, 40 second: EOS comes as token number min_tokens + 1."""
    row = np.zeros(64, dtype=np.float32)
    row[EOS], row[40], row[41] = 10, 9, 9.5
    params = SamplingParams(min_tokens=min_tokens, stop_token_ids=(41,), ignore_eos=True, **options)
    s = sampler(params, vocab=64, eos=[EOS, 70])
    answer = []
    while EOS not in answer:
        answer.append(take(s, row))
    assert answer == [40] * min_tokens + [EOS]


@pytest.mark.parametrize(
    "options", [{}, {"temperature": 0.7}, {"temperature": 0.7, "repetition_penalty": 1.5, "top_k": 2}]
)
def test_case_12_logprobs_are_of_the_raw_distribution(options):
    rows = random_rows(40, vocab=97, seed=9)
    rows[:, 3] = rows[:, 2]  # ties
    s = sampler(SamplingParams(logprobs=3, **options), vocab=97, prompt=[5, 6], seed=3)
    for row in rows:
        got = s.sample(argmax=int(row.argmax()), logits=row)
        x = row.astype(np.float64)
        raw = x - math.log(math.fsum(np.exp(x)))
        assert got.logprob == pytest.approx(raw[got.token], abs=1e-9)
        order = sorted(range(97), key=lambda t: (-x[t], t))[:3]
        assert [t for t, _ in got.top] == order
        assert [v for _, v in got.top] == pytest.approx(raw[order].tolist(), abs=1e-9)
        assert dict(got.top).get(got.token, got.logprob) == got.logprob


def test_logprobs_at_the_edges():
    row = row_of(-np.inf, 2, 2, -np.inf)
    got = sampler(SamplingParams(logprobs=3), vocab=4).sample(argmax=1, logits=row)
    assert got == Sampled(
        1, pytest.approx(math.log(0.5)), ((1, pytest.approx(math.log(0.5))), (2, pytest.approx(math.log(0.5))))
    )
    assert sampler(SamplingParams(logprobs=0), vocab=4).sample(argmax=1, logits=row).top == ()
    big = sampler(SamplingParams(logprobs=20), vocab=4).sample(argmax=3, logits=row_of(1e30, 0, 0, 3e38))
    assert big.logprob == 0.0
    assert len(big.top) == 4


CASE_14 = """
import numpy as np
from exactspec.params import SamplingParams
from exactspec.sampling import Sampler
rows = np.random.default_rng(1).standard_normal((32, 50)).astype(np.float32)
def answer(seed, choice=0):
    params = SamplingParams(temperature=1.0, top_p=0.9, seed=seed, choice=choice)
    s = Sampler(params, seed=seed, prompt=np.arange(4), vocab_size=50, eos_ids=frozenset())
    return [s.sample(argmax=0, logits=row).token for row in rows]
"""


def test_case_14_seeds():
    scope: dict = {}
    exec(CASE_14, scope)
    answer = scope["answer"]
    before = random.getstate(), [x.tolist() if isinstance(x, np.ndarray) else x for x in np.random.get_state()]
    answers = []
    for i in range(10):
        answer(i % 5 + 1)
        answers.append(answer(7))
    assert all(a == answers[0] for a in answers)
    assert len({tuple(answer(s)) for s in range(10)}) == 10
    assert answer(7, choice=1) != answers[0]
    after = random.getstate(), [x.tolist() if isinstance(x, np.ndarray) else x for x in np.random.get_state()]
    assert before == after
    fresh = subprocess.run(
        [sys.executable, "-c", CASE_14 + "print(answer(7))"], capture_output=True, text=True, check=True
    )
    assert fresh.stdout.strip() == str(answers[0])
