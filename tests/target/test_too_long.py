"""Texts with more tokens than are of use: given up on soon, and the ids of all others are what they were."""

from __future__ import annotations

import random
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tiny_tokenizers import CHATML, SPECIALS, Trained, corpus, metadata_of, reference, sentencepiece_like, write_folder
from tokenizers import decoders, normalizers, pre_tokenizers

from exactspec.target.fewest import FewestTokens
from exactspec.target.pretokenize import blocks, pre_tokenizer
from exactspec.target.sentencepiece_bpe import SPACE
from exactspec.target.tokenizer import TooManyTokens
from exactspec.target.tokenizer_file import FileTokenizer
from exactspec.target.tokenizer_gguf import gguf_tokenizer
from exactspec.target.tokenizer_json import folder_tokenizer

PRE = ("gpt-2", "smollm", "qwen2", "llama-bpe", "default", "tekken")
KINDS = (*PRE, "folder", "folder-prepend", "folder-metaspace-first", "sentencepiece", "sentencepiece-unknown")
PARTS = [
    "the quick ", "brown", " fox", "\n\n", "    ", "\t", "12", " 345 ", "don't", "'ll", "x=1;", "<|im_end|>", "é",
    "e\u0301", "\u0301", "ﬁ", "你好", "👍", "==========", "<tool_call>", "\r\n", SPACE, "\u00a0", "Å", "\u1100\u1161",
    ">\u0338", " \u0301", "hell", " hello a", "\x00",
]  # fmt: skip


def scored(**changes: Any) -> FileTokenizer:
    byte = [f"<0x{b:02X}>" for b in range(256)]
    words = [
        SPACE,
        "h",
        "e",
        "l",
        "he",
        "ll",
        "hell",
        f"{SPACE}hell",
        SPACE * 2,
        SPACE * 4,
        "a",
        f"{SPACE}a",
        "you",
        "好",
    ]
    tokens = ["<unk>", "<s>", "</s>", *byte, *words, "<tool_call>"]
    metadata = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [2, 3, 3, *[6] * 256, *[1] * len(words), 4],
        "tokenizer.ggml.scores": [0.0] * 259 + [-float(i) for i in range(len(words), 0, -1)] + [0.0],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.chat_template": "{{ bos_token }}{% for m in messages %}[I] {{ m.content }}</s>{% endfor %}",
        **changes,
    }
    return gguf_tokenizer(metadata, len(tokens))


def made(kind: str, trained: Trained, folder: Path) -> FileTokenizer:
    if kind in PRE:
        return gguf_tokenizer(*metadata_of(kind, *trained, **{"tokenizer.chat_template": CHATML}))
    if kind == "folder":
        backend = reference("qwen2", *trained)
        backend.decoder = decoders.ByteLevel()
        backend.add_special_tokens(SPECIALS)
        backend.add_tokens(["<tool_call>"])
        size = backend.get_vocab_size()
        return folder_tokenizer(write_folder(folder, backend, tokenizer_config={"chat_template": CHATML}), size)
    if kind.startswith("folder"):
        backend = sentencepiece_like(kind == "folder-prepend")
        settings = {"bos_token": "<s>", "chat_template": "{{ bos_token }}{{ messages[0].content }}</s> hell"}
        return folder_tokenizer(write_folder(folder, backend, tokenizer_config=settings), 300)
    unknown = {"tokenizer.ggml.token_type": [2, 3, 3, *[5] * 256, *[1] * 14, 4]} if kind.endswith("unknown") else {}
    return scored(**unknown)


def texts() -> list[str]:
    rng = random.Random(3)
    drawn = ["".join(rng.choice(PARTS) for _ in range(rng.randrange(1, 60))) for _ in range(120)]
    return [text for text in (*corpus(), *drawn, " " * 500, "a" * 500, "好" * 100) if text]


def ids_or_count(ask: Callable[[], list[int]]) -> list[int] | TooManyTokens:
    try:
        return ask()
    except TooManyTokens as error:
        return error


