"""Tiny random models in memory, as weight sources of the exact target."""

from __future__ import annotations

import hashlib
from typing import Any

import gguf
import numpy as np

from exactspec.target.base import FloatArray
from exactspec.target.families import FAMILIES
from exactspec.target.weights import FourBitRows, ModelConfig


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

    def _shape(self, name: str) -> tuple[int, int]:
        c = self.config
        q, kv = c.num_heads * c.head_dim, c.num_kv_heads * c.head_dim
        return {
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

    def matrix(self, name: str, start: int = 0, stop: int | None = None) -> FloatArray:
        rows, width = self._shape(name)
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


def four_bit_blocks(kind: str, rows: int, width: int, rng: np.random.Generator, spread: float = 1.0) -> np.ndarray:
    """Random rows uint8 [rows, bytes of a row] of "Q4_0", "Q4_1" or "Q4_K", weights about `spread` in size."""
    weights, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]
    blocks = rng.integers(0, 256, (rows, width // weights, size), dtype=np.uint8)
    scale = spread / 4.6 * rng.uniform(0.5, 1.5, blocks.shape[:2])
    if (
        kind == "Q4_K"
    ):  # six-bit multiples of both: minima are 7.5 of the scales, more or less, so that the mean is small
        scale /= 32
        multiples = rng.integers(1, 64, (*blocks.shape[:2], 8), dtype=np.uint8)
        minima = np.clip(multiples + rng.integers(-3, 4, multiples.shape), 0, 63).astype(np.uint8)
        low, high = (multiples[..., :4], minima[..., :4]), (multiples[..., 4:], minima[..., 4:])
        blocks[..., 4:8], blocks[..., 8:12] = low[0] | high[0] >> 4 << 6, low[1] | high[1] >> 4 << 6
        blocks[..., 12:16] = high[0] & 15 | high[1] << 4
    begin = np.stack([scale, (7.5 if kind == "Q4_K" else -7.5) * scale], axis=-1)[..., : 1 if kind == "Q4_0" else 2]
    halves = begin.astype("<f2").view(np.uint8)
    blocks[..., : halves.shape[-1]] = halves
    return blocks.reshape(rows, -1)


class FourBitWeights(RandomWeights):
    """`RandomWeights` with blocks of four bits. `kinds`: last part of a matrix's name to ggml's name of its type."""

    def __init__(self, *arguments: Any, kinds: dict[str, str], **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._kinds = kinds

    @property
    def sha256(self) -> str:
        return hashlib.sha256(f"{super().sha256} {self._kinds}".encode()).hexdigest()

    def block_kind(self, name: str) -> str:
        return self._kinds.get(name.split(".")[-1], "F32")

    def four_bit(self, name: str) -> FourBitRows | None:
        kind = self.block_kind(name)
        if kind == "F32":
            return None
        rows, width = self._shape(name)
        digest = hashlib.sha256(f"{self._seed} {name}".encode()).digest()
        rng = np.random.default_rng(int.from_bytes(digest[:8], "little"))
        return FourBitRows(kind, four_bit_blocks(kind, rows, width, rng, 1.5 / np.sqrt(width)), width)

    def matrix(self, name: str, start: int = 0, stop: int | None = None) -> FloatArray:
        blocks = self.four_bit(name)
        if blocks is None:
            return super().matrix(name, start, stop)
        kind = gguf.GGMLQuantizationType[blocks.kind]
        return gguf.quants.dequantize(blocks.rows[start:stop], kind).astype(np.float32)
