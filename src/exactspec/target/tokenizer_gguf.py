"""The tokenizer of a GGUF file: byte-level BPE, or SentencePiece BPE with byte fallback."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
from tokenizers import AddedToken, Tokenizer, models

from exactspec.target.byte_level import BpeEncoder, byte_alphabet, byte_of, decode, encoded
from exactspec.target.chat import ChatTemplate
from exactspec.target.pretokenize import PreTokenizer, pre_tokenizer
from exactspec.target.sentencepiece_bpe import SPACE, SentencePieceBpe
from exactspec.target.tokenizer_file import END_TEXTS, Control, Encoder, FileTokenizer, end_ids, looks_special

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


@dataclass(frozen=True, slots=True)
class _Vocabulary:
    texts: Sequence[str]
    kinds: list[int]
    metadata: Mapping[str, Any]

    def get(self, key: str, default: Any = None) -> Any:
        return self.metadata.get(_PREFIX + key, default)

    def id(self, key: str) -> int | None:
        """A special token's id; ids outside the vocabulary count as none, as in llama.cpp."""
        value = self.get(key)
        return value if isinstance(value, int) and 0 <= value < len(self.texts) else None


def gguf_tokenizer(metadata: Mapping[str, Any], vocab_size: int) -> FileTokenizer:
    """Tokenizer from a GGUF header's metadata. `vocab_size`: rows of the embedding.

    Raises ValueError on a vocabulary that is missing, of another size, or of a kind unknown here (named).
    """
    vocabulary = _vocabulary(metadata, vocab_size)
    texts, kinds = vocabulary.texts, vocabulary.kinds
    controls = [Control(texts[id], id) for id, kind in enumerate(kinds) if kind in (_Kind.CONTROL, _Kind.UNKNOWN)]
    model = str(vocabulary.get("model", ""))
    if model == "gpt2":
        pre = pre_tokenizer(str(vocabulary.get("pre", "")))
        encoder, piece, bos = *_byte_level(vocabulary, pre), pre.bos
    elif model == "llama":
        encoder, piece, bos = *_sentencepiece(vocabulary), True
    else:
        raise ValueError(f"tokenizer {model!r} is not supported (gpt2 and llama are)")
    source = metadata.get("tokenizer.chat_template")
    variables = {name: id for name, key in _SPECIAL_VARIABLES.items() if (id := vocabulary.id(key)) is not None}
    return FileTokenizer(
        encoder=encoder,
        piece=piece,
        vocab_size=vocab_size,
        controls=controls,
        eos_ids=end_ids(controls, [vocabulary.id(key) for key in ("eos_token_id", "eot_token_id", "eom_token_id")]),
        bos_id=vocabulary.id("bos_token_id") if vocabulary.get("add_bos_token", bos) else None,
        template=None
        if not source
        else ChatTemplate(
            str(source),
            [control.text for control in controls],
            {name: texts[id] for name, id in variables.items()},
        ),
    )


def _vocabulary(metadata: Mapping[str, Any], vocab_size: int) -> _Vocabulary:
    texts = metadata.get(_PREFIX + "tokens")
    if not isinstance(texts, list) or not texts:
        raise ValueError("the file has no vocabulary (tokenizer.ggml.tokens)")
    if len(texts) != vocab_size:
        raise ValueError(f"the vocabulary has {len(texts)} tokens, the embedding {vocab_size} rows")
    stated = metadata.get(_PREFIX + "token_type")
    kinds: list[int] = [int(_Kind.NORMAL)] * len(texts) if stated is None else np.asarray(stated).tolist()
    if len(kinds) != len(texts):
        raise ValueError(f"the vocabulary has {len(texts)} tokens and {len(kinds)} token types")
    vocabulary = _Vocabulary(texts, kinds, metadata)
    # Old conversions type the end of a turn as an ordinary added token, or type nothing.
    added = int(_Kind.NORMAL if stated is None else _Kind.USER_DEFINED)
    for id, kind in enumerate(kinds):
        if kind == added and (texts[id] in END_TEXTS or looks_special(texts[id])):
            kinds[id] = _Kind.CONTROL
    for key in ("bos_token_id", "eos_token_id", "eot_token_id"):
        special = vocabulary.id(key)
        if special is not None and kinds[special] != _Kind.UNKNOWN:
            kinds[special] = _Kind.CONTROL
    return vocabulary


def _byte_level(vocabulary: _Vocabulary, pre: PreTokenizer) -> tuple[Encoder, Callable[[int], bytes]]:
    raw = vocabulary.get("merges")
    if not isinstance(raw, list):
        raise ValueError("the file has no merges (tokenizer.ggml.merges)")
    texts, kinds, ordinary, defined = vocabulary.texts, vocabulary.kinds, int(_Kind.NORMAL), int(_Kind.USER_DEFINED)
    ids = {text: id for id, (text, kind) in enumerate(zip(texts, kinds, strict=True)) if kind in (ordinary, defined)}
    added = [AddedToken(texts[id], normalized=False) for id, kind in enumerate(kinds) if kind == defined]
    merges = [tuple(merge.split(" ", 1)) for merge in raw]
    alphabet = byte_alphabet()

    def piece(id: int) -> bytes:
        if kinds[id] == ordinary:
            return decode(texts[id], alphabet)
        return encoded(texts[id]) if kinds[id] == defined else b""

    try:
        tokenizer = Tokenizer(models.BPE(ids, merges, ignore_merges=pre.whole_words))
    except Exception as error:  # the package raises plain Exception
        raise ValueError(f"the vocabulary and its merges do not fit together: {str(error).splitlines()[0]}") from None
    normalizer = pre.normalizer()
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre.splitter()
    tokenizer.add_tokens(added)
    return BpeEncoder(tokenizer), piece


def _sentencepiece(vocabulary: _Vocabulary) -> tuple[Encoder, Callable[[int], bytes]]:
    scores = vocabulary.get("scores")
    if scores is None or len(scores) != len(vocabulary.texts):
        raise ValueError("the vocabulary has no scores (tokenizer.ggml.scores)")
    texts, kinds = vocabulary.texts, vocabulary.kinds
    mergeable: dict[str, tuple[int, float]] = {}
    defined: dict[str, int] = {}
    byte_ids: dict[int, int] = {}
    unknown: int | None = None
    for id, (text, kind, score) in enumerate(
        zip(texts, kinds, np.asarray(scores, dtype=np.float64).tolist(), strict=True)
    ):
        if kind == _Kind.NORMAL:
            mergeable[text] = (id, score)
        elif kind == _Kind.USER_DEFINED:
            defined[text] = id
        elif kind == _Kind.UNKNOWN:
            unknown = id
        elif kind == _Kind.BYTE:
            byte = byte_of(text)
            if byte is None:
                raise ValueError(f"byte token {text!r} is not of the form <0xNN>")
            byte_ids[byte] = id

    def piece(id: int) -> bytes:
        if kinds[id] in (_Kind.NORMAL, _Kind.USER_DEFINED):
            return encoded(texts[id].replace(SPACE, " "))
        byte = byte_of(texts[id]) if kinds[id] == _Kind.BYTE else None
        return b"" if byte is None else bytes([byte])

    space_prefix = bool(vocabulary.get("add_space_prefix", True))
    return SentencePieceBpe(mergeable, defined, byte_ids, unknown, space_prefix=space_prefix), piece
