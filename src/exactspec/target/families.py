"""The model families this package runs: their tensors, their names in files, and what is refused, with the reason."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from exactspec.target.weights import ModelConfig

SUPPORTED = "llama (SmolLM2, Llama, Mistral) and qwen2"

_ARCHITECTURES = {"llama": "llama", "mistral": "llama", "qwen2": "qwen2"}

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
_WINDOW = frozenset(
    {
        "gemma2",
        "gemma3",
        "gemma3_text",
        "gemma3n",
        "gemma4",
        "cohere2",
        "olmo3",
        "exaone4",
        "smallthinker",
        "afmoe",
        "gpt-oss",
        "gpt_oss",
    }
)
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
    }
)

_LAYER_GGUF = {
    "attn_norm": "attn_norm.weight",
    "mlp_norm": "ffn_norm.weight",
    "q": "attn_q.weight",
    "k": "attn_k.weight",
    "v": "attn_v.weight",
    "o": "attn_output.weight",
    "gate": "ffn_gate.weight",
    "up": "ffn_up.weight",
    "down": "ffn_down.weight",
    "q_bias": "attn_q.bias",
    "k_bias": "attn_k.bias",
    "v_bias": "attn_v.bias",
}
_LAYER_HF = {
    "attn_norm": "input_layernorm.weight",
    "mlp_norm": "post_attention_layernorm.weight",
    "q": "self_attn.q_proj.weight",
    "k": "self_attn.k_proj.weight",
    "v": "self_attn.v_proj.weight",
    "o": "self_attn.o_proj.weight",
    "gate": "mlp.gate_proj.weight",
    "up": "mlp.up_proj.weight",
    "down": "mlp.down_proj.weight",
    "q_bias": "self_attn.q_proj.bias",
    "k_bias": "self_attn.k_proj.bias",
    "v_bias": "self_attn.v_proj.bias",
}
_TOP_GGUF = {"embed": "token_embd.weight", "norm": "output_norm.weight", "head": "output.weight"}
_TOP_HF = {"embed": "model.embed_tokens.weight", "norm": "model.norm.weight", "head": "lm_head.weight"}


def gguf_name(name: str) -> str:
    """Canonical name to the GGUF's: ``layers.3.q`` -> ``blk.3.attn_q.weight``."""
    if name in _TOP_GGUF:
        return _TOP_GGUF[name]
    _, layer, part = name.split(".")
    return f"blk.{layer}.{_LAYER_GGUF[part]}"


def hf_name(name: str) -> str:
    """Canonical name to that of transformers: ``layers.3.q`` -> ``model.layers.3.self_attn.q_proj.weight``."""
    if name in _TOP_HF:
        return _TOP_HF[name]
    _, layer, part = name.split(".")
    return f"model.layers.{layer}.{_LAYER_HF[part]}"


def family_of(architecture: str) -> str:
    """ "llama" or "qwen2"; ValueError, naming the kind of layer where it is known, for all others."""
    if architecture in _ARCHITECTURES:
        return _ARCHITECTURES[architecture]
    what = f"architecture {architecture!r}"
    if architecture in _RECURRENT or "mamba" in architecture or "rwkv" in architecture:
        raise ValueError(f"{what} is not supported yet: it has recurrent layers; supported are {SUPPORTED}")
    if architecture in _EXPERTS or "moe" in architecture:
        raise ValueError(f"{what} is not supported yet: it has mixture-of-experts layers; supported are {SUPPORTED}")
    if architecture in _WINDOW:
        raise ValueError(
            f"{what} is not supported yet: it has sliding window attention layers; supported are {SUPPORTED}"
        )
    raise ValueError(f"{what} is not supported; supported are {SUPPORTED}")


def check_window(window: int | None, context: int | None, max_position: int) -> None:
    """Refuse a sliding window shorter than the context in use (`context`, else all that the file allows).

    A window of w lets a token see itself and w - 1 before it, so contexts up to w do not notice it.
    """
    used = max_position if context is None else min(context, max_position)
    if window is not None and 0 < window < used:
        raise ValueError(
            f"the model has sliding window attention layers (window {window}), which are not supported at a context "
            f"of {used} tokens; ask for a context of at most {window}"
        )


