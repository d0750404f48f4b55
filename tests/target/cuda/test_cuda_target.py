"""The GPU target against the CPU's and an independent forward, what it refuses, and the engine on it."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import reference
from tiny_weights import RandomWeights

from exactspec.target.base import Segment, Want
from exactspec.target.exact import ExactTarget

SHAPES: dict[str, dict[str, Any]] = {
    "llama": {"family": "llama"},
    "odd qwen2": {
        "family": "qwen2",
        "tied_head": True,
        "hidden_size": 72,
        "num_heads": 3,
        "num_kv_heads": 3,
        "head_dim": 20,
        "intermediate_size": 140,
        "vocab_size": 101,
    },
    "large": {"hidden_size": 256, "num_heads": 4, "num_kv_heads": 1, "head_dim": 64, "intermediate_size": 500},
}


def open_target(source: Any, device: str, **options: Any) -> Any:
    from exactspec.target.cuda.target import CudaTarget

    return CudaTarget(source, device=device, **options)


@pytest.mark.parametrize("shape", SHAPES)
def test_closeness(shape: str, device: str) -> None:
    """As near to a float64 forward as the CPU's exact target with 8-bit activations, and near it: padding differs,
    so do the groups of inputs that share a scale, and roundings fall on other sides."""
    source = RandomWeights(**SHAPES[shape])
    target, cpu = open_target(source, device), ExactTarget(source, threads=2, cache_dtype="float32", accuracy="narrow")
    tokens = np.random.default_rng(1).integers(0, target.vocab_size, 16).tolist()
    (rows,) = target.forward([Segment.chain(target.new_cache(), tokens, Want.LOGITS)])
    found = rows.logits.copy()
    (theirs,) = cpu.forward([Segment.chain(cpu.new_cache(), tokens, Want.LOGITS)])
    expected = reference.logits(source, tokens, int8_weights=True)
    spread = expected.std()
    error = np.abs(found - expected).mean()
    assert found.shape == (16, target.vocab_size)
    assert error < 0.04 * spread
    assert error < 1.25 * np.abs(theirs.logits - expected).mean()
    assert np.abs(found - theirs.logits).mean() < 0.04 * spread
    assert rows.hidden.shape == theirs.hidden.shape
    assert np.abs(rows.hidden - theirs.hidden).mean() < 0.04 * theirs.hidden.std()
    shifted = reference.logits(source, [7, *tokens], int8_weights=True)[1:]
    assert np.abs(found - shifted).mean() > 0.08 * spread  # a wrong position would show
    cpu.close()


def test_weights_are_the_cpus_integers(device: str) -> None:
    """int8 per output channel, as the CPU target quantises them."""
    source = RandomWeights()
    target = open_target(source, device)
    matrix = source.matrix("layers.1.down")
    packed = target.weights.layers[1].down
    q, scale = packed.q.cpu().numpy(), packed.scale.cpu().numpy()
    expected = np.rint(matrix / (np.abs(matrix).max(axis=1, keepdims=True) / np.float32(127)))
    assert np.array_equal(q[: matrix.shape[0], : matrix.shape[1]], expected)
    np.testing.assert_array_equal(scale[: len(matrix)], np.abs(matrix).max(axis=1) / np.float32(127))
    assert not q[:, matrix.shape[1] :].any()


def test_refusals(device: str) -> None:
    target = open_target(RandomWeights(max_position=20, num_layers=1), device)
    segment = lambda tokens, cache=None: Segment.chain(cache or target.new_cache(), tokens)  # noqa: E731
    with pytest.raises(ValueError, match="token 260 is outside the vocabulary"):
        target.forward([segment([1, 260])])
    with pytest.raises(ValueError, match="past the longest context of 20 tokens"):
        target.forward([segment([1] * 21)])
    one = segment([1])
    with pytest.raises(ValueError, match="once per forward"):
        target.forward([one, one])
    cpu = ExactTarget(RandomWeights(), threads=1)
    with pytest.raises(ValueError, match="use this target's new_cache"):
        target.forward([segment([1], cpu.new_cache())])
    cpu.close()
    assert target.forward([]) == []
    with pytest.raises(ValueError, match="context must be at least 1"):
        open_target(RandomWeights(), device, context=0)
    with pytest.raises(ValueError, match="family 'gemma3' runs on the CPU only so far"):
        open_target(RandomWeights(family="gemma3"), device)
    source = RandomWeights()
    source.config = replace(source.config, layer_windows=(0, 64), activation="gelu_tanh")
    with pytest.raises(ValueError, match="gelu_tanh gates, layers with attention windows: it runs on the CPU only"):
        open_target(source, device)
    source.config = replace(source.config, activation="silu")
    assert open_target(source, device, context=64).max_length == 64


def test_identity_names_what_the_bits_depend_on(device: str) -> None:
    import torch
    import triton

    target = open_target(RandomWeights(num_layers=1), device)
    for part in (f"torch-{torch.__version__}", f"triton-{triton.__version__}", target.device.name, "cache-float32"):
        assert part in target.identity.split("/")
    other = open_target(RandomWeights(num_layers=1, seed=1), device)
    assert other.identity != target.identity


def test_drafting_changes_no_token(device: str) -> None:
    """The engine on this target: drafted equals plain, and drafts are accepted."""
    from scripted import IdTokenizer

    from exactspec.engine import Engine
    from exactspec.params import SamplingParams

    source = RandomWeights(num_layers=1, num_heads=2, num_kv_heads=1)
    target = open_target(source, device)
    prompt = [3, 4, 5, 6] * 3
    results = []
    for draft in ("none", "copy"):
        engine = Engine(target, IdTokenizer(target.vocab_size), draft=draft)
        results.append(engine.generate(prompt, SamplingParams(max_tokens=12)))
    assert results[0].token_ids == results[1].token_ids
    assert results[1].metrics.num_draft_tokens > 0


@pytest.mark.parametrize(
    ("variables", "name", "message"),
    [
        ({"TRITON_INTERPRET": "1"}, "cuda", "device cuda: TRITON_INTERPRET=1 keeps kernels off the GPU; unset it"),
        ({}, "cpu", "the GPU kernels run on a CPU only for tests: set TRITON_INTERPRET=1"),
        ({}, "gpu", "device must be cpu, cuda or cuda:N, got 'gpu'"),
        ({"CUDA_VISIBLE_DEVICES": ""}, "cuda:0", "device cuda:0 cannot be used: "),
    ],
)
def test_devices_that_cannot_be_used(
    variables: dict[str, str], name: str, message: str, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from exactspec.target.cuda.device import open_device

    if name == "cuda:0" and device != "cpu":
        pytest.skip("there is a GPU")
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    for variable, value in variables.items():
        monkeypatch.setenv(variable, value)
    with pytest.raises(ValueError, match=f"^{message}") as raised:
        open_device(name)
    assert "\n" not in str(raised.value)


def test_without_torch_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    from exactspec.target.cuda.device import open_device

    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ValueError, match=r"^device cuda needs torch and triton .*pip install 'exactspec\[gpu\]'"):
        open_device("cuda")


def test_the_kernels_compile_for_gpus() -> None:
    """Every kernel becomes machine code for compute capability 9.0, without a spilled register, no GPU needed."""
    pytest.importorskip("triton", reason="the GPU target needs triton")
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    script = os.path.join(os.path.dirname(__file__), "compile_kernels.py")
    done = subprocess.run([sys.executable, script, "90"], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    lines = done.stdout.splitlines()
    assert len(lines) == 15
    for line in lines:
        assert " 0 bytes spilled" in line, line
        # No multiply-add where the kernels do not ask for one, and integer products on tensor cores.
        assert ("0 mma" not in line) == ("product" in line), line
