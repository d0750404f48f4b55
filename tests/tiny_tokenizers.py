"""Texts in many scripts, and tokenizers as the models publish them, to hold ours against."""

from __future__ import annotations

import json
import random
import unicodedata
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from exactspec.target.sentencepiece_bpe import SPACE

Trained: TypeAlias = tuple[dict[str, int], list[tuple[str, str]]]  # vocabulary and merges

TEXTS = [
    "Hello world, it's WE'LL and they'd 're 'S 'ſ",
    "def f(x: int) -> str:\n\treturn x  +  1\r\n\r\n    # 12345 6789.01e-5\n\n\n        pass",
    "naïve café – “quotes”… ¿qué? Ωμέγα Ελληνικά",
    "👩‍🔧 🧭🧪 🇫🇮 👍🏽",
    "a    b\t\tc \n\n\n d   \n",
    "2024-01-31 3.14159 ½ ² ①②③ ٣٤٥ Ⅷ 1234567",
    "ジャケット 한국어 中文测试。東京都",
    "مرحبا بالعالم עברית हिन्दी ไทย",
    "zero\u200bwidth\u200djoin \ufeffbom \u00a0nbsp\u2003em\u3000wide",
    "\ue000\uf8ff\U000f0000 private \x00\x01\x1f\x7f",
    "x\r\ny\rz\n \n",
    "ﬁ ﬀ Å \u212b K",
    " leading", "trailing ", "\n", "   ", "!@#$%^&*()[]{}<>?/\\|`~=====-----_____",
]  # fmt: skip
_ALPHABET = "aZ é1٣½\n\t\r '’-_.<|>中あ한\u0301\u200d👍\ue000 s'tſ"


def corpus() -> list[str]:
    rng = random.Random(0)
    mixed = ["".join(rng.choice(_ALPHABET) for _ in range(rng.randint(1, 40))) for _ in range(400)]
    return [*TEXTS, *(unicodedata.normalize("NFD", text) for text in TEXTS), *mixed]


def published(name: str) -> tuple[normalizers.Normalizer | None, pre_tokenizers.PreTokenizer]:
    """What the models' own tokenizer.json hold, written with the package's own steps where it has them."""
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    if name == "gpt-2":
        return None, byte_level
    if name == "smollm":
        return None, pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level])
    digits = {"qwen2": r"\p{N}", "llama-bpe": r"\p{N}{1,3}"}[name]
    pattern = (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|" + digits + r"| ?[^\s\p{L}\p{N}]+[\r\n]*"
        r"|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    split = pre_tokenizers.Split(Regex(pattern), "isolated")
    raw_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return normalizers.NFC() if name == "qwen2" else None, pre_tokenizers.Sequence([split, raw_bytes])


def reference(name: str, vocab: Mapping[str, int], merges: list[tuple[str, str]]) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(dict(vocab), merges, ignore_merges=name == "llama-bpe"))
    normalizer, splitter = published(name)
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = splitter
    return tokenizer


def train() -> Trained:
    """Vocabulary and merges of a byte-level BPE trained on the corpus, without pre-tokenizer (long tokens)."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=900, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator([*corpus(), *TEXTS * 3], trainer)
    state = json.loads(tokenizer.to_str())["model"]
    return state["vocab"], [tuple(merge) for merge in state["merges"]]


SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


def metadata_of(
    name: str, vocab: Mapping[str, int], merges: list[tuple[str, str]], **extra: Any
) -> tuple[dict[str, Any], int]:
    tokens = sorted(vocab, key=vocab.__getitem__)
    kinds = [1] * len(tokens) + [3] * len(SPECIALS) + [4]
    tokens = [*tokens, *SPECIALS, "<tool_call>"]
    made = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": name,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": np.array(kinds),
        "tokenizer.ggml.merges": [" ".join(merge) for merge in merges],
        "tokenizer.ggml.eos_token_id": len(tokens) - 4,
    }
    return made | extra, len(tokens)


CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' "
    "+ '\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def write_folder(folder: Path, tokenizer: Tokenizer, **files: Any) -> Path:
    """A folder as transformers saves it; `files`: other JSON files, by their names."""
    folder.mkdir(exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    for name, value in files.items():
        (folder / f"{name}.json").write_text(json.dumps(value))
    return folder


def sentencepiece_like(normalizer: bool) -> Tokenizer:
    """A Llama 2 kind of tokenizer.json: byte fallback, spaces as U+2581, BOS by the post-processor."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), SPACE]
    pieces += [*"abcdefghijklmnopqrstuvwxyz", "he", "ll", "hell", f"{SPACE}hell", f"{SPACE}a", f"{SPACE}{SPACE}"]
    merges = [("h", "e"), ("l", "l"), ("he", "ll"), (SPACE, "hell"), (SPACE, "a"), (SPACE, SPACE)]
    model = models.BPE(
        {piece: i for i, piece in enumerate(pieces)}, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True
    )
    tokenizer = Tokenizer(model)
    if normalizer:
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), normalizers.Replace(" ", SPACE)])
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(SPACE, "first", split=False)
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", tokenizer.token_to_id("<s>"))]
    )
    return tokenizer
