"""Pre-tokenizers by the name a GGUF file gives them: how text is cut before byte-pair merging.

The patterns are those of the models' own tokenizer.json; llama.cpp keeps the same list (``llama-vocab.cpp``).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from tokenizers import Regex, normalizers, pre_tokenizers

from exactspec.target.settings import told

_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2 = _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

_BLOCK = 1 << 14
_BORDER = re.compile(r"(?<=[A-Za-z0-9])[ \n]")


def blocks(text: str, size: int = _BLOCK) -> Iterator[str]:
    """`text` in parts of `size` characters and a little more, for the package cuts a text in one call that lets no
    other thread run. They are words by themselves: between a letter or digit and a space, every pattern here cuts,
    none looks back, and normalising joins nothing."""
    at = 0
    while len(text) - at > size:
        border = _BORDER.search(text, at + size)
        if border is None:
            break
        yield text[at : border.start()]
        at = border.start()
    if at < len(text):
        yield text[at:] if at else text


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """`patterns`: applied one after the other, each cutting what the last left. `nfc`: text is first composed
    (NFC). `whole_words`: a cut piece that is a token by itself is taken without merging. `bos`: a raw prompt starts
    with BOS unless the file says otherwise."""

    patterns: tuple[str, ...]
    nfc: bool = False
    whole_words: bool = False
    bos: bool = False

    def normalizer(self) -> normalizers.Normalizer | None:
        return normalizers.NFC() if self.nfc else None

    def splitter(self) -> pre_tokenizers.PreTokenizer:
        steps: list[pre_tokenizers.PreTokenizer] = [
            pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in self.patterns
        ]
        return pre_tokenizers.Sequence([*steps, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def pre_tokenizer(name: str) -> PreTokenizer:
    """The pre-tokenizer of a ``tokenizer.ggml.pre`` name; ValueError naming it if it is not known here."""
    known = {
        "llama3": PreTokenizer((_LLAMA3,), whole_words=True, bos=True),
        "qwen2": PreTokenizer((_QWEN2,), nfc=True),
        "smollm": PreTokenizer((r"\p{N}", _GPT2)),
        "gpt-2": PreTokenizer((_GPT2,)),
        "tekken": PreTokenizer((_TEKKEN,), whole_words=True, bos=True),
        # What llama.cpp does for files that name none (it warns that quality suffers).
        "default": PreTokenizer((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")),
    }
    aliases = {"llama-bpe": "llama3", "llama-v3": "llama3", "falcon3": "llama3", "": "default"}
    found = known.get(aliases.get(name, name))
    if found is None:
        names = ", ".join(sorted([*known, *filter(None, aliases)]))
        raise ValueError(f"pre-tokenizer {told(name)} is not supported (known: {names})")
    return found
