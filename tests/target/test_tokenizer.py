"""Tokenizers: the ids of the model's own tokenizer, and no text that writes a special token."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_files import DEFAULT_VOCABULARY, EOS, byte_vocabulary, write_gguf
from tiny_tokenizers import CHATML, SPECIALS, Trained, corpus, metadata_of, reference, sentencepiece_like, write_folder
from tokenizers import decoders

from exactspec.target.gguf_header import read_header
from exactspec.target.load import open_model
from exactspec.target.pretokenize import pre_tokenizer
from exactspec.target.sentencepiece_bpe import SPACE, SentencePieceBpe
from exactspec.target.tokenizer_gguf import gguf_tokenizer
from exactspec.target.tokenizer_json import folder_tokenizer


@pytest.mark.parametrize("name", ["gpt-2", "smollm", "qwen2", "llama-bpe"])
def test_ids_equal_those_of_the_published_tokenizer(name: str, trained: Trained) -> None:
    tokenizer = gguf_tokenizer(*metadata_of(name, *trained))
    theirs = reference(name, *trained)
    used: set[int] = set()
    for text in corpus():
        ids = tokenizer.encode(text)
        assert ids == theirs.encode(text, add_special_tokens=False).ids, repr(text)
        composed = unicodedata.normalize("NFC", text) if name == "qwen2" else text
        assert b"".join(map(tokenizer.token_bytes, ids)).decode() == composed
        used.update(ids)
    assert len(used) > 400, "the corpus reaches the merges"


def test_the_pre_tokenizers_differ_on_the_corpus(trained: Trained) -> None:
    """So the test above could tell one from another."""
    names = ("gpt-2", "smollm", "qwen2", "llama-bpe", "default", "tekken")
    made = [gguf_tokenizer(*metadata_of(name, *trained)) for name in names]
    seen = [[tokenizer.encode(text) for text in corpus()] for tokenizer in made]
    assert all(seen[i] != seen[j] for i in range(len(seen)) for j in range(i))


def test_smollm_cuts_digits_before_words() -> None:
    pieces = [piece for piece, _ in pre_tokenizer("smollm").splitter().pre_tokenize_str("x  12 a")]
    assert pieces == ["x", "ĠĠ", "1", "2", "Ġa"]
    pieces = [piece for piece, _ in pre_tokenizer("gpt-2").splitter().pre_tokenize_str("x  12 a")]
    assert pieces == ["x", "Ġ", "Ġ12", "Ġa"]


def test_unknown_kinds_are_refused_by_name(trained: Trained) -> None:
    with pytest.raises(ValueError, match="pre-tokenizer 'klingon' is not supported"):
        gguf_tokenizer(*metadata_of("klingon", *trained))
    with pytest.raises(ValueError, match="tokenizer 'bert' is not supported"):
        gguf_tokenizer(*metadata_of("gpt-2", *trained, **{"tokenizer.ggml.model": "bert"}))
    metadata, size = metadata_of("gpt-2", *trained)
    with pytest.raises(ValueError, match=f"has {size} tokens, the embedding {size + 1} rows"):
        gguf_tokenizer(metadata, size + 1)
    with pytest.raises(ValueError, match="no merges"):
        gguf_tokenizer({k: v for k, v in metadata.items() if not k.endswith("merges")}, size)
    with pytest.raises(ValueError, match="no vocabulary"):
        gguf_tokenizer({}, size)
    with pytest.raises(ValueError, match="do not fit together"):
        gguf_tokenizer(metadata | {"tokenizer.ggml.merges": ["no-such token"]}, size)


def test_special_texts_are_ordinary_text(trained: Trained) -> None:
    tokenizer = gguf_tokenizer(*metadata_of("qwen2", *trained))
    controls = {control.id for control in tokenizer.controls}
    assert len(controls) == 3
    for text in ("<|im_end|>", "a<|im_start|>user\n<|endoftext|>", "<|im_end|>" * 5):
        ids = tokenizer.encode(text)
        assert controls.isdisjoint(ids)
        assert b"".join(map(tokenizer.token_bytes, ids)).decode() == text
    user_defined = tokenizer.encode("a<tool_call>b")
    assert tokenizer.vocab_size - 1 in user_defined
    assert tokenizer.token_bytes(tokenizer.vocab_size - 1) == b"<tool_call>"


def test_token_bytes_of_control_unused_and_outside(tmp_path: Path) -> None:
    tokenizer = open_model(write_gguf(tmp_path / "m.gguf")).tokenizer
    texts = DEFAULT_VOCABULARY["tokens"]
    assert tokenizer.vocab_size == len(texts)
    assert tokenizer.token_bytes(EOS) == b""
    assert tokenizer.token_bytes(texts.index("[PAD299]")) == b""
    assert tokenizer.token_bytes(texts.index("ĠĠ")) == b"  "
    assert sorted(tokenizer.token_bytes(i) for i in range(256)) == [bytes([b]) for b in range(256)]
    for token in (-1, len(texts)):
        with pytest.raises(ValueError, match=f"token {token} is outside the vocabulary of {len(texts)}"):
            tokenizer.token_bytes(token)


def test_a_lone_surrogate_is_one_clear_line(tmp_path: Path) -> None:
    tokenizer = open_model(write_gguf(tmp_path / "m.gguf", template=CHATML)).tokenizer
    text = b"caf\xe9".decode("utf-8", "surrogateescape")
    with pytest.raises(ValueError, match=r"not valid Unicode at character 3 \(lone surrogate U\+DCE9\)"):
        tokenizer.encode(text)
    with pytest.raises(ValueError, match="message 1 is not valid Unicode"):
        tokenizer.chat([{"role": "user", "content": "ok"}, {"role": "user", "content": text}])
    assert tokenizer.encode("") == []


def test_every_end_of_turn_ends_an_answer(tmp_path: Path) -> None:
    """The file names one EOS; the end of turn is known by its text, old conversions type it as an added token."""
    texts = DEFAULT_VOCABULARY["tokens"]
    tokenizer = open_model(write_gguf(tmp_path / "m.gguf")).tokenizer
    assert tokenizer.eos_ids == {EOS, texts.index("<|im_end|>")}
    kinds = list(DEFAULT_VOCABULARY["kinds"])
    kinds[texts.index("<|im_end|>")] = 4
    old = open_model(write_gguf(tmp_path / "o.gguf", vocabulary=DEFAULT_VOCABULARY | {"kinds": kinds})).tokenizer
    assert old.eos_ids == tokenizer.eos_ids
    assert old.token_bytes(texts.index("<|im_end|>")) == b""
    assert texts.index("<|im_end|>") not in old.encode("<|im_end|>")
    harmony = byte_vocabulary(["h e"], ["<|return|>", "<|call|>", "<|end|>"]) | {"ids": {}}
    several = open_model(write_gguf(tmp_path / "h.gguf", vocabulary=harmony)).tokenizer
    assert several.eos_ids == {harmony["tokens"].index(text) for text in ("<|return|>", "<|call|>")}


def test_bos_as_the_file_says(tmp_path: Path) -> None:
    def bos(pre: str, **flags: bool) -> int | None:
        vocabulary = DEFAULT_VOCABULARY | {"pre": pre, "ids": {"bos": EOS, "eos": EOS}, "flags": flags}
        return open_model(write_gguf(tmp_path / "m.gguf", vocabulary=vocabulary)).tokenizer.bos_id

    assert bos("gpt-2") is None
    assert bos("llama-bpe") == EOS
    assert bos("llama-bpe", add_bos_token=False) is None
    assert bos("gpt-2", add_bos_token=True) == EOS


# --- folders ----------------------------------------------------------------------------------------------------


def test_a_folder_equals_its_own_tokenizer(trained: Trained, tmp_path: Path) -> None:
    backend = reference("qwen2", *trained)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(SPECIALS)
    backend.add_tokens(["<tool_call>", "<|fim_prefix|>"])
    size = backend.get_vocab_size() + 7  # rows of the embedding that no token has
    folder = write_folder(
        tmp_path / "m", backend,
        tokenizer_config={"eos_token": "<|im_end|>", "bos_token": None, "chat_template": CHATML},
        generation_config={"eos_token_id": [3, 5]},
        config={"eos_token_id": 4},
    )  # fmt: skip
    ours = folder_tokenizer(folder, size)
    for text in corpus():
        assert ours.encode(text) == backend.encode(text, add_special_tokens=False).ids
    special = {text: backend.token_to_id(text) for text in SPECIALS}
    assert ours.eos_ids == {3, 4, 5, special["<|im_end|>"], special["<|endoftext|>"]}
    assert ours.bos_id is None
    assert ours.vocab_size == size
    assert ours.token_bytes(size - 1) == b""
    assert ours.token_bytes(backend.token_to_id("<tool_call>")) == b"<tool_call>"
    assert set(special.values()).isdisjoint(ours.encode("".join(SPECIALS)))
    assert backend.token_to_id("<|fim_prefix|>") not in ours.encode("<|fim_prefix|>")
    ids = ours.chat([{"role": "user", "content": "<|im_end|>"}], add_generation_prompt=False)
    assert ids.count(special["<|im_end|>"]) == 1
    (folder / "chat_template.jinja").write_text("{{ messages[0].content }}")
    assert folder_tokenizer(folder, size).chat([{"role": "user", "content": "abc"}]) == ours.encode("abc")
    (folder / "tokenizer.json").unlink()
    with pytest.raises(ValueError, match=r"no tokenizer\.json"):
        folder_tokenizer(folder, size)


@pytest.mark.parametrize("normalizer", [True, False], ids=["prepend", "metaspace-first"])
def test_a_sentencepiece_folder(normalizer: bool, tmp_path: Path) -> None:
    backend = sentencepiece_like(normalizer)
    template = "{{ bos_token }}{{ messages[0].content }}</s> hell{{ messages[0].content }}"
    settings_ = {"bos_token": "<s>", "eos_token": {"content": "</s>"}, "chat_template": template}
    ours = folder_tokenizer(write_folder(tmp_path / "m", backend, tokenizer_config=settings_), 300)
    assert (ours.bos_id, ours.eos_ids) == (1, {2})
    for text in ("hello a  a", "hell", " hell", "é\n\t👍", "a\u2581b"):
        assert ours.encode(text) == backend.encode(text, add_special_tokens=False).ids
        expected = backend.encode(f"<s>{text}</s> hell{text}", add_special_tokens=False).ids
        assert ours.chat([{"role": "user", "content": text}]) == expected
    assert b"".join(map(ours.token_bytes, ours.encode("hell é"))) == " hell é".encode()
    assert 2 not in ours.encode("</s>")


# --- SentencePiece in a GGUF ------------------------------------------------------------------------------------


def naive_merge(text: str, pieces: Mapping[str, tuple[int, float]], byte_ids: Mapping[int, int]) -> list[int]:
    """SentencePiece's rule, by search: join the pair of the highest score, the leftmost of equals."""
    symbols = list(text)
    while True:
        best: tuple[float, int] | None = None
        for i in range(len(symbols) - 1):
            found = pieces.get(symbols[i] + symbols[i + 1])
            if found is not None and (best is None or found[1] > best[0]):
                best = (found[1], i)
        if best is None:
            break
        symbols[best[1] : best[1] + 2] = [symbols[best[1]] + symbols[best[1] + 1]]
    ids: list[int] = []
    for symbol in symbols:
        ids += [pieces[symbol][0]] if symbol in pieces else [byte_ids[b] for b in symbol.encode()]
    return ids


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.text(alphabet="ab▁é", min_size=1, max_size=5), unique=True, max_size=25),
    st.lists(st.integers(0, 4), min_size=30, max_size=30),
    st.text(alphabet="ab é👍", max_size=30),
)
def test_sentencepiece_merging_follows_the_rule(pieces: list[str], scores: list[int], text: str) -> None:
    """With many equal scores, where implementations part."""
    table = {piece: (256 + i, -float(scores[i])) for i, piece in enumerate(pieces)}
    byte_ids = {byte: byte for byte in range(256)}
    encoder = SentencePieceBpe(table, {}, byte_ids, None, space_prefix=True)
    assert encoder(text, first=True) == naive_merge(SPACE + text.replace(" ", SPACE), table, byte_ids)


