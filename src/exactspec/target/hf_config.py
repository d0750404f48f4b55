"""config.json of transformers (4 and 5) to `ModelConfig`; what would change the arithmetic is refused by name."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from exactspec.target.families import FAMILIES, Family, check_config, family_of
from exactspec.target.hf_rope import Rope, read_rope
from exactspec.target.settings import Settings, told
from exactspec.target.weights import ModelConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class _Defaults:
    """What transformers assumes where config.json is silent (it need not write what equals these)."""

    positions: int
    kv_heads: int | None = None  # None: as many as heads
    head_dim: int | None = None  # None: hidden_size / heads
    tied: bool = False
    window: int | None = None
    theta: float = 10_000.0


_DEFAULTS = {
    "llama": _Defaults(positions=2048),
    "mistral": _Defaults(positions=131072, kv_heads=8, window=4096),
    "ministral": _Defaults(positions=131072, kv_heads=8, window=4096),
    "qwen2": _Defaults(positions=32768, kv_heads=32, window=4096),
    "qwen3": _Defaults(positions=32768, kv_heads=32, head_dim=128, window=4096),
    "gemma": _Defaults(positions=8192, kv_heads=16, head_dim=256, tied=True),
    "gemma3_text": _Defaults(positions=131072, kv_heads=4, head_dim=256, tied=True, window=4096, theta=1_000_000.0),
    "granite": _Defaults(positions=2048),
    "smollm3": _Defaults(positions=32768, kv_heads=4, tied=True, theta=2_000_000.0),
}
_ACTIVATIONS = {"silu": "silu", "swish": "silu", "gelu_pytorch_tanh": "gelu_tanh", "gelu_new": "gelu_tanh"}
_MOST_LAYERS = 10_000  # what a damaged file says takes no memory
_FULL, _SLIDING = "full_attention", "sliding_attention"


def read_config(raw: Mapping[str, Any]) -> ModelConfig:
    """Sizes of the model that config.json describes.

    Raises ValueError, naming the setting: an unsupported family, layer kind, scaling or quantisation, or a size
    that is missing.
    """
    get = Settings(raw, file="config.json")
    kind = get.text("model_type")
    if kind == "gemma3":
        raise ValueError("architecture 'gemma3' in a folder also sees images, which is not supported; take a GGUF file")
    name = family_of(kind)
    family, defaults = FAMILIES[name], _DEFAULTS[kind]
    _refuse_variants(raw, get, name)
    hidden, heads, layers = (get.size(key) for key in ("hidden_size", "num_attention_heads", "num_hidden_layers"))
    if layers > _MOST_LAYERS:
        raise ValueError(f"config.json: {layers} layers are more than any model has")
    head_dim = get.size("head_dim", defaults.head_dim or hidden // max(heads, 1))
    windows = _windows(raw, get, kind, layers, defaults.window)
    stated = get.size("max_position_embeddings", defaults.positions)
    rope, local = read_rope(raw, head_dim, stated, defaults.theta, local_layers=name == "gemma3")
    tables, local_theta = _tables(get, name, layers, windows, local)
    return check_config(
        ModelConfig(
            family=name,
            vocab_size=get.size("vocab_size"),
            hidden_size=hidden,
            num_layers=layers,
            num_heads=heads,
            num_kv_heads=get.size("num_key_value_heads", defaults.kv_heads or heads),
            head_dim=head_dim,
            intermediate_size=get.size("intermediate_size"),
            rms_norm_eps=get.real("rms_norm_eps", 1e-6),
            rope_theta=rope.theta,
            rope_divisors=rope.divisors,
            max_position=max(stated, rope.reach),
            tied_head=get.flag("tie_word_embeddings", defaults.tied and "tie_word_embeddings" not in raw),
            attention_bias=family.attention_bias,
            qk_norm=family.qk_norm,
            post_norms=family.post_norms,
            activation=_activation(get, family),
            rope_factor=rope.factor,
            local_rope_theta=local_theta,
            rope_tables=tables,
            layer_windows=windows,
            **_scales(get, name, hidden),
        )
    )


def _refuse_variants(raw: Mapping[str, Any], get: Settings, family: str) -> None:
    quantisation = raw.get("quantization_config")
    if quantisation:
        method = quantisation.get("quant_method", "unknown") if isinstance(quantisation, dict) else quantisation
        raise ValueError(
            f"quantised safetensors ({told(method)}) cannot be read; take the unquantised model or a GGUF file"
        )
    if family != "qwen2" and raw.get("attention_bias", False):
        raise ValueError("attention_bias with a bias on the attention output is not supported")
    if raw.get("mlp_bias", False):
        raise ValueError("mlp_bias is not supported")
    if raw.get("num_local_experts", 0) or raw.get("num_experts", 0):
        raise ValueError("the model has mixture-of-experts layers, which are not supported yet")
    if raw.get("use_bidirectional_attention"):
        raise ValueError("the model is not causal (use_bidirectional_attention); it cannot generate text")
    for key in ("attn_logit_softcapping", "final_logit_softcapping"):
        if raw.get(key):
            raise ValueError(f"{key} {told(raw[key])} is not supported")


def _activation(get: Settings, family: Family) -> str:
    """Gemma's first files say "gelu" and mean the tanh form, as transformers reads them."""
    stated = get.text("hidden_activation", "") or get.text("hidden_act", "")
    if not stated or (stated == "gelu" and family.activation == "gelu_tanh"):
        return family.activation
    if stated not in _ACTIVATIONS:
        raise ValueError(f"hidden_act {told(stated)} is not supported ({', '.join(_ACTIVATIONS)} are)")
    return _ACTIVATIONS[stated]


