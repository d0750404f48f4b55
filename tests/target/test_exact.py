"""The exact target against an independent forward, and what it refuses."""

from __future__ import annotations

import os
import threading
from typing import Any

import numpy as np
import pytest
import reference
from tiny_weights import FourBitWeights, RandomWeights

from exactspec.target.base import Segment, Want
from exactspec.target.cpu import describe_cpu, supported_sets
from exactspec.target.exact import ExactTarget
from exactspec.target.weights import ModelConfig

SHAPES: dict[str, dict[str, Any]] = {
    "llama": {"family": "llama"},
    "qwen2": {"family": "qwen2", "tied_head": True, "num_layers": 3},
    "odd": {
        "hidden_size": 72,
        "num_heads": 3,
        "num_kv_heads": 3,
        "head_dim": 20,
        "intermediate_size": 92,
        "vocab_size": 101,
    },
    "windows": {"num_layers": 3, "layer_windows": (16, 0, 100)},
    "four bits": {
        "kinds": {"q": "Q4_1", "k": "Q4_1", "v": "Q4_1", "o": "Q4_0", "gate": "Q4_0", "up": "Q4_0", "down": "Q4_1"},
        "hidden_size": 96,
        "num_heads": 3,
        "num_kv_heads": 1,
        "head_dim": 32,
        "intermediate_size": 160,
    },
    "four bits, mixed": {
        "kinds": {"q": "Q4_K", "k": "Q4_K", "gate": "Q4_K", "up": "Q4_K", "down": "Q4_K"},
        "hidden_size": 256,
        "intermediate_size": 512,
        "residual_scale": 0.8,
    },
    "large": {"hidden_size": 256, "num_heads": 4, "num_kv_heads": 1, "head_dim": 64, "intermediate_size": 500},
}


def logits(target: ExactTarget, tokens: list[int]) -> np.ndarray:
    (rows,) = target.forward([Segment.chain(target.new_cache(), tokens, Want.LOGITS)])
    return rows.logits.copy()


@pytest.mark.parametrize("shape", SHAPES)
def test_against_float64(shape: str) -> None:
    """Within quantisation error of a float64 forward: weights rounded alike, only the activations' 8 bits differ."""
    given = SHAPES[shape]
    source = FourBitWeights(**given) if "kinds" in given else RandomWeights(**given)
    target = ExactTarget(source, threads=2)
    tokens = np.random.default_rng(1).integers(0, target.vocab_size, 200).tolist()
    found = logits(target, tokens)
    expected = reference.logits(source, tokens, int8_weights=True)
    error = np.abs(found - expected)
    spread = expected.std()
    assert error.mean() < 0.04 * spread
    assert error.max() < 0.6 * spread
    rough = reference.logits(source, tokens)
    assert np.abs(found - rough).mean() < 0.06 * spread


def test_a_wrong_position_would_show() -> None:
    """The comparison above has teeth: one more token in front is outside its bounds."""
    source = RandomWeights()
    tokens = np.random.default_rng(1).integers(0, 250, 200).tolist()
    found = logits(ExactTarget(source, threads=1), tokens)
    shifted = reference.logits(source, [7, *tokens], int8_weights=True)[1:]
    assert np.abs(found - shifted).mean() > 0.08 * shifted.std()


def test_rope_divisors() -> None:
    class Divided(RandomWeights):
        def __init__(self) -> None:
            super().__init__()
            fields = {name: getattr(self.config, name) for name in ModelConfig.__dataclass_fields__}
            self.config = ModelConfig(**{**fields, "rope_divisors": np.linspace(1, 8, 8)})

    tokens = np.random.default_rng(1).integers(0, 250, 120).tolist()
    expected = reference.logits(Divided(), tokens, int8_weights=True)
    error = np.abs(logits(ExactTarget(Divided(), threads=1), tokens) - expected).mean()
    assert error < 0.04 * expected.std()
    plain = logits(ExactTarget(RandomWeights(), threads=1), tokens)
    assert np.abs(plain - expected).mean() > 0.2 * expected.std()


@pytest.fixture(scope="module")
def target() -> ExactTarget:
    return ExactTarget(RandomWeights(max_position=300), threads=2)


