"""Rotary settings of config.json: ``rope_parameters`` (transformers 5) or ``rope_theta`` with ``rope_scaling``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from exactspec.target.rope_scaling import (
    linear_divisors,
    llama3_divisors,
    yarn_attention_factor,
    yarn_divisors,
    yarn_reach,
)
from exactspec.target.settings import Settings, told

_FULL, _SLIDING = "full_attention", "sliding_attention"
_LOCAL_THETA = 10_000.0
_ORIGINAL = "original_max_position_embeddings"


@dataclass(frozen=True, slots=True, eq=False)
class Rope:
    """`theta`, `divisors` [head_dim / 2] and `factor`: as `rope_theta`, `rope_divisors` and `rope_factor` of
    `ModelConfig`. `reach`: positions that the scaling was made for (0: it does not say)."""

    theta: float
    divisors: npt.NDArray[np.float64] | None = None
    factor: float = 1.0
    reach: int = 0


def read_rope(
    raw: Mapping[str, Any], head_dim: int, max_position: int, theta: float, *, local_layers: bool
) -> tuple[Rope, Rope | None]:
    """Rotation of the model and, with `local_layers`, of its window layers. `theta`: the base where config.json is
    silent. ValueError names what is not supported."""
    parameters, scaling = _object(raw, "rope_parameters"), _object(raw, "rope_scaling")
    old = {"rope_theta": raw["rope_theta"]} if raw.get("rope_theta") is not None else {}
    partial = raw.get("partial_rotary_factor", 1.0)
    if partial not in (None, 1.0):
        raise ValueError(f"partial_rotary_factor {told(partial)} is not supported")
    if local_layers:
        full, sliding = _object(parameters, _FULL), _object(parameters, _SLIDING)
        if _FULL not in parameters and _SLIDING not in parameters:
            full = parameters
        full = {"rope_theta": theta} | old | dict(full or scaling)
        local = dict(sliding or {"rope_theta": raw.get("rope_local_base_freq") or _LOCAL_THETA})
        local_rope = _rope({"rope_theta": _LOCAL_THETA} | local, head_dim, max_position, raw)
        if local_rope.divisors is not None or local_rope.factor != 1:
            raise ValueError("config.json: rope scaling of the window layers is not supported")
        return _rope(full, head_dim, max_position, raw), local_rope
    if any(isinstance(value, Mapping) for value in parameters.values()):
        raise ValueError("config.json: rotary parameters that differ between layers are not supported")
    return _rope({"rope_theta": theta} | old | dict(parameters or scaling), head_dim, max_position, raw), None


def _object(values: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """A part of config.json; {} where it is null or not there."""
    value = values.get(key) or {}
    if not isinstance(value, Mapping):
        raise ValueError(f"config.json: {key} should be an object, it is {told(value)}")
    return value


def _rope(settings: Mapping[str, Any], head_dim: int, max_position: int, raw: Mapping[str, Any]) -> Rope:
    theta = Settings(settings, file="config.json").real("rope_theta")
    if settings.get("partial_rotary_factor", 1.0) not in (None, 1.0):
        raise ValueError(f"partial_rotary_factor {told(settings['partial_rotary_factor'])} is not supported")
    kind = settings.get("rope_type", settings.get("type", "default"))
    if kind in ("default", None):
        return Rope(theta)
    get = Settings(settings, file=f"rope scaling {told(kind)}")
    outer = Settings(raw, file="config.json").real(_ORIGINAL, 0.0)
    original = get.real(_ORIGINAL, outer or max_position)
    if kind == "linear":
        return Rope(theta, linear_divisors(get.real("factor"), head_dim))
    if kind == "llama3":
        numbers = {key: get.real(key) for key in ("factor", "low_freq_factor", "high_freq_factor")}
        numbers[_ORIGINAL] = original
        return Rope(theta, llama3_divisors(theta, head_dim, numbers))
    if kind == "yarn":
        return _yarn(get, theta, head_dim, max_position, original)
    raise ValueError(f"rope scaling {told(kind)} is not supported (linear, llama3 and yarn are)")


def _yarn(get: Settings, theta: float, head_dim: int, max_position: int, original: float) -> Rope:
    factor = get.real("factor", max_position / max(original, 1))
    divisors = yarn_divisors(
        theta,
        head_dim,
        factor=factor,
        original=original,
        beta_fast=get.real("beta_fast", 32.0),
        beta_slow=get.real("beta_slow", 1.0),
        truncate=get.flag("truncate", True),
    )
    mscale, all_dims = (get.real(key, 0.0) for key in ("mscale", "mscale_all_dim"))
    if get.value("attention_factor") is not None:
        attention = get.real("attention_factor")
    elif mscale > 0 and all_dims > 0:
        attention = yarn_attention_factor(factor, mscale) / yarn_attention_factor(factor, all_dims)
    else:
        attention = yarn_attention_factor(factor)
    return Rope(theta, divisors, attention, yarn_reach(factor, original))
