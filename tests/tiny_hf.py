"""Tiny random models of transformers, and folders that hold one with a tokenizer. Import only where torch is there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import transformers
from tiny_tokenizers import CHATML, SPECIALS
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

VOCAB = 259  # 256 bytes and the special tokens
_SIZES = {
    "vocab_size": VOCAB, "hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 64, "max_position_embeddings": 256, "head_dim": 16,
    "bos_token_id": None, "eos_token_id": 256, "pad_token_id": None,
}  # fmt: skip
_GPT2 = {"n_embd": 48, "n_head": 4, "n_layer": 3, "n_positions": 256, "vocab_size": VOCAB, "bos_token_id": None}
_MIXED = ["sliding_attention", "full_attention", "sliding_attention"]

MODELS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", "LlamaForCausalLM", _SIZES),
    "qwen2": ("Qwen2Config", "Qwen2ForCausalLM", _SIZES),
    "qwen3": ("Qwen3Config", "Qwen3ForCausalLM", _SIZES),
    "mistral window 8": ("MistralConfig", "MistralForCausalLM", _SIZES | {"sliding_window": 8}),
    "qwen2 some windows": (
        "Qwen2Config",
        "Qwen2ForCausalLM",
        _SIZES | {"use_sliding_window": True, "sliding_window": 6, "layer_types": _MIXED},
    ),
    "gemma3": ("Gemma3TextConfig", "Gemma3ForCausalLM", _SIZES | {"sliding_window": 8, "layer_types": _MIXED}),
    "gemma2": ("Gemma2Config", "Gemma2ForCausalLM", _SIZES | {"sliding_window": 8, "layer_types": _MIXED}),
    "gpt2": ("GPT2Config", "GPT2LMHeadModel", _GPT2 | {"eos_token_id": 256}),
    "gpt_neox": ("GPTNeoXConfig", "GPTNeoXForCausalLM", _SIZES),
    "opt": ("OPTConfig", "OPTForCausalLM", _SIZES | {"ffn_dim": 64, "word_embed_proj_dim": 48, "pad_token_id": 0}),
    "mixtral": ("MixtralConfig", "MixtralForCausalLM", _SIZES | {"num_local_experts": 4, "sliding_window": None}),
}
"""Name -> configuration class, model class, sizes."""


def tiny(name: str, *, seed: int = 0, **extra: Any) -> Any:
    """A random model in float32. Its rows of logits are as peaked as a real model's, so that texts vary."""
    config, model, sizes = MODELS[name]
    made = getattr(transformers, model)(getattr(transformers, config)(**sizes | extra))
    generator = torch.Generator().manual_seed(seed)
    for parameter in made.parameters():
        if parameter.ndim > 1:
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.data = 1.5 * noise / parameter.shape[-1] ** 0.5
    return made.eval()


def save(folder: Path, model: Any) -> Path:
    """The model with a byte-level tokenizer without merges and a chat template, as transformers saves them."""
    model.save_pretrained(folder)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({text: id for id, text in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens([AddedToken(text, special=True) for text in SPECIALS])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"eos_token": SPECIALS[0], "chat_template": CHATML}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder
