"""`FileTokenizer`: the `Tokenizer` seam over what was read from a model file, whatever its format."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from exactspec.target.byte_level import encoded
from exactspec.target.chat import ChatTemplate, check_text
from exactspec.target.fewest import FewestTokens
from exactspec.target.tokenizer import TooManyTokens

# Texts of control tokens that end an answer, the list llama.cpp keeps (``llama_vocab``, special_eog_ids): a file names
# one EOS, chat models end with another. The last three separate files in code models: the answer is over there, too.
END_TEXTS = frozenset(
    {
        "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|eot|>", "<|end|>", "<|return|>", "<|call|>", "<|endoftext|>",
        "<|end_of_text|>", "<end_of_turn>", "<end_of_utterance>", "</s>", "<eos>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]",
        "<｜end▁of▁sentence｜>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>",
    }
)  # fmt: skip


def looks_special(text: str) -> bool:
    """Whether a token's text has the form of a control token (``<|...|>``), whatever its type in the file says.

    The rule of llama.cpp's converter: ``<|fim_prefix|>`` is an ordinary added token in some tokenizer.json.
    """
    return (text.startswith("<|") and text.endswith("|>")) or (text.startswith("<｜") and text.endswith("｜>"))


_SURELY_SHORT = 8  # characters a token, on average, up to which a text is encoded with no look at it beforehand
_COUNTED = 2  # times the ids of use, up to which they are counted, so that people learn by how much to shorten


class Encoder(Protocol):
    """Text to ids, with no special tokens."""

    def __call__(self, text: str, *, first: bool, at_most: int | None = None) -> list[int]:
        """`first`: the piece stands at the very start of the text (some vocabularies put a space in front of that).
        `at_most`: once there are more ids than that, the rest of them may be left out."""
        ...

    def spelled(self, text: str) -> str | None:
        """What the bytes of the ids' tokens spell, but for characters that may be left out; None if that is not known
        before."""
        ...


@dataclass(frozen=True, slots=True)
class Control:
    """A special token: its text and id. `lstrip`, `rstrip`: it swallows white space before or after it."""

    text: str
    id: int
    lstrip: bool = False
    rstrip: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class TokenTable:
    """All tokens as their file has them, so that two vocabularies of one `form` are compared at once. `texts` uint8:
    one behind the other; that of id i ends at ``ends[i]`` (int64). `kinds` uint8: what decides which bytes a text
    means."""

    form: str
    texts: npt.NDArray[np.uint8]
    ends: npt.NDArray[np.int64]
    kinds: npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FileTokenizer:
    """A `Tokenizer`. `piece`: the bytes of one id of `vocab_size`. `controls`: the special tokens. `table`: the whole
    vocabulary, where it is at hand."""

    encoder: Encoder
    piece: Callable[[int], bytes]
    vocab_size: int
    controls: Sequence[Control]
    eos_ids: frozenset[int]
    bos_id: int | None
    template: ChatTemplate | None
    table: TokenTable | None = None
    _search: re.Pattern[str] | None = field(init=False)
    _ids: Mapping[str, int] = field(init=False)
    _fewest: list[FewestTokens] = field(init=False)

    def __post_init__(self) -> None:
        for token in self.eos_ids | ({self.bos_id} if self.bos_id is not None else set()):
            if not 0 <= token < self.vocab_size:
                raise ValueError(f"special token {token} is outside the vocabulary of {self.vocab_size}")
        object.__setattr__(self, "_search", _pattern(self.controls))
        object.__setattr__(self, "_ids", {control.text: control.id for control in self.controls})
        object.__setattr__(self, "_fewest", [])  # made when the first text is long enough to need it

    @property
    def has_chat_template(self) -> bool:
        return self.template is not None

    def encode(self, text: str, *, at_most: int | None = None) -> list[int]:
        """Ids of plain text; see `Tokenizer.encode`. ValueError if it is not valid Unicode."""
        check_text(text)
        if not text:
            return []
        self._give_up_on(text, at_most)
        return _at_most(self.encoder(text, first=True, at_most=_counted(at_most)), at_most)

    def encode_inner(self, text: str) -> list[int]:
        """As `encode`, for text that does not stand at the start: no space is put in front."""
        check_text(text)
        return self.encoder(text, first=False) if text else []

    def token_bytes(self, token: int) -> bytes:
        """The bytes one id stands for, b"" for control tokens and unused ids."""
        if not 0 <= token < self.vocab_size:
            raise ValueError(f"token {token} is outside the vocabulary of {self.vocab_size}")
        return self.piece(token)

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        at_most: int | None = None,
    ) -> list[int]:
        """Ids of a templated conversation; see `Tokenizer.chat`."""
        if self.template is None:
            raise ValueError("the model has no chat template; give the prompt as plain text")
        if tools is not None and not self.template.takes_tools:
            raise ValueError("the model's chat template knows no tools: leave them out, or take another model")
        text, marker = self.template.render(messages, add_generation_prompt=add_generation_prompt, tools=tools)
        self._give_up_on(text.replace(marker, ""), at_most)
        ids = self._encode_marked(text, marker, _counted(at_most))
        if self.bos_id is not None:
            while ids[:2] == [self.bos_id, self.bos_id]:
                del ids[0]
        return _at_most(ids, at_most)

    def _encode_marked(self, text: str, marker: str, at_most: int | None) -> list[int]:
        ids: list[int] = []
        at = 0
        for match in self._search.finditer(text) if self._search is not None else ():
            self._plain(text[at : match.start()], marker, at == 0, ids, at_most)
            found = match.group()
            ids.append(self._ids[found if found in self._ids else found.strip()])
            at = match.end()
            if at_most is not None and len(ids) > at_most:
                return ids
        self._plain(text[at:], marker, at == 0, ids, at_most)
        return ids

    def _plain(self, text: str, marker: str, first: bool, ids: list[int], at_most: int | None) -> None:
        text = text.replace(marker, "")
        if text:
            ids += self.encoder(text, first=first, at_most=None if at_most is None else at_most - len(ids))

    def _give_up_on(self, text: str, at_most: int | None) -> None:
        """Raises `TooManyTokens` where a look at the bytes of `text` tells, special tokens or not."""
        if at_most is None or len(text) <= _SURELY_SHORT * at_most:
            return
        spelled = self.encoder.spelled(text)
        if spelled is None or any(control.lstrip or control.rstrip for control in self.controls):
            return
        if not self._fewest:
            pieces = (self.piece(id) for id in range(self.vocab_size))
            self._fewest.append(FewestTokens((*pieces, *(encoded(control.text) for control in self.controls))))
        fewest = self._fewest[0](encoded(spelled))
        if fewest > at_most:
            raise TooManyTokens(fewest, at_most, exact=False)


def _counted(at_most: int | None) -> int | None:
    return None if at_most is None else _COUNTED * at_most


def _at_most(ids: list[int], at_most: int | None) -> list[int]:
    if at_most is not None and len(ids) > at_most:
        raise TooManyTokens(len(ids), at_most, exact=len(ids) <= _COUNTED * at_most)
    return ids


def _pattern(controls: Sequence[Control]) -> re.Pattern[str] | None:
    """One pattern for all special tokens, the longest first where one begins with another."""
    if not controls:
        return None
    ordered = sorted(controls, key=lambda control: len(control.text), reverse=True)
    return re.compile(
        "|".join(
            (r"\s*" if c.lstrip else "") + re.escape(c.text) + (r"\s*" if c.rstrip else "") for c in ordered if c.text
        )
    )


def end_ids(controls: Iterable[Control], stated: Iterable[int | None]) -> frozenset[int]:
    """Every id that ends an answer: those the file states and those known by their text."""
    texts = {control.text: control.id for control in controls}
    ends = {id for text, id in texts.items() if text in END_TEXTS}
    if {"<|return|>", "<|call|>", "<|end|>"} <= texts.keys():  # there, <|end|> only ends one message of several
        ends.discard(texts["<|end|>"])
    return frozenset(ends | {id for id in stated if id is not None})
