"""Every family against transformers: a tiny random model, from a folder and from a GGUF file of the same weights.

transformers and the float64 reference agree to rounding, so the settings were understood; the exact target agrees with
the reference within its 8 bits, so the kernels do what the reference does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import reference
from tiny_files import write_gguf

from exactspec.target.base import Segment, Want
from exactspec.target.exact import ExactTarget
from exactspec.target.gguf_file import GgufSource
from exactspec.target.load import open_model
from exactspec.target.safetensors_dir import SafetensorsSource
from exactspec.target.weights import ModelConfig, WeightSource

# Sizes that pad every which way; the head size is not hidden / heads.
SIZES = {
    "vocab_size": 301, "hidden_size": 72, "intermediate_size": 92, "num_hidden_layers": 3, "num_attention_heads": 6,
    "num_key_value_heads": 2, "head_dim": 20, "max_position_embeddings": 256,
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """`kind`: transformers' class names begin with it. `config`: more settings of config.json. `arch` and `keys`: the
    GGUF's architecture and more of its keys; no `arch`: the format cannot say it."""

    kind: str
    config: dict[str, Any] = field(default_factory=dict)
    arch: str | None = None
    keys: dict[str, Any] = field(default_factory=dict)


YARN = {
    "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "beta_fast": 4.0, "rope_theta": 1e3,
}  # fmt: skip
YARN_KEYS = {
    "rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 64,
    "rope.scaling.yarn_beta_fast": 4.0, "rope.freq_base": 1e3,
}  # fmt: skip
LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32, "rope_theta": 1e3,
}  # fmt: skip
GEMMA3 = {"sliding_window": 24, "query_pre_attn_scalar": 24, "num_hidden_layers": 7}
GEMMA3_KEYS = {"attention.sliding_window": 24, "rope.freq_base": 1e6}
GEMMA3_ROPE = {
    "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e3},
}
GRANITE = {
    "head_dim": None, "hidden_size": 120, "embedding_multiplier": 3.0, "residual_multiplier": 0.4,
    "attention_multiplier": 0.3, "logits_scaling": 2.5,
}  # fmt: skip
GRANITE_KEYS = {"embedding_scale": 3.0, "residual_scale": 0.4, "attention.scale": 0.3, "logit_scale": 2.5}
SMOLLM3 = {"head_dim": None, "hidden_size": 120, "num_hidden_layers": 4, "pad_token_id": 0}

CASES = {
    "llama": Case("Llama", arch="llama"),
    "mistral": Case("Mistral", {"sliding_window": 40}, "llama", {"attention.sliding_window": 40}),
    "ministral": Case(
        "Ministral", {"sliding_window": 70, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}
    ),
    "qwen3, window": Case("Qwen3", {"use_sliding_window": True, "sliding_window": 40, "max_window_layers": 1}),
    "llama, llama3 scaling": Case("Llama", {"rope_parameters": LLAMA3}),
    "llama, yarn": Case("Llama", {"rope_parameters": YARN}, "llama", YARN_KEYS),
    "qwen2, yarn, attention factor": Case(
        "Qwen2",
        {"rope_parameters": {**YARN, "attention_factor": 1.3}, "head_dim": None, "hidden_size": 120},
        "qwen2",
        YARN_KEYS | {"rope.scaling.attn_factor": 1.3 / (1 + 0.1 * np.log(4.0))},
    ),
    "llama, yarn, mscale, no rounding": Case(
        "Llama", {"rope_parameters": {**YARN, "mscale": 1.2, "mscale_all_dim": 0.5, "truncate": False}}
    ),
    "qwen3": Case("Qwen3", {"rope_parameters": {"rope_theta": 1e6}}, "qwen3", {"rope.freq_base": 1e6}),
    "qwen3, tied": Case("Qwen3", {"tie_word_embeddings": True}, "qwen3"),
    "gemma": Case("Gemma", {}, "gemma"),
    "gemma3": Case("Gemma3Text", GEMMA3 | {"query_pre_attn_scalar": 20}, "gemma3", GEMMA3_KEYS),
    "gemma3, scalar and scaling": Case(
        "Gemma3Text", GEMMA3 | {"rope_parameters": GEMMA3_ROPE, "sliding_window_pattern": 3}
    ),
    "granite": Case("Granite", GRANITE, "granite", GRANITE_KEYS),
    "smollm3": Case("SmolLM3", SMOLLM3, "smollm3", {"rope.freq_base": 2e6}),
}


@dataclass(frozen=True)
class Made:
    case: Case
    folder: Path
    tokens: list[int]
    logits: np.ndarray  # float32 [n, vocab], of transformers


@pytest.fixture(scope="module", params=CASES)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Made:
    """A random model of transformers in a folder, and its logits over a text as long as the context."""
    torch = pytest.importorskip("torch", reason="torch runs the reference model")
    transformers = pytest.importorskip("transformers", reason="transformers makes the reference model")
    case = CASES[request.param]
    prefix = case.kind
    model_class = getattr(transformers, "Gemma3ForCausalLM" if prefix == "Gemma3Text" else f"{prefix}ForCausalLM")
    settings = {key: value for key, value in (SIZES | case.config).items() if value is not None}
    torch.manual_seed(0)
    # Eager: the plainest of transformers' attentions, in float32.
    model = model_class(getattr(transformers, f"{prefix}Config")(**settings, attn_implementation="eager")).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 2:
                parameter.normal_(std=1.5 / parameter.shape[1] ** 0.5)
            elif name.endswith("bias"):
                parameter.normal_(std=0.5)
            else:
                parameter.add_(0.2 * torch.randn_like(parameter))
    folder = tmp_path_factory.mktemp("model")
    model.save_pretrained(folder)
    tokens = np.random.default_rng(1).integers(0, model.config.vocab_size, 200).tolist()
    with torch.inference_mode():
        logits = model(torch.tensor([tokens])).logits[0].numpy()
    return Made(case, folder, tokens, logits)


def as_gguf(source: WeightSource, case: Case, path: Path) -> Path:
    """The same model as a converter to GGUF writes it."""
    c = source.config
    names = ["embed", "norm"] + ([] if c.tied_head else ["head"])
    parts = ["attn_norm", "mlp_norm", "q", "k", "v", "o", "gate", "up", "down"]
    parts += ["q_bias", "k_bias", "v_bias"] if c.attention_bias else []
    parts += ["q_norm", "k_norm"] if c.qk_norm else []
    parts += ["post_attn_norm", "post_mlp_norm"] if c.post_norms else []
    names += [f"layers.{i}.{part}" for i in range(c.num_layers) for part in parts]
    vectors = ("norm", "_bias")
    weights = {name: source.vector(name) if name.endswith(vectors) else source.matrix(name) for name in names}
    sizes = {
        "context_length": 256, "embedding_length": c.hidden_size, "block_count": c.num_layers,
        "feed_forward_length": c.intermediate_size, "attention.head_count": c.num_heads,
        "attention.head_count_kv": c.num_kv_heads, "attention.layer_norm_rms_epsilon": c.rms_norm_eps,
        "attention.key_length": c.head_dim, "attention.value_length": c.head_dim,
    }  # fmt: skip
    assert case.arch is not None
    return write_gguf(path, case.arch, weights, metadata=sizes | case.keys)


def spread(logits: np.ndarray) -> float:
    return float(np.float64(logits).std())


def test_settings_and_tensors_are_those_of_transformers(made: Made) -> None:
    source = SafetensorsSource(made.folder)
    expected = reference.logits(source, made.tokens)
    assert np.abs(expected - made.logits).max() < 2e-4 * spread(made.logits)


def test_the_exact_target_computes_the_same(made: Made) -> None:
    source = SafetensorsSource(made.folder)
    target = ExactTarget(source, threads=2)
    (rows,) = target.forward([Segment.chain(target.new_cache(), made.tokens, Want.LOGITS)])
    found = rows.logits.copy()
    target.close()
    expected = reference.logits(source, made.tokens, int8_weights=True)
    error = np.abs(found - expected)
    assert error.mean() < 0.05 * spread(expected)
    assert error.max() < 0.7 * spread(expected)
    assert np.abs(found - made.logits).mean() < 0.1 * spread(made.logits)


def test_a_gguf_file_says_the_same(made: Made, tmp_path: Path) -> None:
    if made.case.arch is None:
        pytest.skip("GGUF has no key for this setting")
    folder = SafetensorsSource(made.folder)
    file = GgufSource(as_gguf(folder, made.case, tmp_path / "m.gguf"))
    usual = folder.config.head_dim**-0.5
    for entry in fields(ModelConfig):
        ours, theirs = getattr(file.config, entry.name), getattr(folder.config, entry.name)
        if entry.name == "query_scale":
            assert (ours or usual) == pytest.approx(theirs or usual)
        elif entry.name == "rope_divisors":
            assert (ours is None) == (theirs is None)
            assert ours is None or np.allclose(ours, theirs, rtol=1e-6)
        elif isinstance(theirs, float):
            assert ours == pytest.approx(theirs, rel=1e-6)  # a GGUF holds float32
        else:
            assert ours == theirs, entry.name
    assert np.allclose(reference.logits(file, made.tokens[:50]), made.logits[:50], atol=3e-4 * spread(made.logits))


@pytest.mark.model
def test_the_real_gemma3(named_model: Callable[[str], Path]) -> None:
    """Rows behind more tokens than the window of 512 holds, against transformers in float32 on the same file; and the
    same bits however they come."""
    torch = pytest.importorskip("torch", reason="torch runs the reference model")
    transformers = pytest.importorskip("transformers", reason="transformers makes the reference model")
    path = named_model("gemma3-270m")
    model = open_model(path)
    assert model.source.config.layer_windows == tuple(0 if i % 6 == 5 else 512 for i in range(18))
    text = (Path(__file__).parents[1] / "texts" / "eight_thousand.txt").read_text(encoding="utf-8")
    tokens, asked = model.tokenizer.encode(text)[:640], 40
    target = ExactTarget(model.source, threads=2)

    def logits(blocks: list[int]) -> np.ndarray:
        cache, at = target.new_cache(), 0
        found: list[np.ndarray] = []
        for size in blocks:
            want = np.where(np.arange(at, at + size) >= len(tokens) - asked, Want.LOGITS, Want.NONE)
            (rows,) = target.forward([Segment(cache, np.array(tokens[at : at + size]), np.arange(-1, size - 1), want)])
            found += [rows.row_logits(row).copy() for row in np.flatnonzero(want)]
            cache.keep(range(size))
            at += size
        return np.array(found)

    found = logits([640])
    assert np.array_equal(logits([600, *[1] * 5, 30, 5]), found)
    target.close()
    reference = transformers.AutoModelForCausalLM.from_pretrained(
        str(path.parent), gguf_file=path.name, dtype=torch.float32
    ).eval()
    with torch.inference_mode():
        right = reference(torch.tensor([tokens]), logits_to_keep=asked).logits[0].numpy()
    off = np.abs(found - right).mean()
    assert off < 0.1 * right.std()
    second, first = np.sort(right, axis=1)[:, -2:].T
    sure = first - second > 4 * off  # the others are near-ties, which int8 weights may decide otherwise
    assert sure.sum() > asked // 3
    assert (found.argmax(axis=1) == right.argmax(axis=1))[sure].all()