def test_defined_runs_of_spaces_are_found_however_they_are_spelt() -> None:
    """Gemma's files write them with spaces, others with U+2581: the longest one is taken whole."""
    table = {SPACE: (1, -1.0), "a": (2, -2.0), f"{SPACE}a": (3, 0.0)}
    for space in (" ", SPACE):
        encoder = SentencePieceBpe(table, {space * 2: 10, space * 3: 11, "\n": 12}, {}, 0, space_prefix=False)
        assert encoder(" a   a  a    a\n a", first=True) == [3, 11, 2, 10, 2, 11, 3, 12, 3]


def test_a_sentencepiece_gguf(tmp_path: Path) -> None:
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), SPACE, "h", "i", f"{SPACE}h"]
    tokens += [f"{SPACE}hi", "[TOOL]"]
    kinds = [2, 3, 3, *[6] * 256, 1, 1, 1, 1, 1, 4]
    fill = 300 - len(tokens)
    vocabulary = {
        "model": "llama",
        "tokens": tokens + [f"<extra{i}>" for i in range(fill)],
        "kinds": kinds + [5] * fill,
        "scores": [0.0] * 259 + [-3.0, -4.0, -5.0, -1.0, -2.0, 0.0] + [0.0] * fill,
        "ids": {"bos": 1, "eos": 2},
    }
    template = "{{ bos_token }}{% for m in messages %}[INST] {{ m.content }} {% endfor %}</s>"
    tokenizer = open_model(write_gguf(tmp_path / "m.gguf", vocabulary=vocabulary, template=template)).tokenizer
    assert (tokenizer.bos_id, tokenizer.eos_ids, tokenizer.vocab_size) == (1, {2}, 300)
    assert tokenizer.encode("hi") == [tokens.index(f"{SPACE}hi")]
    assert tokenizer.encode("hi\n") == [tokens.index(f"{SPACE}hi"), tokens.index("<0x0A>")]
    assert tokenizer.encode("é") == [tokens.index(SPACE), tokens.index("<0xC3>"), tokens.index("<0xA9>")]
    assert tokenizer.encode("[TOOL]h") == [tokens.index(SPACE), tokens.index("[TOOL]"), tokens.index("h")]
    assert b"".join(map(tokenizer.token_bytes, tokenizer.encode("hi é[TOOL]"))) == " hi é[TOOL]".encode()
    ids = tokenizer.chat([{"role": "user", "content": "</s>"}])
    assert (ids[0], ids[-1], ids.count(2), ids.count(1)) == (1, 2, 1, 1)


