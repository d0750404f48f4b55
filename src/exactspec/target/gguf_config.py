"""The header of a GGUF file to `ModelConfig`; what would change the arithmetic is refused by name."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from exactspec.target.families import FAMILIES, check_config, family_of
from exactspec.target.gguf_header import GgufHeader, GgufTensor
from exactspec.target.rope_scaling import linear_divisors, yarn_attention_factor, yarn_divisors, yarn_reach
from exactspec.target.settings import Settings, told
from exactspec.target.weights import ModelConfig

_GEMMA3_PERIOD = 6  # of six layers of gemma3 the last sees everything
_GEMMA3_LOCAL_THETA = 10_000.0
_SMOLLM3_PERIOD = 4  # of four layers of smollm3 the last does not rotate


def read_config(header: GgufHeader, stored_divisors: npt.NDArray[np.float64] | None) -> ModelConfig:
    """Sizes of the model that a header describes. `stored_divisors`: of the file's ``rope_freqs.weight``.
    Raises ValueError, naming the key."""
    metadata, tensors = header.metadata, header.tensors
    general = Settings(metadata)
    kind = general.text("general.type", "model")
    if kind != "model":
        raise ValueError(f"this GGUF file is not a language model but of the type {told(kind)}")
    if "general.architecture" not in metadata:
        raise ValueError("this GGUF file names no architecture")
    arch = general.text("general.architecture")
    name = family_of(arch)
    family = FAMILIES[name]
    parts = general.size("split.count", 1)
    if parts > 1:
        raise ValueError(f"this GGUF file is one of {parts} parts; join them first: llama-gguf-split --merge")
    get = Settings(metadata, f"{arch}.")
    _refuse_variants(get, tensors, name)
    hidden, heads, layers = (get.size(key) for key in ("embedding_length", "attention.head_count", "block_count"))
    head_dim = get.size("attention.key_length", hidden // max(heads, 1))
    if get.size("attention.value_length", head_dim) != head_dim:
        raise ValueError("keys and values of different sizes are not supported")
    rotary = get.size("rope.dimension_count", head_dim)
    if rotary != head_dim:
        raise ValueError(f"rotary embedding over a part of the head ({rotary} of {head_dim}) is not supported")
    if layers > len(tensors):
        raise ValueError(f"the file names {layers} layers and holds only {len(tensors)} tensors")
    if "token_embd.weight" not in tensors:
        raise ValueError("tensor token_embd.weight is missing")
    theta = get.real("rope.freq_base", 1_000_000.0 if name == "gemma3" else 10_000.0)
    max_position = get.size("context_length")
    divisors, rope_factor, reach = _rope(get, stored_divisors, theta, head_dim, max_position)
    windows = _windows(get, name, layers)
    tables, local_theta = None, None
    if name == "gemma3" and windows is not None:
        tables = tuple(1 if window else 0 for window in windows)
        local_theta = get.real("rope.freq_base_swa", _GEMMA3_LOCAL_THETA)
    if name == "smollm3":
        tables = tuple(1 if (i + 1) % _SMOLLM3_PERIOD == 0 else 0 for i in range(layers))
        local_theta = 0.0
    return check_config(
        ModelConfig(
            family=name,
            vocab_size=tensors["token_embd.weight"].shape[0],
            hidden_size=hidden,
            num_layers=layers,
            num_heads=heads,
            num_kv_heads=get.size("attention.head_count_kv", heads),
            head_dim=head_dim,
            intermediate_size=get.size("feed_forward_length"),
            rms_norm_eps=get.real("attention.layer_norm_rms_epsilon"),
            rope_theta=theta,
            rope_divisors=divisors,
            max_position=max(max_position, reach),
            tied_head="output.weight" not in tensors,
            attention_bias="blk.0.attn_q.bias" in tensors or family.attention_bias,
            qk_norm=family.qk_norm,
            post_norms=family.post_norms,
            activation=family.activation,
            rope_factor=rope_factor,
            local_rope_theta=local_theta,
            rope_tables=tables,
            layer_windows=windows,
            **_scales(get, name, hidden, heads, layers),
        )
    )


def _refuse_variants(get: Settings, tensors: Mapping[str, GgufTensor], family: str) -> None:
    """Keys that change the arithmetic of a supported architecture; ignoring one gives wrong text in silence."""
    if get.size("expert_count", 0) > 0 or any("_exps." in name for name in tensors):
        raise ValueError("the model has mixture-of-experts layers, which are not supported yet")
    if not get.flag("attention.causal", True):
        raise ValueError("the model is not causal (an embedding model); it cannot generate text")
    if family != "granite":  # the one family with these scalars
        for key in ("logit_scale", "embedding_scale", "residual_scale"):
            if get.real(key, 0.0) not in (0.0, 1.0):
                raise ValueError(f"{key} {told(get.value(key))} is not supported")
        if get.real("attention.scale", 0.0):
            raise ValueError(f"attention.scale {told(get.value('attention.scale'))} is not supported")
    for key in ("attention.clamp_kqv", "attn_logit_softcapping", "final_logit_softcapping"):
        if get.real(key, 0.0):
            raise ValueError(f"{key} {told(get.value(key))} is not supported")


def _scales(get: Settings, family: str, hidden: int, heads: int, layers: int) -> dict[str, Any]:
    """The scalars of a family, as fields of `ModelConfig`."""
    scales: dict[str, Any] = {}
    if FAMILIES[family].scaled_embedding:
        scales["embed_scale"] = math.sqrt(hidden)
    if family == "gemma3" and layers == 62:
        # No key states query_pre_attn_scalar. It is the head size but for the 27B model, known by its layers.
        scales["query_scale"] = max(hidden / max(heads, 1), 1) ** -0.5
    if family == "granite":
        # A file that lacks one, or says 0, means "none"
        scales["embed_scale"] = get.real("embedding_scale", 1.0) or 1.0
        scales["residual_scale"] = get.real("residual_scale", 1.0) or 1.0
        scales["logit_scale"] = 1 / (get.real("logit_scale", 1.0) or 1.0)
        scales["query_scale"] = get.real("attention.scale", 0.0) or None
    return scales


def _windows(get: Settings, family: str, layers: int) -> tuple[int, ...] | None:
    """The window of each layer (0: none), or None where no layer has one."""
    window = get.size("attention.sliding_window", 0)
    if not window or family in ("qwen2", "qwen3", "smollm3"):
        return None  # these files may state a window that is switched off
    if family != "gemma3":
        return (window,) * layers
    pattern = get.value("attention.sliding_window_pattern", _GEMMA3_PERIOD)
    if isinstance(pattern, np.ndarray):
        if len(pattern) != layers:
            raise ValueError(f"attention.sliding_window_pattern has {len(pattern)} entries for {layers} layers")
        if pattern.dtype.kind not in "biu":
            raise get.wrong("attention.sliding_window_pattern", "a number, or a flag for each layer")
        slides = [bool(entry) for entry in pattern]
    else:
        period = get.size("attention.sliding_window_pattern", _GEMMA3_PERIOD)
        if period < 1:
            raise ValueError("attention.sliding_window_pattern should be at least 1")
        slides = [(i + 1) % period != 0 for i in range(layers)]
    return tuple(window if slide else 0 for slide in slides) if any(slides) else None


def _rope(
    get: Settings, stored: npt.NDArray[np.float64] | None, theta: float, head_dim: int, max_position: int
) -> tuple[npt.NDArray[np.float64] | None, float, int]:
    """Divisors, the factor on cos and sin, and the positions that the scaling was made for (0: it does not say)."""
    kind = get.text("rope.scaling.type", "linear")
    factor, reach = 1.0, 0
    divisors = None
    if kind == "linear":
        stretch = get.real("rope.scaling.factor", get.real("rope.scale_linear", 0.0))
        if stretch not in (0.0, 1.0):
            divisors = linear_divisors(stretch, head_dim)
    elif kind == "yarn":
        for key, value in (("yarn_ext_factor", 1.0), ("yarn_log_multiplier", 0.0)):
            if get.real(f"rope.scaling.{key}", value) != value:
                raise ValueError(f"rope.scaling.{key} {told(get.value(f'rope.scaling.{key}'))} is not supported")
        stretch = get.real("rope.scaling.factor")
        original = get.size("rope.scaling.original_context_length", max_position)
        divisors = yarn_divisors(
            theta,
            head_dim,
            factor=stretch,
            original=original,
            beta_fast=get.real("rope.scaling.yarn_beta_fast", 32.0),
            beta_slow=get.real("rope.scaling.yarn_beta_slow", 1.0),
        )
        factor = yarn_attention_factor(stretch) * get.real("rope.scaling.attn_factor", 1.0)
        reach = yarn_reach(stretch, original)
    elif kind != "none":
        raise ValueError(f"rope scaling {told(kind)} is not supported (linear, yarn and Llama 3's are)")
    if divisors is None:
        return stored, factor, reach
    return divisors if stored is None else divisors * stored, factor, reach
