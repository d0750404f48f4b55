"""How models stretch rotary embedding to longer contexts: divisors of the inverse frequencies, one a pair."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt


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
    if not (1e-6 < factor < 1e6 and 1e-6 < low < high < 1e6 and 0 < original < 2**31 and 1 <= theta < 1e30):
        raise ValueError(f"rope scaling 'llama3' has numbers out of range: {dict(scaling)}")
    frequency = theta ** (-np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)
    wavelength = 2 * np.pi / frequency
    smooth = (original / wavelength - low) / (high - low)
    scaled = (1 - smooth) * frequency / factor + smooth * frequency
    divisors = np.where(wavelength > original / low, factor, frequency / scaled)
    return np.where(wavelength < original / high, 1.0, divisors)


def yarn_divisors(
    theta: float,
    head_dim: int,
    *,
    factor: float,
    original: float,
    beta_fast: float = 32.0,
    beta_slow: float = 1.0,
    truncate: bool = True,
) -> npt.NDArray[np.float64]:
    """Divisors of YaRN's "NTK by parts" (arXiv 2309.00071, section 3.2).

    Pairs that turn more than `beta_fast` times within `original` positions are kept, those that turn less than
    `beta_slow` times are divided by `factor`, the ones between are blended along a ramp over the pair's index.
    `truncate`: the ramp's ends are rounded to whole indices, outwards.
    """
    check_head_size(head_dim)
    # The bounds are far from any model's numbers; within them nothing overflows.
    if not (
        1e-6 < factor < 1e6 and 0 < original < 2**31 and 1e-6 < beta_slow <= beta_fast < 1e6 and 1.001 < theta < 1e30
    ):
        raise ValueError(
            f"rope scaling 'yarn' has numbers out of range: factor {factor}, original {original}, "
            f"beta {beta_fast} and {beta_slow}, base {theta}"
        )

    def pair(turns: float) -> float:
        return head_dim * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low, high = pair(beta_fast), pair(beta_slow)
    if truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    ramp = np.clip((np.arange(head_dim // 2, dtype=np.float64) - low) / max(high - low, 0.001), 0, 1)
    divisors: npt.NDArray[np.float64] = 1 / (ramp / factor + (1 - ramp))
    return divisors


def yarn_reach(factor: float, original: float) -> int:
    """Positions that a model was stretched to. ValueError on more than there can be."""
    reach = factor * original
    if not reach < 2**31:
        raise ValueError(f"rope scaling 'yarn' has numbers out of range: {factor} times {original} positions")
    return int(reach)


def yarn_attention_factor(factor: float, mscale: float = 1.0) -> float:
    """What YaRN multiplies cos and sin with: 0.1 mscale ln(factor) + 1 (section 3.4), 1 for a factor up to 1."""
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0