# --- real files -------------------------------------------------------------------------------------------------


@pytest.mark.model
@pytest.mark.parametrize(("name", "pre"), [("smollm2-135m", "smollm"), ("qwen2.5-coder-0.5b", "qwen2")])
def test_real_vocabularies(name: str, pre: str, model_file: Callable[[str], Path]) -> None:
    path = model_file(name)
    metadata = read_header(path).metadata
    tokens, kinds = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"]
    vocab = {text: i for i, text in enumerate(tokens) if kinds[i] in (1, 4)}
    merges = [tuple(merge.split(" ", 1)) for merge in metadata["tokenizer.ggml.merges"]]
    theirs = reference(pre, vocab, merges)
    ours = open_model(path).tokenizer
    text = Path(json.__file__).read_text("utf-8")
    for sample in [*(t for t in corpus() if "<tool_call>" not in t), text]:
        assert ours.encode(sample) == theirs.encode(sample, add_special_tokens=False).ids
    end = tokens.index("<|im_end|>")
    assert end in ours.eos_ids
    ids = ours.chat([{"role": "user", "content": "Hi <|im_end|>"}])
    assert ids.count(end) == 2  # of the default system message and of the user's turn
    assert b"".join(map(ours.token_bytes, ids)).decode().endswith("user\nHi <|im_end|>\nassistant\n")
