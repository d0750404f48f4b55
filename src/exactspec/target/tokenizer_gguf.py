"""The tokenizer of a GGUF file: byte-level BPE, or SentencePiece BPE with byte fallback.

A header's metadata becomes a `GgufVocabulary`, which is plain arrays and can be kept on disk; a tokenizer is made of
that, whether it was just read or kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from exactspec.target.bpe import BpeTables, ByteLevelBpe, bpe_tables
from exactspec.target.byte_level import byte_alphabet, byte_of, decode, encoded
from exactspec.target.chat import ChatTemplate
from exactspec.target.pretokenize import pre_tokenizer
from exactspec.target.sentencepiece_bpe import SPACE, SentencePieceBpe
from exactspec.target.settings import Settings, told
from exactspec.target.tokenizer_file import (
    END_TEXTS,
    Control,
    Encoder,
    FileTokenizer,
    TokenTable,
    end_ids,
    looks_special,
)

_PREFIX = "tokenizer.ggml."
_SPECIAL_VARIABLES = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "pad_token": "padding_token_id",
}


class _Kind(IntEnum):
    """Token types of the format."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True, slots=True, eq=False)
class Scored:
    """A SentencePiece vocabulary's own part. `scores` float64, one per token."""

    scores: npt.NDArray[np.float64]
    space_prefix: bool


@dataclass(frozen=True, slots=True, eq=False)
class GgufVocabulary:
    """All that a tokenizer is made of. `texts` uint8: the tokens' texts in UTF-8, one behind the other; text i ends at
    ``ends[i]`` (int64). `kinds` uint8: their types. One of `merges` and `scored` is there. `template`: the chat
    template's source. `variables`: special tokens that a template may name, and their ids."""

    texts: npt.NDArray[np.uint8]
    ends: npt.NDArray[np.int64]
    kinds: npt.NDArray[np.uint8]
    merges: BpeTables | None
    scored: Scored | None
    eos_ids: tuple[int, ...]
    bos_id: int | None
    template: str | None
    variables: Mapping[str, int]

    def text(self, id: int) -> bytes:
        """UTF-8 of one token's text, or whatever bytes the file holds there."""
        return self.texts[self.ends[id - 1] if id else 0 : self.ends[id]].tobytes()

    def ids(self, *kinds: _Kind) -> list[int]:
        """Ids of these types, increasing."""
        ids: list[int] = np.flatnonzero(np.isin(self.kinds, kinds)).tolist()
        return ids


@dataclass(frozen=True, slots=True)
class _Read:
    texts: Sequence[str]
    kinds: list[int]
    get: Settings

    def id(self, key: str) -> int | None:
        """A special token's id; ids outside the vocabulary count as none, as in llama.cpp."""
        value = self.get.value(key)
        if value is not None and type(value) is not int:
            raise self.get.wrong(key, "an integer")
        return value if value is not None and 0 <= value < len(self.texts) else None


def gguf_tokenizer(metadata: Mapping[str, Any], vocab_size: int) -> FileTokenizer:
    """Tokenizer from a GGUF header's metadata. `vocab_size`: rows of the embedding.

    Raises ValueError on a vocabulary that is missing, of another size, or of a kind unknown here (named).
    """
    return tokenizer_of(gguf_vocabulary(metadata, vocab_size))


def gguf_vocabulary(metadata: Mapping[str, Any], vocab_size: int) -> GgufVocabulary:
    """The vocabulary of a GGUF header; errors as in `gguf_tokenizer`."""
    read = _read(metadata, vocab_size)
    texts, kinds = read.texts, read.kinds
    model = read.get.text("model", "")
    merges, scored = None, None
    if model == "gpt2":
        pre = read.get.text("pre", "")
        bos = pre_tokenizer(pre).bos
        merges = _merges(read, pre)
    elif model == "llama":
        bos = True
        scored = _scored(read)
    else:
        raise ValueError(f"tokenizer {told(model)} is not supported (gpt2 and llama are)")
    data = [encoded(text) for text in texts]
    source = Settings(metadata).text("tokenizer.chat_template", "")
    controls = [Control(texts[id], id) for id, kind in enumerate(kinds) if kind in (_Kind.CONTROL, _Kind.UNKNOWN)]
    ends = end_ids(controls, [read.id(key) for key in ("eos_token_id", "eot_token_id", "eom_token_id")])
    return GgufVocabulary(
        texts=np.frombuffer(b"".join(data), dtype=np.uint8),
        ends=np.cumsum([len(text) for text in data], dtype=np.int64),
        kinds=np.array(kinds).clip(0, 255).astype(np.uint8),
        merges=merges,
        scored=scored,
        eos_ids=tuple(sorted(ends)),
        bos_id=read.id("bos_token_id") if read.get.flag("add_bos_token", bos) else None,
        template=source or None,
        variables={name: id for name, key in _SPECIAL_VARIABLES.items() if (id := read.id(key)) is not None},
    )


