"""Rotary settings of config.json: ``rope_parameters`` (transformers 5) or ``rope_theta`` with ``rope_scaling``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from exactspec.target.rope_scaling import linear_divisors, llama3_divisors, yarn_attention_factor, yarn_divisors

_FULL, _SLIDING = "full_attention", "sliding_attention"
_LOCAL_THETA = 10_000.0


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
    parameters = raw.get("rope_parameters") or {}
    scaling = raw.get("rope_scaling") or {}
    if not isinstance(parameters, Mapping) or not isinstance(scaling, Mapping):
        raise ValueError("config.json: rope_parameters and rope_scaling should be objects")
    old = {"rope_theta": raw["rope_theta"]} if raw.get("rope_theta") is not None else {}
    partial = raw.get("partial_rotary_factor", 1.0)
    if partial not in (None, 1.0):
        raise ValueError(f"partial_rotary_factor {partial} is not supported")
    if local_layers:
        full, sliding = parameters.get(_FULL), parameters.get(_SLIDING)
        if full is None and sliding is None and parameters:
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


def _rope(settings: Mapping[str, Any], head_dim: int, max_position: int, raw: Mapping[str, Any]) -> Rope:
    theta = _number(settings, "rope_theta")
    if settings.get("partial_rotary_factor", 1.0) not in (None, 1.0):
        raise ValueError(f"partial_rotary_factor {settings['partial_rotary_factor']} is not supported")
    kind = settings.get("rope_type", settings.get("type", "default"))
    if kind in ("default", None):
        return Rope(theta)
    stated = settings.get("original_max_position_embeddings")
    if stated is None:
        stated = raw.get("original_max_position_embeddings") or max_position
    original = _number({"original_max_position_embeddings": stated}, "original_max_position_embeddings")
    try:
        if kind == "linear":
            return Rope(theta, linear_divisors(_number(settings, "factor"), head_dim))
        if kind == "llama3":
            numbers = {key: _number(settings, key) for key in ("factor", "low_freq_factor", "high_freq_factor")}
            numbers["original_max_position_embeddings"] = original
            return Rope(theta, llama3_divisors(theta, head_dim, numbers))
        if kind == "yarn":
            return _yarn(settings, theta, head_dim, max_position, original)
    except KeyError as error:
        raise ValueError(f"rope scaling {kind!r} lacks {error}") from None
    raise ValueError(f"rope scaling {kind!r} is not supported (linear, llama3 and yarn are)")


def _yarn(settings: Mapping[str, Any], theta: float, head_dim: int, max_position: int, original: float) -> Rope:
    factor = max_position / original if settings.get("factor") is None else _number(settings, "factor")
    divisors = yarn_divisors(
        theta,
        head_dim,
        factor=factor,
        original=original,
        beta_fast=_number(settings, "beta_fast", 32.0),
        beta_slow=_number(settings, "beta_slow", 1.0),
        truncate=bool(settings.get("truncate", True)),
    )
    mscale, all_dims = (_number(settings, key, 0.0) for key in ("mscale", "mscale_all_dim"))
    if settings.get("attention_factor") is not None:
        attention = _number(settings, "attention_factor")
    elif mscale and all_dims:
        attention = yarn_attention_factor(factor, mscale) / yarn_attention_factor(factor, all_dims)
    else:
        attention = yarn_attention_factor(factor)
    return Rope(theta, divisors, attention, int(factor * original))


def _number(settings: Mapping[str, Any], key: str, default: float | None = None) -> float:
    value = settings.get(key)
    if value is None:
        value = default
    if value is None:
        raise KeyError(key)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"config.json: {key} should be a number, it is {value!r}")
    return float(value)
