"""The tokenizer of a GGUF file: byte-level BPE, or SentencePiece BPE with byte fallback."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from tokenizers import AddedToken, Tokenizer, models

from exactspec.target.byte_level import BpeEncoder, byte_alphabet, byte_of, decode
from exactspec.target.chat import ChatTemplate
from exactspec.target.pretokenize import PreTokenizer, pre_tokenizer
from exactspec.target.sentencepiece_bpe import SentencePieceBpe
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
    kinds: Sequence[int]
    metadata: Mapping[str, Any]

    def get(self, key: str, default: Any = None) -> Any:
        return self.metadata.get(_PREFIX + key, default)

    def id(self, key: str) -> int | None:
        """A special token's id; ids outside the vocabulary count as none, as in llama.cpp."""
        value = self.get(key)
        return int(value) if value is not None and 0 <= int(value) < len(self.texts) else None


def gguf_tokenizer(metadata: Mapping[str, Any], vocab_size: int) -> FileTokenizer:
    """Tokenizer from a GGUF header's metadata. `vocab_size`: rows of the embedding.

    Raises ValueError on a vocabulary that is missing, of another size, or of a kind unknown here (named).
    """
    vocabulary = _vocabulary(metadata, vocab_size)
    controls = [
        Control(text, id)
        for id, (text, kind) in enumerate(zip(vocabulary.texts, vocabulary.kinds, strict=True))
        if kind in (_Kind.CONTROL, _Kind.UNKNOWN)
    ]
    model = str(vocabulary.get("model", ""))
    if model == "gpt2":
        pre = pre_tokenizer(str(vocabulary.get("pre", "")))
        encoder, pieces, bos = *_byte_level(vocabulary, pre), pre.bos
    elif model == "llama":
        encoder, pieces, bos = *_sentencepiece(vocabulary), True
    else:
        raise ValueError(f"tokenizer {model!r} is not supported (gpt2 and llama are)")
    source = metadata.get("tokenizer.chat_template")
    variables = {name: id for name, key in _SPECIAL_VARIABLES.items() if (id := vocabulary.id(key)) is not None}
    return FileTokenizer(
        encoder=encoder,
        pieces=pieces,
        controls=controls,
        eos_ids=end_ids(controls, [vocabulary.id(key) for key in ("eos_token_id", "eot_token_id", "eom_token_id")]),
        bos_id=vocabulary.id("bos_token_id") if vocabulary.get("add_bos_token", bos) else None,
        template=None
        if not source
        else ChatTemplate(
            str(source),
            [control.text for control in controls],
            {name: vocabulary.texts[id] for name, id in variables.items()},
        ),
    )


def _vocabulary(metadata: Mapping[str, Any], vocab_size: int) -> _Vocabulary:
    texts = metadata.get(_PREFIX + "tokens")
    if not isinstance(texts, list) or not texts:
        raise ValueError("the file has no vocabulary (tokenizer.ggml.tokens)")
    if len(texts) != vocab_size:
        raise ValueError(f"the vocabulary has {len(texts)} tokens, the embedding {vocab_size} rows")
    kinds = [int(kind) for kind in metadata.get(_PREFIX + "token_type", [_Kind.NORMAL] * len(texts))]
    if len(kinds) != len(texts):
        raise ValueError(f"the vocabulary has {len(texts)} tokens and {len(kinds)} token types")
    vocabulary = _Vocabulary(texts, kinds, metadata)
    typed = _PREFIX + "token_type" in metadata
    for id, text in enumerate(texts):
        # Old conversions type the end of a turn as an ordinary added token.
        added = kinds[id] == _Kind.USER_DEFINED or not typed
        if added and (text in END_TEXTS or looks_special(text)):
            kinds[id] = _Kind.CONTROL
    for key in ("bos_token_id", "eos_token_id", "eot_token_id"):
        special = vocabulary.id(key)
        if special is not None and kinds[special] != _Kind.UNKNOWN:
            kinds[special] = _Kind.CONTROL
    return vocabulary


def _byte_level(vocabulary: _Vocabulary, pre: PreTokenizer) -> tuple[Encoder, list[bytes]]:
    raw = vocabulary.get("merges")
    if not isinstance(raw, list):
        raise ValueError("the file has no merges (tokenizer.ggml.merges)")
    merges: list[tuple[str, str]] = []
    for merge in raw:
        left, space, right = merge.partition(" ")
        if not (left and space and right):
            raise ValueError(f"merge {merge!r} is not two tokens")
        merges.append((left, right))
    ids: dict[str, int] = {}
    added: list[AddedToken] = []
    pieces: list[bytes] = []
    alphabet = byte_alphabet()
    for id, (text, kind) in enumerate(zip(vocabulary.texts, vocabulary.kinds, strict=True)):
        if kind == _Kind.NORMAL:
            ids[text] = id
            pieces.append(decode(text, alphabet))
        elif kind == _Kind.USER_DEFINED:
            ids[text] = id
            added.append(AddedToken(text, normalized=False, special=False))
            pieces.append(text.encode("utf-8", "surrogateescape"))
        else:
            pieces.append(b"")
    try:
        tokenizer = Tokenizer(models.BPE(ids, merges, ignore_merges=pre.whole_words))
    except Exception as error:  # the package raises plain Exception
        raise ValueError(f"the vocabulary and its merges do not fit together: {error}") from None
    normalizer = pre.normalizer()
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre.splitter()
    tokenizer.add_tokens(added)
    return BpeEncoder(tokenizer), pieces


def _sentencepiece(vocabulary: _Vocabulary) -> tuple[Encoder, list[bytes]]:
    scores = vocabulary.get("scores")
    if scores is None or len(scores) != len(vocabulary.texts):
        raise ValueError("the vocabulary has no scores (tokenizer.ggml.scores)")
    mergeable: dict[str, tuple[int, float]] = {}
    defined: dict[str, int] = {}
    byte_ids: dict[int, int] = {}
    unknown: int | None = None
    pieces: list[bytes] = []
    rows = zip(vocabulary.texts, vocabulary.kinds, scores, strict=True)
    for id, (text, kind, score) in enumerate(rows):
        piece = b""
        if kind == _Kind.NORMAL:
            mergeable[text] = (id, float(score))
            piece = text.replace("\u2581", " ").encode("utf-8", "surrogateescape")
        elif kind == _Kind.USER_DEFINED:
            defined[text] = id
            piece = text.replace("\u2581", " ").encode("utf-8", "surrogateescape")
        elif kind == _Kind.BYTE:
            byte = byte_of(text)
            if byte is None:
                raise ValueError(f"byte token {text!r} is not of the form <0xNN>")
            byte_ids[byte] = id
            piece = bytes([byte])
        elif kind == _Kind.UNKNOWN:
            unknown = id
        pieces.append(piece)
    space_prefix = bool(vocabulary.get("add_space_prefix", True))
    return SentencePieceBpe(mergeable, defined, byte_ids, unknown, space_prefix=space_prefix), pieces
