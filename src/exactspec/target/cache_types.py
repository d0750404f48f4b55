"""Types in which a cache holds keys and values. No compiled code is needed to name them.

`bfloat16` halves the memory of `float32` and what long contexts cost to read; `int8` halves it again, with a scale
per slot and kv head. What they cost in perplexity: docs/numerics.md.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CacheType:
    """`kind`: its number in the kernels; `element` bytes of a dimension; `scale` bytes beside each key and value."""

    kind: int
    element: int
    scale: int

    def token_bytes(self, layers: int, kv_heads: int, head_pad: int) -> int:
        """What one token takes. `head_pad`: dimensions of a key, padded to 32."""
        return layers * kv_heads * 2 * (head_pad * self.element + self.scale)


CACHE_TYPES = {"bfloat16": CacheType(1, 2, 0), "float32": CacheType(0, 4, 0), "int8": CacheType(2, 1, 4)}
DEFAULT_CACHE_DTYPE = "bfloat16"


def cache_type(name: str) -> CacheType:
    """ValueError on a name that is none."""
    if name not in CACHE_TYPES:
        raise ValueError(f"cache_dtype must be one of {', '.join(CACHE_TYPES)}, got {name!r}")
    return CACHE_TYPES[name]