def tokenizer_of(vocabulary: GgufVocabulary) -> FileTokenizer:
    """The tokenizer of a vocabulary. Raises ValueError if its parts do not fit together."""

    def text(id: int) -> str:
        return vocabulary.text(id).decode("utf-8", "surrogateescape")

    controls = [Control(text(id), id) for id in vocabulary.ids(_Kind.CONTROL, _Kind.UNKNOWN)]
    encoder, piece = _byte_level(vocabulary) if vocabulary.merges is not None else _sentencepiece(vocabulary)
    return FileTokenizer(
        encoder=encoder,
        piece=piece,
        vocab_size=len(vocabulary.ends),
        controls=controls,
        eos_ids=frozenset(vocabulary.eos_ids),
        bos_id=vocabulary.bos_id,
        table=TokenTable(
            "scored" if vocabulary.merges is None else "byte-level",
            vocabulary.texts,
            vocabulary.ends,
            vocabulary.kinds,
        ),
        template=None
        if vocabulary.template is None
        else ChatTemplate(
            vocabulary.template,
            [control.text for control in controls],
            {name: text(id) for name, id in vocabulary.variables.items()},
        ),
    )


def _read(metadata: Mapping[str, Any], vocab_size: int) -> _Read:
    get = Settings(metadata, _PREFIX)
    texts = get.texts("tokens")
    if not texts:
        raise ValueError("the file has no vocabulary (tokenizer.ggml.tokens)")
    if len(texts) != vocab_size:
        raise ValueError(f"the vocabulary has {len(texts)} tokens, the embedding {vocab_size} rows")
    stated = get.numbers("token_type", whole=True)
    kinds: list[int] = [int(_Kind.NORMAL)] * len(texts) if stated is None else stated.tolist()
    if len(kinds) != len(texts):
        raise ValueError(f"the vocabulary has {len(texts)} tokens and {len(kinds)} token types")
    read = _Read(texts, kinds, get)
    # Old conversions type the end of a turn as an ordinary added token, or type nothing.
    added = int(_Kind.NORMAL if stated is None else _Kind.USER_DEFINED)
    for id, kind in enumerate(kinds):
        if kind == added and (texts[id] in END_TEXTS or looks_special(texts[id])):
            kinds[id] = _Kind.CONTROL
    for key in ("bos_token_id", "eos_token_id", "eot_token_id"):
        special = read.id(key)
        if special is not None and kinds[special] != _Kind.UNKNOWN:
            kinds[special] = _Kind.CONTROL
    return read


def _merges(read: _Read, pre: str) -> BpeTables:
    merges = read.get.texts("merges")
    if merges is None:
        raise ValueError("the file has no merges (tokenizer.ggml.merges)")
    wanted = (int(_Kind.NORMAL), int(_Kind.USER_DEFINED))
    ids = {text: id for id, (text, kind) in enumerate(zip(read.texts, read.kinds, strict=True)) if kind in wanted}
    return bpe_tables(pre, ids, merges)


def _byte_level(vocabulary: GgufVocabulary) -> tuple[Encoder, Callable[[int], bytes]]:
    assert vocabulary.merges is not None
    kinds, alphabet, text = vocabulary.kinds.data, byte_alphabet(), vocabulary.text

    def piece(id: int) -> bytes:
        if kinds[id] == _Kind.NORMAL:
            return decode(text(id).decode("utf-8", "surrogateescape"), alphabet)
        return text(id) if kinds[id] == _Kind.USER_DEFINED else b""

    defined = {text(id).decode("utf-8", "surrogateescape"): id for id in vocabulary.ids(_Kind.USER_DEFINED)}
    return ByteLevelBpe(vocabulary.merges, defined, text), piece


def _scored(read: _Read) -> Scored:
    scores = read.get.numbers("scores")
    if scores is None or len(scores) != len(read.texts):
        raise ValueError("the vocabulary has no scores (tokenizer.ggml.scores)")
    return Scored(np.asarray(scores, dtype=np.float64), read.get.flag("add_space_prefix", True))


def _sentencepiece(vocabulary: GgufVocabulary) -> tuple[Encoder, Callable[[int], bytes]]:
    assert vocabulary.scored is not None
    mergeable: dict[str, tuple[int, float]] = {}
    defined: dict[str, int] = {}
    byte_ids: dict[int, int] = {}
    unknown: int | None = None
    kinds, scores = vocabulary.kinds.tolist(), vocabulary.scored.scores.tolist()
    for id, (kind, score) in enumerate(zip(kinds, scores, strict=True)):
        text = vocabulary.text(id).decode("utf-8", "surrogateescape")
        if kind == _Kind.NORMAL:
            mergeable[text] = (id, score)
        elif kind == _Kind.USER_DEFINED:
            defined[text] = id
        elif kind == _Kind.UNKNOWN:
            unknown = id
        elif kind == _Kind.BYTE:
            byte = byte_of(text)
            if byte is None:
                raise ValueError(f"byte token {told(text)} is not of the form <0xNN>")
            byte_ids[byte] = id

    def piece(id: int) -> bytes:
        text = vocabulary.text(id)
        if kinds[id] in (_Kind.NORMAL, _Kind.USER_DEFINED):
            return text.replace(SPACE.encode(), b" ")
        byte = byte_of(text.decode("utf-8", "surrogateescape")) if kinds[id] == _Kind.BYTE else None
        return b"" if byte is None else bytes([byte])

    space_prefix = vocabulary.scored.space_prefix
    return SentencePieceBpe(mergeable, defined, byte_ids, unknown, space_prefix=space_prefix), piece
