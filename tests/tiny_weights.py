"""Tiny random models in memory, as weight sources of the exact target."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

from exactspec.target.base import FloatArray
from exactspec.target.families import FAMILIES
from exactspec.target.weights import ModelConfig


class RandomWeights:
    """F2: a decoder of a family with random weights, the same for the same `seed`. Rows of logits are about as peaked
    as a real model's, so that greedy and sampled texts vary. `others`: more fields of `ModelConfig`."""

    def __init__(
        self,
        family: str = "llama",
        *,
        seed: int = 0,
        vocab_size: int = 260,
        hidden_size: int = 64,
        num_layers: int = 2,
        num_heads: int = 4,
        num_kv_heads: int = 2,
        head_dim: int = 16,
        intermediate_size: int = 96,
        max_position: int = 4096,
        tied_head: bool = False,
        **others: Any,
    ) -> None:
        traits = FAMILIES[family]
        own = {"qk_norm": traits.qk_norm, "post_norms": traits.post_norms, "activation": traits.activation}
        self.config = ModelConfig(
            family=family,
            vocab_size=vocab_size,
            hidden_size=hidden_size,
            num_layers=num_layers,
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            intermediate_size=intermediate_size,
            rms_norm_eps=1e-5,
            rope_theta=10000.0,
            rope_divisors=None,
            max_position=max_position,
            tied_head=tied_head,
            **{"attention_bias": traits.attention_bias, **own, **others},
        )
        self._seed = seed

    @property
    def sha256(self) -> str:
        return hashlib.sha256(repr((self.config, self._seed)).encode()).hexdigest()

    def _random(self, name: str, *shape: int) -> FloatArray:
        digest = hashlib.sha256(f"{self._seed} {name}".encode()).digest()
        rng = np.random.default_rng(int.from_bytes(digest[:8], "little"))
        return rng.standard_normal(shape).astype(np.float32)

    def matrix(self, name: str, start: int = 0, stop: int | None = None) -> FloatArray:
        c = self.config
        q, kv = c.num_heads * c.head_dim, c.num_kv_heads * c.head_dim
        rows, width = {
            "embed": (c.vocab_size, c.hidden_size),
            "head": (c.vocab_size, c.hidden_size),
            "q": (q, c.hidden_size),
            "k": (kv, c.hidden_size),
            "v": (kv, c.hidden_size),
            "o": (c.hidden_size, q),
            "gate": (c.intermediate_size, c.hidden_size),
            "up": (c.intermediate_size, c.hidden_size),
            "down": (c.hidden_size, c.intermediate_size),
        }[name.split(".")[-1]]
        gain = 2.0 if name in ("embed", "head") else 1.5
        return (self._random(name, rows, width) * (gain / np.sqrt(width)))[start:stop].astype(np.float32)

    def vector(self, name: str) -> FloatArray:
        c = self.config
        if not name.endswith("_bias"):
            size = c.head_dim if name.endswith(("q_norm", "k_norm")) else c.hidden_size
            return (1 + 0.1 * self._random(name, size)).astype(np.float32)
        heads = c.num_heads if name.endswith("q_bias") else c.num_kv_heads
        return (0.5 * self._random(name, heads * c.head_dim)).astype(np.float32)

    def close(self) -> None:
        pass