def segment(target: ExactTarget, **changes: Any) -> Segment:
    given = {"tokens": np.array([1, 2, 3]), "parents": np.array([-1, 0, 1]), "want": np.zeros(3, dtype=int)}
    return Segment(**{"cache": target.new_cache(), **given, **changes})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tokens": np.array([1, 260, 3])}, "token 260 is outside the vocabulary"),
        ({"tokens": np.array([1, -1, 3])}, "token -1 is outside the vocabulary"),
        ({"tokens": np.array([1.0, 2.0, 3.0])}, "must be a list of integers"),
        ({"parents": np.array([-1, 0])}, "3 tokens, 2 parents and 3 wants"),
        ({"parents": np.array([-1, 0, 2])}, "every other parent an earlier row"),
        ({"parents": np.array([-1, -1, 0])}, "every other parent an earlier row"),
        ({"parents": np.array([0, 0, 1])}, "every other parent an earlier row"),
        ({"parents": np.array([-1, 0, 0]), "tokens": np.array([1, 2, 2])}, "siblings must hold distinct tokens"),
        ({"want": np.array([0, 0, 9])}, "values of Want"),
        ({"tokens": np.array([], int), "parents": np.array([], int), "want": np.array([], int)}, "has no rows"),
        ({"cache": object()}, "use this target's new_cache"),
    ],
)
def test_refused_before_any_work(target: ExactTarget, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        target.forward([segment(target), segment(target, **changes)])


def test_one_cache_once(target: ExactTarget) -> None:
    one = segment(target)
    with pytest.raises(ValueError, match="once per forward"):
        target.forward([one, one])


def test_the_end_of_the_context(target: ExactTarget) -> None:
    cache = target.new_cache()
    target.forward([Segment.chain(cache, [1] * 299, Want.NONE)])
    cache.keep(range(299))
    target.forward([Segment.chain(cache, [2])])
    # a tree of three rows that needs one position
    with pytest.raises(ValueError, match="past the longest context of 300"):
        target.forward([Segment.chain(cache, [2, 3])])
    assert cache.length == 299


def test_no_segments(target: ExactTarget) -> None:
    assert target.forward([]) == []


@pytest.mark.parametrize(
    ("option", "value"), [("cache_dtype", "int3"), ("context", 0), ("threads", 0), ("threads", 65)]
)
def test_options_out_of_range(option: str, value: Any) -> None:
    with pytest.raises(ValueError, match=option):
        ExactTarget(RandomWeights(), **{option: value})


def test_identity_names_what_matters(target: ExactTarget) -> None:
    other = ExactTarget(RandomWeights(seed=1), threads=1)
    assert target.identity != other.identity
    assert ExactTarget(RandomWeights(max_position=300), threads=1).identity == target.identity
    for part in ("exactspec-", "numba-", "llvmlite-", "numpy-", "cache-bfloat16", describe_cpu().llvm_name):
        assert part in target.identity


def test_instruction_sets_by_feature() -> None:
    vnni = frozenset({"avx512vnni", "avx512f", "avx512bw", "avx512vl"})
    assert supported_sets(vnni, "x86_64") == ("avx512vnni", "avx512vnni-256", "portable")
    assert supported_sets(frozenset({"avxvnni"}), "AMD64") == ("avxvnni", "portable")
    assert supported_sets(vnni, "aarch64") == ("portable",)
    assert supported_sets(frozenset({"avx2", "fma", "f16c"}), "x86_64") == ("avx2", "portable")
    assert supported_sets(frozenset({"avx2", "fma"}), "x86_64") == ("portable",)
    with pytest.raises(ValueError, match="EXACTSPEC_ISA must be one of"):
        describe_cpu({"EXACTSPEC_ISA": "sse9"})


def test_threads_may_share_a_target(target: ExactTarget) -> None:
    """Forwards from several threads queue up and give the right rows."""
    texts = [np.random.default_rng(i).integers(0, 250, 60 + i).tolist() for i in range(8)]
    expected = [logits(target, t) for t in texts]
    wrong: list[int] = []

    def work(i: int) -> None:
        for _ in range(10):
            (rows,) = target.forward([Segment.chain(target.new_cache(), texts[i], Want.NONE)])
            if len(rows) != len(texts[i]):
                wrong.append(i)

    workers = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert not wrong
    assert all(np.array_equal(logits(target, t), e) for t, e in zip(texts, expected, strict=True))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_forked_child_has_its_own_team(target: ExactTarget) -> None:
    expected = logits(target, [1, 2, 3])
    pid = os.fork()
    if pid == 0:
        os._exit(0 if np.array_equal(logits(target, [1, 2, 3]), expected) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert np.array_equal(logits(target, [1, 2, 3]), expected)


def test_garbage_values_harm_no_other_request() -> None:
    """Weights so large that a row overflows: it stays finite enough to leave its neighbours' bits alone."""

    class Huge(RandomWeights):
        def matrix(self, name: str, start: int = 0, stop: int | None = None) -> Any:
            rows = super().matrix(name, start, stop)
            if name == "embed":
                rows[13 - start : 14 - start] *= np.float32(1e30)
            return rows

    target = ExactTarget(Huge(), threads=2)
    cache = target.new_cache()
    target.forward([Segment.chain(cache, [1, 2, 3], Want.NONE)])
    cache.keep(range(3))
    (rows,) = target.forward([Segment.chain(cache.fork(), [4, 5], Want.LOGITS)])
    expected = rows.logits.copy()
    tree = Segment(cache, np.array([4, 13, 5, 13]), np.array([-1, 0, 0, 1]), np.full(4, Want.LOGITS))
    (rows,) = target.forward([tree])
    assert np.array_equal(rows.logits[[0, 2]], expected)
    cache.keep([0])
    (rows,) = target.forward([Segment.chain(cache, [5], Want.LOGITS)])
    assert np.array_equal(rows.logits, expected[1:])


def test_a_closed_target_says_so() -> None:
    target = ExactTarget(RandomWeights(), threads=2)
    target.close()
    with pytest.raises(RuntimeError, match="closed"):
        target.forward([Segment.chain(target.new_cache(), [1])])
