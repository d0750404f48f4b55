"""A model's files may hold anything under any name: a model or one line that can be printed, nothing else."""

from __future__ import annotations

import copy
import json
import math
import random
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType as Q
from tiny_files import matrices, write_gguf
from tiny_tokenizers import CHATML, SPECIALS, sentencepiece_like, write_folder
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from exactspec.target.gguf_config import read_config
from exactspec.target.gguf_header import GgufHeader, read_header
from exactspec.target.hf_config import read_config as read_folder_config
from exactspec.target.json_file import indexed_files
from exactspec.target.load import open_model
from exactspec.target.model_path import check_path
from exactspec.target.settings import one_line
from exactspec.target.tokenizer_gguf import gguf_tokenizer
from exactspec.target.tokenizer_json import folder_tokenizer

LONG = ["a b"] * 300
IN_HEADERS: list[Any] = [
    0, 1, -1, 2**32 - 1, 2**64 - 1, -(2**63), True, False, 0.5, -1.0, 1e308, 5e-324, math.nan, math.inf, -math.inf,
    "", "x", "\udcff\x1b[31m\n", "y" * 5000, [], ["a"], LONG, [[1, 2]] * 300,
    *(np.array(x) for x in ([], [1.5], [math.nan] * 300, [1] * 300, [-5] * 300, [True, False], [True])),
]  # fmt: skip
IN_JSON: list[Any] = [
    None, 0, -1, 2**31, 10**400, True, 1.5, math.nan, math.inf, 1e-320, "", "x", "\ud800", "\x1b[31m\n", "y" * 5000,
    [], [1], ["x"], [None], [[]], [1] * 300, {}, {"a": 1}, {"content": 5}, {"type": "BPE"},
]  # fmt: skip