def tensor_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Canonical name -> shape of every tensor that a model of these sizes has."""
    c = config
    q, kv = c.num_heads * c.head_dim, c.num_kv_heads * c.head_dim
    shapes: dict[str, tuple[int, ...]] = {"embed": (c.vocab_size, c.hidden_size), "norm": (c.hidden_size,)}
    if not c.tied_head:
        shapes["head"] = (c.vocab_size, c.hidden_size)
    layer: dict[str, tuple[int, ...]] = {
        "attn_norm": (c.hidden_size,),
        "mlp_norm": (c.hidden_size,),
        "q": (q, c.hidden_size),
        "k": (kv, c.hidden_size),
        "v": (kv, c.hidden_size),
        "o": (c.hidden_size, q),
        "gate": (c.intermediate_size, c.hidden_size),
        "up": (c.intermediate_size, c.hidden_size),
        "down": (c.hidden_size, c.intermediate_size),
    }
    if c.attention_bias:
        layer |= {"q_bias": (q,), "k_bias": (kv,), "v_bias": (kv,)}
    for i in range(c.num_layers):
        shapes |= {f"layers.{i}.{part}": shape for part, shape in layer.items()}
    return shapes


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
    if not (math.isfinite(c.rope_theta) and c.rope_theta > 0):
        raise ValueError(f"rope base {c.rope_theta} is out of range")
    if c.rope_divisors is not None:
        if c.rope_divisors.shape != (c.head_dim // 2,):
            raise ValueError(f"rope divisors have shape {c.rope_divisors.shape}, expected {(c.head_dim // 2,)}")
        if not (np.isfinite(c.rope_divisors).all() and (c.rope_divisors > 0).all()):
            raise ValueError("rope divisors must be finite and positive")
    return config


def check_tensors(config: ModelConfig, found: Mapping[str, tuple[int, ...]], named: Mapping[str, str]) -> None:
    """Hold the tensors of a file (file name -> shape) against the configuration.

    `named`: canonical name -> file name. ValueError, naming the tensor: missing, of another shape, or not part of
    such a model (a layer kind that would be left out in silence).
    """
    for name, shape in tensor_shapes(config).items():
        file_name = named[name]
        if file_name not in found:
            raise ValueError(f"tensor {file_name} is missing")
        if found[file_name] != shape:
            raise ValueError(f"tensor {file_name} has shape {found[file_name]}, the configuration says {shape}")
    if extra := sorted(set(found) - {named[name] for name in tensor_shapes(config)}):
        raise ValueError(
            f"tensor {extra[0]} does not belong to a plain {config.family} model"
            + (f" (and {len(extra) - 1} more)" if len(extra) > 1 else "")
        )


def matrix_shape(shapes: Mapping[str, tuple[int, ...]], name: str) -> tuple[int, int]:
    """Shape of a matrix by its canonical name. KeyError if the model has none of that name, ValueError for a vector."""
    shape = shapes[name]
    if len(shape) != 2:
        raise ValueError(f"{name} is a vector: read it with vector()")
    return shape[0], shape[1]


def vector_size(shapes: Mapping[str, tuple[int, ...]], name: str) -> int:
    """Length of a vector by its canonical name. KeyError if absent, ValueError for a matrix."""
    shape = shapes[name]
    if len(shape) != 1:
        raise ValueError(f"{name} is a matrix: read it with matrix()")
    return shape[0]


def row_range(name: str, rows: int, start: int, stop: int | None) -> tuple[int, int]:
    """`start` and `stop` with the default filled in; ValueError unless 0 <= start <= stop <= rows."""
    stop = rows if stop is None else stop
    if not 0 <= start <= stop <= rows:
        raise ValueError(f"{name} has rows 0:{rows}, asked for {start}:{stop}")
    return start, stop


def check_head_size(head_dim: int) -> None:
    """ValueError unless rotary embedding can pair the head's dimensions (and a damaged file asks for no gigabytes)."""
    if not 0 < head_dim <= 65536 or head_dim % 2:
        raise ValueError(f"head size {head_dim} is not supported: rotary embedding needs an even size up to 65536")


def linear_divisors(factor: float, head_dim: int) -> npt.NDArray[np.float64]:
    """Linear position scaling: every frequency divided by `factor`."""
    check_head_size(head_dim)
    return np.full(head_dim // 2, factor, dtype=np.float64)


def llama3_divisors(theta: float, head_dim: int, scaling: Mapping[str, Any]) -> npt.NDArray[np.float64]:
    """Divisors of Llama 3.1's scaling: long wavelengths by `factor`, short ones kept, a smooth step between.

    `scaling`: ``factor, low_freq_factor, high_freq_factor, original_max_position_embeddings`` of config.json.
    Method: ``apply_scaling`` of Meta's llama-models reference code, in float64.
    """
    check_head_size(head_dim)
    factor, low, high = (float(scaling[key]) for key in ("factor", "low_freq_factor", "high_freq_factor"))
    original = float(scaling["original_max_position_embeddings"])
    if not (factor > 0 and 0 < low < high and original > 0):
        raise ValueError(f"rope scaling 'llama3' has numbers out of range: {dict(scaling)}")
    frequency = theta ** (-np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)
    wavelength = 2 * np.pi / frequency
    smooth = (original / wavelength - low) / (high - low)
    scaled = (1 - smooth) * frequency / factor + smooth * frequency
    divisors = np.where(wavelength > original / low, factor, frequency / scaled)
    return np.where(wavelength < original / high, 1.0, divisors)
