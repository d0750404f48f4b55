"""Drafting across tokenizers: what the model reads, and what comes back as tokens of the target."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
from scripted import BOS, EOS, ByteTokenizer
from tiny_tokenizers import TEXTS, metadata_of, train

from exactspec.drafters.reading import Grown
from exactspec.drafters.reencoding import LONGEST, Reencoded, Translation
from exactspec.drafters.vocabularies import Difference, first_difference
from exactspec.target.tokenizer_file import FileTokenizer
from exactspec.target.tokenizer_gguf import gguf_tokenizer


@pytest.fixture(scope="module")
def bpe() -> FileTokenizer:
    return gguf_tokenizer(*metadata_of("gpt-2", *train()))


def read(translation: Translation, tokens: Sequence[int]) -> Reencoded:
    reading = Reencoded(translation)
    reading.append(tokens)
    return reading


def text_of(tokenizer: Any, ids: Sequence[int]) -> bytes:
    return b"".join(tokenizer.token_bytes(token) for token in ids)


def long_text() -> str:
    rng = random.Random(5)
    return "".join(rng.choice(TEXTS) + rng.choice(["\n", " ", ""]) for _ in range(60)) + "x" * 1500 + "\n\n end  "


def test_the_model_reads_the_same_text_however_it_comes(bpe: FileTokenizer) -> None:
    translation = Translation.between(bpe, ByteTokenizer())
    data = list(long_text().encode())
    whole = read(translation, data)
    assert text_of(bpe, whole.ids) == bytes(data)
    assert whole.settled < len(whole.ids)
    rng = random.Random(1)
    parts, at = Reencoded(translation), 0
    while at < len(data):
        before = parts.ids[: parts.settled]
        step = rng.randint(1, 40)
        parts.append(data[at : at + step])
        at += step
        assert parts.ids[: len(before)] == before  # settled ids stay
        if rng.random() < 0.05:
            parts.truncate(max(0, at - 90))
            at = max(0, at - 90)
        if rng.random() < 0.05:
            parts = parts.fork()
    assert (parts.ids, parts.settled) == (whole.ids, whole.settled)
    # A step encodes the open piece alone, whatever stands before it.
    open_text = text_of(bpe, whole.ids[whole.settled :]).decode()
    assert len(open_text) <= LONGEST + 2


def test_inside_a_character_nothing_is_proposed(bpe: FileTokenizer) -> None:
    reading = Reencoded(Translation.between(bpe, ByteTokenizer()))
    for token in "né".encode()[:-1]:
        reading.append([token])
    assert not reading.ready
    assert text_of(bpe, reading.ids) == b"n"
    reading.append("é".encode()[1:])
    assert reading.ready
    assert text_of(bpe, reading.ids) == "né".encode()
    reading.append([0xFF])  # no UTF-8, and never will be
    assert reading.ready
    reading.append([0xE2, EOS, 65])  # a control token ends the character that was not complete
    assert reading.ready
    assert text_of(bpe, reading.ids) == "né\ufffdA".encode()


class WithBos(ByteTokenizer):
    """Names its control tokens, as tokenizers of files do."""

    controls = ()

    def __init__(self, names: dict[int, str], **options: Any) -> None:
        super().__init__(**options)
        from exactspec.target.tokenizer_file import Control

        self.controls = tuple(Control(text, token) for token, text in names.items())  # type: ignore[assignment]


def test_control_tokens_are_known_by_their_text_and_bos_stands_once() -> None:
    model = WithBos({BOS: "<s>", 258: "<|open|>", EOS: "</s>"}, bos=BOS)
    target = WithBos({EOS: "<s>", 257: "<|open|>", 258: "<|other|>"}, bos=EOS, eos=())
    translation = Translation.between(model, target)
    ids = [EOS, 257, *b"hi", 258, *b" you"]
    reading = read(translation, ids)
    assert reading.ids == [BOS, 258, *b"hi", *b" you"]
    for token in b" and me, and all the others who are not to be named here at all, not even by their first letters":
        reading.append([token])
    reading.truncate(4)
    assert reading.ids == [BOS, 258, *b"hi"]
    # The model says <|open|>, which ends the word before it.
    tree = reading.translate(Grown([*b" ho", 258, 65], [-1, 0, 1, 2, 3], [0.9, 0.8, 0.7, 0.6, 0.5]))
    assert tree.tokens.tolist() == [*b" ho", 257]
    assert tree.score.tolist() == pytest.approx([0.9, 0.8, 0.7, 0.6])
    # An end that the target does not have maps to nothing.
    tree = reading.translate(Grown([*b"a b", EOS], [-1, 0, 1, 2], [0.9, 0.8, 0.7, 0.6]))
    assert tree.tokens.tolist() == [ord("a")]


def test_a_space_in_front_of_a_text_is_put_there_once() -> None:
    """As SentencePiece vocabularies do it; pieces within the text get none."""

    class Prefixed(ByteTokenizer):
        def encode(self, text: str, **options: Any) -> list[int]:
            return [32, *super().encode(text)]

        def encode_inner(self, text: str) -> list[int]:
            return super().encode(text)

    data = list(long_text().encode())
    reading = read(Translation.between(Prefixed(), ByteTokenizer()), data)
    assert reading.ids == [32, *data]
    # Nor is one proposed: the other way round, from within the text.
    tree = read(Translation.between(ByteTokenizer(), Prefixed()), data).translate(chain(b"one two "))
    assert bytes(tree.tokens.tolist()) == b"one two"


def chain(ids: Sequence[int]) -> Grown:
    return Grown(list(ids), list(range(-1, len(ids) - 1)), [0.9 ** (i + 1) for i in range(len(ids))])


@pytest.mark.parametrize("text", TEXTS)
def test_only_tokens_that_more_text_cannot_change(bpe: FileTokenizer, text: str) -> None:
    """What is offered for a beginning of a text stands in the encoding of the whole text."""
    target = bpe
    model = ByteTokenizer()
    reading = Reencoded(Translation.between(model, target))
    data = text.encode()
    whole = target.encode(text)
    for cut in range(1, len(data)):
        tree = reading.translate(chain(data[:cut]))
        offered = tree.tokens.tolist()
        assert offered == whole[: len(offered)] or "\ufeff" in text or "  " in text or "'" in text
        assert data.startswith(text_of(target, offered))
        for node, end in enumerate(len(text_of(target, offered[: i + 1])) for i in range(len(offered))):
            assert tree.score[node] == pytest.approx(0.9**end)


def test_a_word_is_offered_once_it_is_over(bpe: FileTokenizer) -> None:
    reading = Reencoded(Translation.between(ByteTokenizer(), bpe))
    assert len(reading.translate(chain(b" wor"))) == 0
    assert len(reading.translate(chain(b" world"))) == 0
    assert text_of(bpe, reading.translate(chain(b" world ")).tokens.tolist()) == b" world"
    assert len(reading.translate(chain(b"\xc3"))) == 0
    assert len(reading.translate(chain(b"\xff a b"))) == 0
    assert text_of(bpe, reading.translate(chain(b"a b \xff c")).tokens.tolist()) in (b"a b", b"a b ")


def test_paths_that_share_words_share_nodes(bpe: FileTokenizer) -> None:
    reading = Reencoded(Translation.between(ByteTokenizer(), bpe))
    #  " a " then "b " or "c "
    tokens, parents = list(b" a b c "), [-1, 0, 1, 2, 3, 2, 5]
    grown = Grown(tokens, parents, [0.9, 0.8, 0.7, 0.4, 0.3, 0.2, 0.1])
    tree = reading.translate(grown)
    texts = [bpe.token_bytes(token) for token in tree.tokens.tolist()]
    assert texts.count(b" a") == 1
    assert len(tree.sanitise(bpe.vocab_size)) == len(tree)


# -- comparing vocabularies --------------------------------------------------------------------------------------------


def changed(name: str = "gpt-2", **tokens: tuple[int, str]) -> FileTokenizer:
    metadata, size = metadata_of(name, *train())
    listed = list(metadata["tokenizer.ggml.tokens"])
    for id_, text in tokens.values():
        listed[id_] = text
    return gguf_tokenizer(metadata | {"tokenizer.ggml.tokens": listed, "tokenizer.ggml.merges": []}, size)


def test_the_first_difference_is_named(bpe: FileTokenizer) -> None:
    assert first_difference(bpe, bpe) is None
    assert first_difference(changed(), changed()) is None
    one, other = changed(a=(700, "first")), changed(a=(700, "other"), b=(701, "longer than it was"))
    assert first_difference(one, other) == Difference(700, b"first", b"other")
    assert str(first_difference(one, other)) == "id 700 is 'first' in one and 'other' in the other"
    # Equal lengths and shifted texts.
    one, other = changed(a=(700, "ab"), b=(701, "c")), changed(a=(700, "a"), b=(701, "bc"))
    assert first_difference(one, other) == Difference(700, b"ab", b"a")
    # The slow way, for tokenizers without a table, says the same.
    plain, swapped = ByteTokenizer([b"the", b"of"]), ByteTokenizer([b"of", b"the"])
    assert first_difference(plain, swapped) == Difference(260, b"the", b"of")
    assert first_difference(plain, ByteTokenizer([b"the"])) is None
    assert str(Difference(3, b"\xff", b"a")) == "id 3 is b'\\xff' in one and 'a' in the other"