def outcome(read: Callable[[], object]) -> None:
    """Whatever else than a ValueError `read` raises, or warns of, fails the test."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            read()
        except ValueError as error:
            message = one_line(error)
            assert message.isprintable()
            assert len(message) < 400, message
            for bad in ("truth value", "could not convert", "cannot convert", "to unpack", "sequence element"):
                assert bad not in message


class Asked(dict[str, Any]):
    """Remembers which keys were looked up."""

    def __init__(self, values: dict[str, Any]) -> None:
        super().__init__(values)
        self.keys_asked: set[str] = set()

    def get(self, key: str, default: Any = None) -> Any:
        self.keys_asked.add(key)
        return super().get(key, default)


VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama, yarn": ("llama", {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0}),
    "llama, linear, window": ("llama", {"rope.scaling.factor": 4.0, "attention.sliding_window": 8}),
    "gemma3": ("gemma3", {"attention.sliding_window": 8}),
    "granite": ("granite", {"logit_scale": 2.0}),
}


def header_of(folder: Path, arch: str, metadata: dict[str, Any]) -> GgufHeader:
    weights = matrices()
    if arch == "gemma3":
        for i in range(2):
            weights |= {f"layers.{i}.{name}": np.ones(16, np.float32) for name in ("q_norm", "k_norm")}
            weights |= {f"layers.{i}.{name}": np.ones(64, np.float32) for name in ("post_attn_norm", "post_mlp_norm")}
    return read_header(write_gguf(folder / "m.gguf", arch, weights, metadata=metadata, template=CHATML))


@pytest.mark.parametrize("variant", VARIANTS)
def test_any_value_of_a_gguf_setting(variant: str, tmp_path: Path) -> None:
    header = header_of(tmp_path, *VARIANTS[variant])
    asked = Asked(header.metadata)
    read_config(GgufHeader(3, asked, header.tensors), None)
    assert len(asked.keys_asked) > 20
    for key in sorted(asked.keys_asked):
        for value in IN_HEADERS:
            outcome(lambda: read_config(GgufHeader(3, header.metadata | {key: value}, header.tensors), None))  # noqa: B023


def scored_vocabulary() -> dict[str, Any]:
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *"abcdefg"]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": np.array([2, 3, 3] + [6] * 256 + [1] * 7),
        "tokenizer.ggml.scores": np.zeros(len(tokens), dtype=np.float32),
    }


@pytest.mark.parametrize("scored", [False, True])
def test_any_value_of_a_gguf_vocabulary(scored: bool, tmp_path: Path) -> None:
    metadata = scored_vocabulary() if scored else header_of(tmp_path, "llama", {}).metadata
    asked = Asked(metadata)
    size = len(metadata["tokenizer.ggml.tokens"])
    gguf_tokenizer(asked, size)
    assert len(asked.keys_asked) > 10

    def use(changed: dict[str, Any]) -> None:
        tokenizer = gguf_tokenizer(changed, size)
        tokenizer.encode("a b é")
        for token in range(0, size, 7):
            tokenizer.token_bytes(token)
        if tokenizer.has_chat_template:
            tokenizer.chat([{"role": "user", "content": "x"}])

    for key in sorted(asked.keys_asked):
        for value in IN_HEADERS:
            outcome(lambda: use(metadata | {key: value}))  # noqa: B023


@pytest.mark.parametrize("kind", [Q.I32, Q.F64, Q.IQ1_M, Q.Q4_0])
def test_rotary_divisors_of_any_type(kind: Q, tmp_path: Path) -> None:
    raw = np.zeros((1, {Q.I32: 32, Q.F64: 64, Q.IQ1_M: 56, Q.Q4_0: 18}[kind]), dtype=np.uint8)
    path = write_gguf(tmp_path / "m.gguf", stored={"rope_freqs.weight": (raw, kind)})
    with pytest.raises(ValueError, match=r"rope_freqs\.weight has the type|rope divisors"):
        open_model(path)


CONFIGS: dict[str, dict[str, Any]] = {
    "mistral": {"sliding_window": 32, "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "beta_fast": 4.0}},
    "qwen2": {"use_sliding_window": True, "layer_types": ["full_attention", "sliding_attention"]},
    "gemma3_text": {"rope_parameters": {"full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6}}},
    "smollm3": {"no_rope_layers": [1, 0]},
    "granite": {"rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1, "high_freq_factor": 4}},
}


@pytest.mark.parametrize("kind", CONFIGS)
def test_any_value_in_config_json(kind: str) -> None:
    config = {
        "model_type": kind, "vocab_size": 300, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 128,
        "hidden_act": "silu", **CONFIGS[kind],
    }  # fmt: skip
    asked = Asked(config)
    read_folder_config(asked)
    assert len(asked.keys_asked) > 15
    for changed in changes(config, asked.keys_asked - config.keys()):
        outcome(lambda: read_folder_config(changed))  # noqa: B023


def changes(value: Any, absent: set[str] | None = None) -> Iterator[Any]:
    """`value` with any part replaced by any other JSON, or left out; `absent`: keys that it could have besides."""
    for at in value if isinstance(value, dict) else range(len(value)):
        for other in IN_JSON:
            changed = copy.copy(value)
            changed[at] = other
            yield changed
        changed = copy.copy(value)
        del changed[at]
        yield changed
        if isinstance(value[at], (dict, list)):
            for inner in changes(value[at]):
                changed = copy.copy(value)
                changed[at] = inner
                yield changed
    for at in sorted(absent or ()):
        yield from ({**value, at: other} for other in IN_JSON)


def byte_level() -> Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({text: id for id, text in enumerate([*alphabet, "he"])}, [("h", "e")]))
    steps = [pre_tokenizers.Split(" ", "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens([AddedToken(text, special=True) for text in SPECIALS])
    return tokenizer


@pytest.mark.parametrize("kind", ["byte-level", "sentencepiece"])
def test_any_value_in_a_tokenizers_files(kind: str, tmp_path: Path) -> None:
    settings = {
        "eos_token": SPECIALS[0],
        "bos_token": {"content": "<s>"},
        "chat_template": CHATML,
        "add_bos_token": True,
    }
    made = byte_level() if kind == "byte-level" else sentencepiece_like(normalizer=False)
    folder = write_folder(tmp_path / "t", made, tokenizer_config=settings, generation_config={"eos_token_id": [1, 2]})
    state = json.loads(made.to_str())
    # A few of the vocabulary's hundreds stand for all.
    few = {**state, "model": {**state["model"], "vocab": dict(list(state["model"]["vocab"].items())[:3])}}
    files = {
        "tokenizer.json": random.Random(0).sample(list(changes(few)), 400),
        "tokenizer_config.json": list(changes(settings)),
        "generation_config.json": list(changes({"eos_token_id": [1, 2]})),
    }

    def use() -> None:
        tokenizer = folder_tokenizer(folder, 300)
        tokenizer.encode("he <0x0A> é")
        if tokenizer.has_chat_template:
            tokenizer.chat([{"role": "user", "content": "x"}])

    use()
    for name, changed in files.items():
        right = (folder / name).read_text()
        for wrong in changed:
            if name == "tokenizer.json" and isinstance(wrong.get("model"), dict) and len(wrong["model"]) > 1:
                vocab = wrong["model"].get("vocab")
                if isinstance(vocab, dict):
                    wrong = {**wrong, "model": {**wrong["model"], "vocab": {**state["model"]["vocab"], **vocab}}}
            (folder / name).write_text(json.dumps(wrong))
            outcome(use)
        (folder / name).write_text(right)


@pytest.mark.parametrize("text", ["[" * 100_000, "{" * 9, "[1]", "\ufeff{}", "", "1" * 5000])
def test_json_that_is_nested_too_deeply_or_no_object(text: str, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"\2\0\0\0\0\0\0\0{}")
    readers: dict[str, Callable[[], object]] = {
        "config.json": lambda: open_model(tmp_path),
        "tokenizer.json": lambda: folder_tokenizer(tmp_path, 300),
        "model.safetensors.index.json": lambda: open_model(tmp_path),
    }
    for name, read in readers.items():
        (tmp_path / name).write_text(text)
        with pytest.raises(ValueError, match=name):
            read()
        outcome(read)


@pytest.mark.parametrize("shards", [*IN_JSON, {"a": 1}, {"a": "x", "b": None}])
def test_an_index_of_anything(shards: Any, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "m.safetensors").write_bytes(b"")
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": shards}))
    outcome(lambda: indexed_files(index))
    outcome(lambda: check_path(tmp_path))
    outcome(lambda: open_model(tmp_path))


def test_what_a_message_quotes_is_short_and_printable() -> None:
    assert one_line(ValueError("a\n\x1b[31m\udcffb")) == "a \\x1b[31m\\udcffb"
    assert len(one_line(ValueError("x" * 10**6))) < 1000


@pytest.mark.parametrize("source", ["{% if %}", "{{ " + "(" * 5000, "{% for x in y %}", "\udcff {{ messages }}"])
def test_a_broken_template_is_said_wherever_it_is_needed(source: str) -> None:
    metadata = scored_vocabulary() | {"tokenizer.chat_template": source}
    tokenizer = gguf_tokenizer(metadata, len(metadata["tokenizer.ggml.tokens"]))
    for tools in (None, [{"type": "function", "function": {"name": "f"}}]):
        with pytest.raises(ValueError, match="the chat template"):
            tokenizer.chat([{"role": "user", "content": "x"}], tools=tools)
