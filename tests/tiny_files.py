"""Tiny random model files, made in the tests: GGUF with the `gguf` writer, whatever tokenizer is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np

HIDDEN, HEADS, KV_HEADS, HEAD, INNER, LAYERS, VOCAB = 64, 4, 2, 16, 96, 2, 300


def permute(rows: np.ndarray, heads: int) -> np.ndarray:
    """What llama.cpp's converter does to a query or key matrix (``LlamaModel.permute``)."""
    shape = (heads, 2, rows.shape[0] // heads // 2, *rows.shape[1:])
    return np.ascontiguousarray(rows.reshape(shape).swapaxes(1, 2).reshape(rows.shape))


def matrices(seed: int = 0, *, tied: bool = False, bias: bool = False) -> dict[str, np.ndarray]:
    """Canonical name -> random float32, in rotate-half order."""
    rng = np.random.default_rng(seed)

    def make(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape).astype(np.float32)

    out = {"embed": make(VOCAB, HIDDEN), "norm": make(HIDDEN)}
    if not tied:
        out["head"] = make(VOCAB, HIDDEN)
    for i in range(LAYERS):
        sizes = {
            "attn_norm": (HIDDEN,), "mlp_norm": (HIDDEN,), "q": (HEADS * HEAD, HIDDEN), "k": (KV_HEADS * HEAD, HIDDEN),
            "v": (KV_HEADS * HEAD, HIDDEN), "o": (HIDDEN, HEADS * HEAD), "gate": (INNER, HIDDEN), "up": (INNER, HIDDEN),
            "down": (HIDDEN, INNER),
        }  # fmt: skip
        if bias:
            sizes |= {"q_bias": (HEADS * HEAD,), "k_bias": (KV_HEADS * HEAD,), "v_bias": (KV_HEADS * HEAD,)}
        out |= {f"layers.{i}.{name}": make(*shape) for name, shape in sizes.items()}
    return out


_NAMES = {
    "attn_norm": "attn_norm.weight", "mlp_norm": "ffn_norm.weight", "q": "attn_q.weight", "k": "attn_k.weight",
    "v": "attn_v.weight", "o": "attn_output.weight", "gate": "ffn_gate.weight", "up": "ffn_up.weight",
    "down": "ffn_down.weight", "q_bias": "attn_q.bias", "k_bias": "attn_k.bias", "v_bias": "attn_v.bias",
    "q_norm": "attn_q_norm.weight", "k_norm": "attn_k_norm.weight", "post_attn_norm": "post_attention_norm.weight",
    "post_mlp_norm": "post_ffw_norm.weight", "embed": "token_embd.weight", "norm": "output_norm.weight",
    "head": "output.weight",
}  # fmt: skip


PAIRED = ("llama", "granite", "smollm3")


def stored_tensors(arch: str, weights: Mapping[str, np.ndarray], head: int = HEAD) -> dict[str, np.ndarray]:
    """File name -> array as a converter writes it: query and key rows of llama files and their like permuted."""
    out = {}
    for name, array in weights.items():
        *where, part = name.split(".")
        if arch in PAIRED and part in ("q", "k", "q_bias", "k_bias"):
            array = permute(array, array.shape[0] // head)
        out[(f"blk.{where[1]}." if where else "") + _NAMES[part]] = array
    return out


def byte_vocabulary(merges: list[str], controls: list[str], size: int = VOCAB) -> dict[str, Any]:
    """A byte-level vocabulary: 256 bytes, the merged tokens, control tokens, the rest unused."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in printable]
    tokens = [chr(b) for b in printable] + [chr(256 + i) for i in range(len(others))]
    tokens += [merge.replace(" ", "") for merge in merges]
    kinds = [1] * len(tokens) + [3] * len(controls)
    tokens += controls
    kinds += [5] * (size - len(tokens))
    tokens += [f"[PAD{i}]" for i in range(len(tokens), size)]
    return {"model": "gpt2", "pre": "gpt-2", "tokens": tokens, "kinds": kinds, "merges": merges}


DEFAULT_VOCABULARY = byte_vocabulary(["h e", "l l", "he ll", "Ġ Ġ"], ["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
EOS = DEFAULT_VOCABULARY["tokens"].index("<|endoftext|>")


def write_gguf(
    path: Path,
    arch: str = "llama",
    weights: Mapping[str, np.ndarray] | None = None,
    *,
    metadata: Mapping[str, Any] | None = None,
    drop: tuple[str, ...] = (),
    stored: Mapping[str, tuple[np.ndarray, gguf.GGMLQuantizationType]] | None = None,
    vocabulary: Mapping[str, Any] | None = None,
    template: str | None = None,
) -> Path:
    """A GGUF file. `metadata`: keys under the architecture (or with a dot in front: whole keys) to add or replace.
    `stored`: tensors by file name as raw bytes of a type. `drop`: metadata keys and tensors left out."""
    weights = matrices(bias=arch == "qwen2") if weights is None else weights
    writer = gguf.GGUFWriter(path, arch)
    values: dict[str, Any] = {
        "context_length": 128, "embedding_length": HIDDEN, "block_count": LAYERS, "feed_forward_length": INNER,
        "attention.head_count": HEADS, "attention.head_count_kv": KV_HEADS, "attention.layer_norm_rms_epsilon": 1e-5,
        "rope.freq_base": 10000.0, "attention.key_length": HEAD, "attention.value_length": HEAD,
    }  # fmt: skip
    values |= metadata or {}
    for key, value in values.items():
        if key in drop:
            continue
        full = key[1:] if key.startswith(".") else f"{arch}.{key}"
        if isinstance(value, bool):
            writer.add_bool(full, value)
        elif isinstance(value, int):
            writer.add_uint32(full, value)
        elif isinstance(value, float):
            writer.add_float32(full, value)
        elif isinstance(value, list):
            writer.add_array(full, value)
        else:
            writer.add_string(full, value)
    vocabulary = DEFAULT_VOCABULARY if vocabulary is None else vocabulary
    writer.add_tokenizer_model(vocabulary["model"])
    if "pre" in vocabulary:
        writer.add_tokenizer_pre(vocabulary["pre"])
    writer.add_token_list(vocabulary["tokens"])
    writer.add_token_types(vocabulary["kinds"])
    if "merges" in vocabulary:
        writer.add_token_merges(vocabulary["merges"])
    if "scores" in vocabulary:
        writer.add_token_scores(vocabulary["scores"])
    for key, value in vocabulary.get("ids", {"eos": EOS}).items():
        writer.add_uint32(f"tokenizer.ggml.{key}_token_id", value)
    for key, value in vocabulary.get("flags", {}).items():
        writer.add_bool(f"tokenizer.ggml.{key}", value)
    if template is not None:
        writer.add_chat_template(template)
    for name, array in stored_tensors(arch, weights, values["attention.key_length"]).items():
        if name in drop or name in (stored or {}):
            continue
        writer.add_tensor(name, array)
    for name, (raw, kind) in (stored or {}).items():
        writer.add_tensor(name, raw, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
