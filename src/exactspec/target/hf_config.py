"""config.json of transformers (4 and 5) to `ModelConfig`; what would change the arithmetic is refused by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from exactspec.target.families import check_config, check_window, family_of, linear_divisors, llama3_divisors
from exactspec.target.weights import ModelConfig

# What transformers assumes where config.json is silent (it writes only what differs from these).
_DEFAULT_POSITIONS = {"llama": 2048, "mistral": 131072, "qwen2": 32768}
_DEFAULT_WINDOW = 4096
_DEFAULT_KV_HEADS = {"mistral": 8, "qwen2": 32}


def read_config(raw: Mapping[str, Any], *, context: int | None = None) -> ModelConfig:
    """Sizes of the model that config.json describes. `context`: tokens in use, to judge a sliding window.

    Raises ValueError, naming the setting: an unsupported family, layer kind, scaling or quantisation, or a size
    that is missing.
    """
    if "model_type" not in raw:
        raise ValueError("config.json has no model_type")
    kind = str(raw["model_type"])
    family = family_of(kind)
    _refuse_variants(raw, family)
    hidden, heads = _size(raw, "hidden_size"), _size(raw, "num_attention_heads")
    head_dim = _size(raw, "head_dim", hidden // max(heads, 1))
    max_position = _size(raw, "max_position_embeddings", _DEFAULT_POSITIONS[kind])
    check_window(_window(raw, kind), context, max_position)
    theta, divisors = _rope(raw, head_dim)
    return check_config(
        ModelConfig(
            family=family,
            vocab_size=_size(raw, "vocab_size"),
            hidden_size=hidden,
            num_layers=_size(raw, "num_hidden_layers"),
            num_heads=heads,
            num_kv_heads=_size(raw, "num_key_value_heads", _DEFAULT_KV_HEADS.get(kind, heads)),
            head_dim=head_dim,
            intermediate_size=_size(raw, "intermediate_size"),
            rms_norm_eps=float(raw.get("rms_norm_eps", 1e-6)),
            rope_theta=theta,
            rope_divisors=divisors,
            max_position=max_position,
            tied_head=bool(raw.get("tie_word_embeddings", False)),
            attention_bias=family == "qwen2",
        )
    )


def _size(raw: Mapping[str, Any], key: str, default: int | None = None) -> int:
    value = raw.get(key)
    if value is None:
        value = default
    if value is None:
        raise ValueError(f"config.json has no {key}")
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**31:
        raise ValueError(f"config.json: {key} should be an integer in range, it is {value!r}")
    return value


def _refuse_variants(raw: Mapping[str, Any], family: str) -> None:
    quantisation = raw.get("quantization_config")
    if quantisation:
        method = quantisation.get("quant_method", "unknown") if isinstance(quantisation, dict) else quantisation
        raise ValueError(f"quantised safetensors ({method}) cannot be read; take the unquantised model or a GGUF file")
    activation = raw.get("hidden_act", "silu")
    if activation not in ("silu", "swish"):
        raise ValueError(f"hidden_act {activation!r} is not supported (silu is)")
    if family == "llama" and raw.get("attention_bias", False):
        raise ValueError("attention_bias with a bias on the attention output is not supported")
    if raw.get("mlp_bias", False):
        raise ValueError("mlp_bias is not supported")
    if raw.get("partial_rotary_factor", 1.0) != 1.0:
        raise ValueError(f"partial_rotary_factor {raw['partial_rotary_factor']} is not supported")
    if raw.get("num_local_experts", 0) or raw.get("num_experts", 0):
        raise ValueError("the model has mixture-of-experts layers, which are not supported yet")


def _window(raw: Mapping[str, Any], kind: str) -> int | None:
    """The window of the layers that have one, or None. qwen2 files state one that is switched off."""
    kinds = raw.get("layer_types")
    if kinds:
        unknown = sorted(set(kinds) - {"full_attention", "sliding_attention"})
        if unknown:
            recurrent = any(word in unknown[0] for word in ("linear", "mamba", "recurrent", "conv"))
            raise ValueError(
                f"the model has {unknown[0]} layers{' (recurrent layers)' if recurrent else ''}; not supported"
            )
        if "sliding_attention" not in kinds:
            return None
    if kind == "qwen2":
        if not raw.get("use_sliding_window", False):
            return None
        if not kinds and _size(raw, "max_window_layers", 28) >= _size(raw, "num_hidden_layers"):
            return None  # the first max_window_layers layers see everything, and these are all
    elif kind != "mistral":
        return None  # llama's code knows no window
    window = raw.get("sliding_window", _DEFAULT_WINDOW)
    return None if window is None else int(window)


def _rope(raw: Mapping[str, Any], head_dim: int) -> tuple[float, npt.NDArray[np.float64] | None]:
    """Rotary base and divisors: ``rope_parameters`` (transformers 5) or ``rope_theta`` with ``rope_scaling``."""
    parameters = raw.get("rope_parameters") or {}
    scaling = parameters or raw.get("rope_scaling") or {}
    if not isinstance(scaling, Mapping) or any(isinstance(value, Mapping) for value in scaling.values()):
        raise ValueError("config.json: rotary parameters that differ between layers are not supported")
    theta = float(parameters.get("rope_theta", raw.get("rope_theta", 10000.0)))
    if scaling.get("partial_rotary_factor", 1.0) != 1.0:
        raise ValueError(f"partial_rotary_factor {scaling['partial_rotary_factor']} is not supported")
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind == "default":
        return theta, None
    try:
        if kind == "linear":
            return theta, linear_divisors(float(scaling["factor"]), head_dim)
        if kind == "llama3":
            return theta, llama3_divisors(theta, head_dim, scaling)
    except KeyError as error:
        raise ValueError(f"rope scaling {kind!r} lacks {error}") from None
    raise ValueError(f"rope scaling {kind!r} is not supported (linear and llama3 are)")
