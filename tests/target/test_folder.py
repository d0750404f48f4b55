"""Folders as transformers writes them: every tensor comes back, every configuration is understood or refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from exactspec.target.hf_config import read_config
from exactspec.target.rope_scaling import llama3_divisors
from exactspec.target.safetensors_dir import SafetensorsSource


def save_tiny(kind: str, folder: Path, **options: object) -> dict[str, np.ndarray]:
    """A random model saved by transformers; file name -> array of its state."""
    torch = pytest.importorskip("torch", reason="torch writes the reference model")
    transformers = pytest.importorskip("transformers", reason="transformers writes the reference model")
    config, model = {
        "llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM),
        "qwen2": (transformers.Qwen2Config, transformers.Qwen2ForCausalLM),
        "mistral": (transformers.MistralConfig, transformers.MistralForCausalLM),
    }[kind]
    dtype, shard = options.pop("dtype", "float32"), options.pop("max_shard_size", "5GB")
    torch.manual_seed(0)
    sizes = {
        "vocab_size": 300, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128,
    }  # fmt: skip
    made = model(config(**sizes | options)).to(getattr(torch, dtype))
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.normal_()
    made.save_pretrained(folder, max_shard_size=shard)
    return {name: value.float().numpy() for name, value in made.state_dict().items()}


@pytest.mark.parametrize("kind", ["llama", "qwen2", "mistral"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_a_folder_gives_back_every_tensor(kind: str, dtype: str, tmp_path: Path) -> None:
    state = save_tiny(kind, tmp_path, dtype=dtype, tie_word_embeddings=dtype == "float16")
    source = SafetensorsSource(tmp_path)
    assert source.config.family == ("qwen2" if kind == "qwen2" else "llama")
    assert source.config.tied_head == (dtype == "float16")
    names = {"embed": "model.embed_tokens.weight", "norm": "model.norm.weight", "head": "lm_head.weight"}
    if source.config.tied_head:
        del names["head"]
    parts = {
        "attn_norm": "input_layernorm", "mlp_norm": "post_attention_layernorm", "q": "self_attn.q_proj",
        "k": "self_attn.k_proj", "v": "self_attn.v_proj", "o": "self_attn.o_proj", "gate": "mlp.gate_proj",
        "up": "mlp.up_proj", "down": "mlp.down_proj",
    }  # fmt: skip
    for i in range(2):
        names |= {f"layers.{i}.{part}": f"model.layers.{i}.{name}.weight" for part, name in parts.items()}
        if kind == "qwen2":
            names |= {f"layers.{i}.{p}_bias": f"model.layers.{i}.self_attn.{p}_proj.bias" for p in "qkv"}
    assert set(names.values()) == set(state) - ({"lm_head.weight"} if source.config.tied_head else set())
    for name, file_name in names.items():
        expected = state[file_name]
        if expected.ndim == 1:
            np.testing.assert_array_equal(source.vector(name), expected)
        else:
            np.testing.assert_array_equal(source.matrix(name), expected)
            np.testing.assert_array_equal(source.matrix(name, 3, 30), expected[3:30])


def test_a_sharded_folder_and_its_hash(tmp_path: Path) -> None:
    state = save_tiny("llama", tmp_path, max_shard_size="60KB")
    files = sorted(tmp_path.glob("*.safetensors"))
    assert len(files) > 1
    source = SafetensorsSource(tmp_path)
    np.testing.assert_array_equal(source.matrix("layers.1.down"), state["model.layers.1.mlp.down_proj.weight"])
    before = source.sha256
    assert before == SafetensorsSource(tmp_path).sha256
    data = bytearray(files[1].read_bytes())
    data[-1] ^= 1
    files[1].write_bytes(data)
    assert SafetensorsSource(tmp_path).sha256 != before
    files[0].unlink()
    with pytest.raises(ValueError, match=f"names {files[0].name}, which is missing"):
        SafetensorsSource(tmp_path)


def test_a_tied_head_that_is_stored_as_well(tmp_path: Path) -> None:
    """Equal values are one matrix, different ones two, as in transformers 5."""
    safetensors = pytest.importorskip("safetensors.numpy")
    state = save_tiny("llama", tmp_path, tie_word_embeddings=True)
    file = tmp_path / "model.safetensors"
    stored = safetensors.load_file(file)
    safetensors.save_file(stored | {"lm_head.weight": stored["model.embed_tokens.weight"].copy()}, file)
    assert SafetensorsSource(tmp_path).config.tied_head
    other = stored["model.embed_tokens.weight"] + 1
    safetensors.save_file(stored | {"lm_head.weight": other}, file)
    source = SafetensorsSource(tmp_path)
    assert not source.config.tied_head
    np.testing.assert_array_equal(source.matrix("head"), other)
    np.testing.assert_array_equal(source.matrix("embed"), state["model.embed_tokens.weight"])


def test_damaged_and_quantised_folders(tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors.numpy")
    save_tiny("llama", tmp_path)
    file = tmp_path / "model.safetensors"
    whole, stored = file.read_bytes(), safetensors.load_file(file)
    file.write_bytes(whole[:-10])
    with pytest.raises(ValueError, match=r"model\.safetensors is damaged or truncated"):
        SafetensorsSource(tmp_path)
    name = "model.layers.0.mlp.up_proj.weight"
    safetensors.save_file(stored | {name: stored[name].astype(np.int8)}, file)
    with pytest.raises(ValueError, match="has the type I8, which cannot be read"):
        SafetensorsSource(tmp_path)
    safetensors.save_file({key: value for key, value in stored.items() if key != name}, file)
    with pytest.raises(ValueError, match=f"tensor {name} is missing"):
        SafetensorsSource(tmp_path)
    stored[name][1, 1] = np.nan
    safetensors.save_file(stored, file)
    with pytest.raises(ValueError, match=f"tensor {name} holds values that are not finite"):
        SafetensorsSource(tmp_path).matrix("layers.0.up")
    (tmp_path / "config.json").unlink()
    with pytest.raises(ValueError, match=r"no config\.json"):
        SafetensorsSource(tmp_path)


CONFIG = {
    "model_type": "llama", "vocab_size": 300, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 32768,
}  # fmt: skip

REFUSED_CONFIGS = [
    ({"model_type": "mamba"}, "recurrent layers"),
    ({"model_type": "mixtral"}, "mixture-of-experts layers"),
    ({"model_type": "gemma3"}, "also sees images"),
    ({"model_type": "gemma2"}, "soft-capped"),
    ({"model_type": "gemma3_text", "final_logit_softcapping": 30.0}, "final_logit_softcapping 30.0"),
    ({"model_type": "gemma3_text", "sliding_window": None}, "no sliding_window"),
    ({"model_type": "gemma3_text", "layer_types": ["full_attention"]}, "layer_types names 1 layers"),
    ({"model_type": "granite", "logits_scaling": 0}, "logits_scaling 0.0 is out of range"),
    ({"model_type": "smollm3", "no_rope_layers": [1]}, "no_rope_layers"),
    ({"model_type": "mistral", "sliding_window": 0}, "sliding_window should be a positive integer"),
    ({"model_type": "gemma3_text", "sliding_window_pattern": 0}, "sliding_window_pattern"),
    ({"model_type": "qwen2", "layer_types": ["full_attention", "linear_attention"]}, "recurrent layers"),
    ({"rope_scaling": {"rope_type": "yarn", "factor": -4.0}}, "rope scaling 'yarn' has numbers out of range"),
    ({"rope_scaling": {"rope_type": "yarn", "factor": "4"}}, "factor should be a number"),
    ({"rope_scaling": {"rope_type": "linear"}}, "rope scaling 'linear' lacks factor"),
    ({"rope_scaling": {"type": "dynamic", "factor": 4.0}}, "rope scaling 'dynamic'"),
    ({"rope_parameters": {"rope_type": "longrope", "rope_theta": 1e4}}, "rope scaling 'longrope'"),
    ({"quantization_config": {"quant_method": "gptq"}}, "quantised safetensors"),
    ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
    ({"mlp_bias": True}, "mlp_bias"),
    ({"attention_bias": True}, "attention_bias"),
    ({"hidden_size": "big"}, "hidden_size should be an integer"),
    ({"vocab_size": None}, "config.json lacks vocab_size"),
]


@pytest.mark.parametrize(
    ("change", "reason"), REFUSED_CONFIGS, ids=[json.dumps(change) for change, _ in REFUSED_CONFIGS]
)
def test_configs_are_refused_by_name(change: dict[str, object], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        read_config(CONFIG | change)


MIXED = ["sliding_attention", "full_attention"] * 2


@pytest.mark.parametrize(
    ("change", "windows"),
    [
        ({}, None),
        ({"model_type": "mistral"}, (4096,) * 4),
        ({"model_type": "mistral", "sliding_window": None}, None),
        ({"model_type": "ministral", "sliding_window": 9, "layer_types": MIXED}, (9, 0, 9, 0)),
        ({"model_type": "qwen2", "sliding_window": 9, "use_sliding_window": False}, None),
        ({"model_type": "qwen2", "sliding_window": 9, "use_sliding_window": True}, None),
        ({"model_type": "qwen3", "use_sliding_window": True, "max_window_layers": 3}, (0, 0, 0, 4096)),
        ({"model_type": "qwen2", "use_sliding_window": True, "layer_types": ["full_attention"] * 4}, None),
        ({"model_type": "gemma3_text", "sliding_window": 9, "sliding_window_pattern": 2}, (9, 0, 9, 0)),
        ({"model_type": "gemma3_text", "sliding_window": 9, "layer_types": ["full_attention"] * 4}, None),
    ],
    ids=str,
)  # fmt: skip
def test_windows(change: dict[str, object], windows: tuple[int, ...] | None) -> None:
    assert read_config(CONFIG | {"num_hidden_layers": 4} | change).layer_windows == windows


def test_rope_settings_old_and_new() -> None:
    assert read_config(CONFIG | {"rope_theta": 5e5}).rope_theta == 5e5
    new = read_config(CONFIG | {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}})
    assert (new.rope_theta, new.rope_divisors) == (1e6, None)
    silent = {kind: read_config(CONFIG | {"model_type": kind}).rope_theta for kind in ("qwen3", "smollm3")}
    assert silent == {"qwen3": 1e4, "smollm3": 2e6}
    gemma3 = {"model_type": "gemma3_text", "sliding_window": 512}
    assert read_config(CONFIG | gemma3).rope_theta == 1e6
    old = {"rope_theta": 5e5, "rope_local_base_freq": 2e4, "rope_scaling": {"rope_type": "linear", "factor": 8.0}}
    both = read_config(CONFIG | gemma3 | old | {"num_hidden_layers": 7})
    assert (both.rope_theta, both.local_rope_theta) == (5e5, 2e4)
    assert both.rope_tables == (1, 1, 1, 1, 1, 0, 1)
    assert both.layer_windows == (512, 512, 512, 512, 512, 0, 512)
    np.testing.assert_array_equal(both.rope_divisors, np.full(128, 8.0))
    linear = read_config(CONFIG | {"rope_scaling": {"type": "linear", "factor": 2.0}})
    np.testing.assert_array_equal(linear.rope_divisors, np.full(8, 2.0))


def test_llama3_scaling_equals_the_published_formula() -> None:
    transformers = pytest.importorskip("transformers", reason="transformers has the reference formula")
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    scaling = {
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192, "rope_theta": 500000.0,
    }  # fmt: skip
    config = transformers.LlamaConfig(
        hidden_size=512, num_attention_heads=4, max_position_embeddings=131072, rope_parameters=scaling
    )
    expected = ROPE_INIT_FUNCTIONS["llama3"](config, device="cpu")[0].double().numpy()
    plain = 500000.0 ** (-np.arange(0, 128, 2) / 128)
    divisors = llama3_divisors(500000.0, 128, scaling)
    np.testing.assert_allclose(plain / divisors, expected, rtol=1e-6)
    assert divisors[0] == 1.0
    assert divisors[-1] == 8.0
    assert ((divisors > 1.0) & (divisors < 8.0)).any()
    old = {key: value for key, value in scaling.items() if key != "rope_theta"}
    np.testing.assert_array_equal(
        read_config(CONFIG | {"head_dim": 128, "rope_theta": 5e5, "rope_scaling": old}).rope_divisors, divisors
    )