def _scales(get: Settings, family: str, hidden: int) -> dict[str, Any]:
    """The scalars of a family, as fields of `ModelConfig`."""
    if family == "granite":
        logits = get.real("logits_scaling", 1.0)
        if logits <= 0:
            raise ValueError(f"logits_scaling {logits} is out of range")
        return {
            "embed_scale": get.real("embedding_multiplier", 1.0),
            "query_scale": get.real("attention_multiplier", 1.0),
            "residual_scale": get.real("residual_multiplier", 1.0),
            "logit_scale": 1 / logits,
        }
    scales: dict[str, Any] = {}
    if FAMILIES[family].scaled_embedding:
        scales["embed_scale"] = math.sqrt(hidden)
    if family == "gemma3":
        scalar = get.real("query_pre_attn_scalar", 256.0)
        if scalar <= 0:
            raise ValueError(f"query_pre_attn_scalar {scalar} is out of range")
        scales["query_scale"] = scalar**-0.5
    return scales


def _windows(
    raw: Mapping[str, Any], get: Settings, kind: str, layers: int, default: int | None
) -> tuple[int, ...] | None:
    """The window of each layer (0: none), or None where no layer has one; some files state one that is switched off."""
    kinds = get.texts("layer_types")
    if kinds:
        unknown = sorted(set(kinds) - {_FULL, _SLIDING})
        if unknown:
            recurrent = any(word in unknown[0] for word in ("linear", "mamba", "recurrent", "conv"))
            raise ValueError(
                f"the model has {unknown[0][:60]} layers{' (recurrent layers)' if recurrent else ''}; not supported"
            )
        if len(kinds) != layers:
            raise ValueError(f"config.json: layer_types names {len(kinds)} layers, num_hidden_layers {layers}")
    if kind in ("llama", "gemma", "granite"):
        return None  # their code knows no window
    if kind in ("qwen2", "qwen3", "smollm3") and not get.flag("use_sliding_window", False):
        return None
    window = raw.get("sliding_window", default)  # null says that there is none
    if window is None:
        if kind == "gemma3_text" or _SLIDING in (kinds or ()):
            raise ValueError("config.json names sliding window attention layers and no sliding_window")
        return None
    window = get.size("sliding_window", default)
    if window < 1:
        raise get.wrong("sliding_window", "a positive integer")
    if kind == "mistral":
        slides = [True] * layers  # its code asks for the window alone
    elif kinds:
        slides = [name == _SLIDING for name in kinds]
    elif kind == "gemma3_text":
        period = get.size("sliding_window_pattern", get.size("_sliding_window_pattern", 6))
        if period < 1:
            raise ValueError("config.json: sliding_window_pattern should be at least 1")
        slides = [(i + 1) % period != 0 for i in range(layers)]
    elif kind == "smollm3":
        slides = [not turns for turns in _rotating(get, layers)]
    elif kind == "ministral":
        slides = [True] * layers
    else:
        first = get.size("max_window_layers", 28)
        slides = [i >= first for i in range(layers)]
    return tuple(window if slide else 0 for slide in slides) if any(slides) else None


def _rotating(get: Settings, layers: int) -> list[bool]:
    """smollm3: whether a layer rotates at all."""
    stated = get.value("no_rope_layers")  # in spite of its name 1 where a layer rotates
    if stated is not None:
        if not isinstance(stated, list) or len(stated) < layers:
            raise ValueError(f"config.json: no_rope_layers should have an entry for each of {layers} layers")
        return [bool(entry) for entry in stated[:layers]]
    interval = max(get.size("no_rope_layer_interval", 4), 1)
    return [(i + 1) % interval != 0 for i in range(layers)]


def _tables(
    get: Settings, family: str, layers: int, windows: tuple[int, ...] | None, local: Rope | None
) -> tuple[tuple[int, ...] | None, float | None]:
    """`ModelConfig.rope_tables` and `local_rope_theta`."""
    if family == "smollm3":
        return tuple(0 if turns else 1 for turns in _rotating(get, layers)), 0.0
    if local is None or windows is None:
        return None, None
    return tuple(1 if window else 0 for window in windows), local.theta
