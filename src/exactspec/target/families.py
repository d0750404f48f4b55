"""The model families this package runs, and what is refused, with the reason."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from exactspec.target.rope_scaling import check_head_size
from exactspec.target.settings import told
from exactspec.target.weights import ModelConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """What the layers of a family have that those of llama lack.

    `attention_bias`, `qk_norm`, `post_norms`: as of `ModelConfig`. `scaled_embedding`: times sqrt(hidden_size).
    `norm_offset`: added to the norm weights of a folder; GGUF files hold the sum. `paired_gguf`: query and key rows of
    GGUF files are stored for interleaved rotary pairs.
    """

    attention_bias: bool = False
    qk_norm: bool = False
    post_norms: bool = False
    activation: str = "silu"
    scaled_embedding: bool = False
    norm_offset: float = 0.0
    paired_gguf: bool = False


FAMILIES: Mapping[str, Family] = MappingProxyType(
    {
        "llama": Family(paired_gguf=True),
        "qwen2": Family(attention_bias=True),
        "qwen3": Family(qk_norm=True),
        "gemma": Family(activation="gelu_tanh", scaled_embedding=True, norm_offset=1.0),
        "gemma3": Family(activation="gelu_tanh", scaled_embedding=True, norm_offset=1.0, qk_norm=True, post_norms=True),
        "granite": Family(paired_gguf=True),
        "smollm3": Family(paired_gguf=True),
    }
)
SUPPORTED = "llama (SmolLM2, Llama, Mistral), qwen2, qwen3, gemma, gemma3, granite and smollm3"

# Architecture names of GGUF files and model_type of config.json.
_ARCHITECTURES = {name: name for name in FAMILIES} | {
    "mistral": "llama",
    "ministral": "llama",
    "gemma3_text": "gemma3",
}

# Architecture names of GGUF files and model_type of config.json, by the kind of layer that keeps them out.
_RECURRENT = frozenset(
    {
        "mamba",
        "mamba2",
        "falcon_mamba",
        "rwkv",
        "rwkv5",
        "rwkv6",
        "rwkv7",
        "rwkv6qwen2",
        "arwkv7",
        "jamba",
        "bamba",
        "zamba",
        "zamba2",
        "plamo2",
        "plamo3",
        "falcon-h1",
        "falcon_h1",
        "granitehybrid",
        "granitemoehybrid",
        "nemotron_h",
        "nemotron_h_moe",
        "recurrent_gemma",
        "recurrentgemma",
        "griffin",
        "xlstm",
        "retnet",
        "qwen3next",
        "qwen3_next",
        "qwen35",
        "qwen35moe",
        "lfm2",
        "lfm2moe",
        "lfm2_moe",
        "kimi-linear",
        "kimi_linear",
        "minimax",
    }
)
_CAPPED = frozenset({"gemma2"})
_EXPERTS = frozenset(
    {
        "mixtral",
        "dbrx",
        "grok",
        "arctic",
        "deepseek",
        "deepseek2",
        "deepseek_v2",
        "deepseek_v3",
        "llama4",
        "smallthinker",
        "afmoe",
        "gpt-oss",
        "gpt_oss",
    }
)


def family_of(architecture: str) -> str:
    """The name of the family in `FAMILIES`; ValueError, naming the kind of layer where it is known, for all others."""
    if architecture in _ARCHITECTURES:
        return _ARCHITECTURES[architecture]
    what = f"architecture {told(architecture)}"
    if architecture in _RECURRENT or "mamba" in architecture or "rwkv" in architecture:
        raise ValueError(f"{what} is not supported yet: it has recurrent layers; supported are {SUPPORTED}")
    if architecture in _EXPERTS or "moe" in architecture:
        raise ValueError(f"{what} is not supported yet: it has mixture-of-experts layers; supported are {SUPPORTED}")
    if architecture in _CAPPED:
        raise ValueError(f"{what} is not supported: its attention scores are soft-capped; supported are {SUPPORTED}")
    raise ValueError(f"{what} is not supported; supported are {SUPPORTED}")


def check_config(config: ModelConfig) -> ModelConfig:
    """The configuration itself, once its sizes are known to fit together; ValueError names the one that does not."""
    c = config
    for field in ("vocab_size", "hidden_size", "num_layers", "num_heads", "num_kv_heads", "head_dim"):
        if getattr(c, field) < 1:
            raise ValueError(f"{field} must be at least 1, the file says {getattr(c, field)}")
    if c.intermediate_size < 1 or c.max_position < 1:
        raise ValueError(f"sizes must be positive, the file says {c.intermediate_size} and {c.max_position}")
    if c.num_heads % c.num_kv_heads:
        raise ValueError(f"{c.num_heads} heads cannot share {c.num_kv_heads} key-value heads evenly")
    check_head_size(c.head_dim)
    if not (math.isfinite(c.rms_norm_eps) and c.rms_norm_eps >= 0):
        raise ValueError(f"norm epsilon {c.rms_norm_eps} is out of range")
    if not 1 <= c.rope_theta < 1e30:
        raise ValueError(f"rope base {c.rope_theta} is out of range")
    if c.rope_divisors is not None:
        if c.rope_divisors.shape != (c.head_dim // 2,):
            raise ValueError(f"rope divisors have shape {c.rope_divisors.shape}, expected {(c.head_dim // 2,)}")
        if not ((c.rope_divisors > 1e-6) & (c.rope_divisors < 1e31)).all():
            raise ValueError("rope divisors are out of range")
    if c.activation not in ("silu", "gelu_tanh"):
        raise ValueError(f"activation {c.activation!r} is not supported (silu and gelu_tanh are)")
    scales = {
        "rope_factor": c.rope_factor,
        "embed_scale": c.embed_scale,
        "query_scale": 1.0 if c.query_scale is None else c.query_scale,
        "residual_scale": c.residual_scale,
        "logit_scale": c.logit_scale,
    }
    for name, value in scales.items():
        if not 1e-30 < value < 1e30:
            raise ValueError(f"{name} {value} is out of range")
    if c.local_rope_theta is not None and c.local_rope_theta != 0 and not 1 <= c.local_rope_theta < 1e30:
        raise ValueError(f"rope base {c.local_rope_theta} of local layers is out of range")
    for name in ("layer_windows", "rope_tables"):
        entries = getattr(c, name)
        if entries is not None and (len(entries) != c.num_layers or min(entries) < 0):
            raise ValueError(f"{name} needs one number for each of {c.num_layers} layers, it is {told(entries)}")
    if c.rope_tables is not None and max(c.rope_tables) > (0 if c.local_rope_theta is None else 1):
        raise ValueError("rope_tables names a table that the model lacks")
    return config