@pytest.mark.parametrize("kind", KINDS)
def test_what_fits_has_the_same_ids_and_the_rest_is_refused(kind: str, trained: Trained, tmp_path: Path) -> None:
    tokenizer = made(kind, trained, tmp_path / "m")
    fewest = FewestTokens(
        (*map(tokenizer.token_bytes, range(tokenizer.vocab_size)), *(c.text.encode() for c in tokenizer.controls))
    )
    bounds = 0
    for text in texts():
        spelled = tokenizer.encoder.spelled(text)
        assert spelled is not None
        messages = [{"role": "user", "content": text}]
        for way in (
            lambda at_most, text=text: tokenizer.encode(text, at_most=at_most),
            lambda at_most, messages=messages: tokenizer.chat(messages, at_most=at_most),
        ):
            ids = way(None)
            bound = fewest(spelled.encode())
            assert bound <= len(ids), repr(text)
            bounds += bound
            for at_most in {0, 1, len(ids) // 20, len(ids) // 3, len(ids) - 1, len(ids), len(ids) + 1, 10_000}:
                found = ids_or_count(lambda way=way, at_most=at_most: way(at_most))
                if len(ids) <= at_most:
                    assert found == ids
                else:
                    assert isinstance(found, TooManyTokens)
                    assert at_most < found.count <= len(ids)
                    assert found.count == len(ids) or not found.exact
    assert bounds > 500  # it is of some use


@pytest.mark.parametrize("name", PRE)
def test_blocks_are_words_by_themselves(name: str) -> None:
    """However small they are: the words of the parts are those of the whole."""
    pre = pre_tokenizer(name)
    normalizer, splitter = pre.normalizer(), pre.splitter()

    def words(text: str) -> list[str]:
        text = text if normalizer is None else normalizer.normalize_str(text)
        return [word for word, _ in splitter.pre_tokenize_str(text)]

    cuts = 0
    for text in texts():
        parts = list(blocks(text, 5))
        assert "".join(parts) == text
        assert [word for part in parts for word in words(part)] == words(text), repr(text)
        cuts += len(parts) - 1
    assert cuts > 200


def test_a_folder_whose_tokens_do_not_spell_the_text_is_not_bounded(trained: Trained, tmp_path: Path) -> None:
    for i, change in enumerate(("lowercase", "removed", "stripped")):
        backend = reference("gpt-2", *trained)
        backend.decoder = decoders.ByteLevel()
        if change == "lowercase":
            backend.normalizer = normalizers.Replace("aa", "a")
        elif change == "removed":
            backend.pre_tokenizer = pre_tokenizers.Sequence(
                [pre_tokenizers.Split(" ", "removed"), pre_tokenizers.ByteLevel(add_prefix_space=False)]
            )
        else:
            from tokenizers import AddedToken

            backend.add_tokens([AddedToken("<tool_call>", lstrip=True, normalized=False)])
        ours = folder_tokenizer(write_folder(tmp_path / f"{i}", backend), backend.get_vocab_size())
        assert ours.encoder.spelled("a  a") is None
        assert ours.encode("aa a" * 50, at_most=200) == backend.encode("aa a" * 50, add_special_tokens=False).ids


def test_a_word_of_any_length_takes_little_memory(trained: Trained, tmp_path: Path) -> None:
    """What fits the context may be a run of millions of spaces, which is one word."""
    tokenizer = made("qwen2", trained, tmp_path)
    length = 40_000
    tokenizer.encode(" " * 3)  # what is made once
    tracemalloc.start()
    ids = tokenizer.encode(" " * length)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert b"".join(map(tokenizer.token_bytes, ids)) == b" " * length
    assert peak < 100 * length


@pytest.mark.parametrize("kind", ["qwen2", "folder", "sentencepiece"])
@pytest.mark.parametrize("unit", ["the quick brown fox, ", "a", " ", "你", "<"])
def test_ten_megabytes_are_given_up_on_soon(kind: str, unit: str, trained: Trained, tmp_path: Path) -> None:
    """Encoding one of these takes from ten seconds to minutes, and gigabytes."""
    tokenizer = made(kind, trained, tmp_path / "m")
    text = unit * (10_000_000 // len(unit.encode()))
    for ask in (
        lambda: tokenizer.encode(text, at_most=8192),
        lambda: tokenizer.chat([{"role": "user", "content": text}], at_most=8192),
    ):
        start = time.process_time()
        assert isinstance(ids_or_count(ask), TooManyTokens)
        assert time.process_time() - start < 6
