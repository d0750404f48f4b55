"""The tokenizer seam; `load_tokenizer` lives beside it once a model file is open."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol


class TooManyTokens(ValueError):
    """A text has more tokens than were asked for. `count`: its tokens; where not `exact`, at least that many."""

    def __init__(self, count: int, at_most: int, *, exact: bool) -> None:
        self.count, self.at_most, self.exact = count, at_most, exact
        super().__init__(f"the text has {self.told} tokens, more than {at_most}")

    @property
    def told(self) -> str:
        """The count, as it is told to people."""
        return f"{self.count}" if self.exact else f"at least {self.count}"


class Tokenizer(Protocol):
    """Text to ids and back, without special-token parsing of user text.

    `eos_ids`: every id that ends an answer (generation config and tokenizer, united). `vocab_size`: number of ids.
    `bos_id`: put in front of a raw prompt, or None.
    """

    @property
    def eos_ids(self) -> frozenset[int]: ...

    @property
    def bos_id(self) -> int | None: ...

    @property
    def vocab_size(self) -> int: ...

    @property
    def has_chat_template(self) -> bool: ...

    def encode(self, text: str, *, at_most: int | None = None) -> list[int]:
        """Ids of plain text: no BOS, and a special token's name in the text is ordinary text.

        `at_most`: more ids are of no use. A text that has more may be given up on, in little time however long it is:
        `TooManyTokens`.
        """
        ...

    def token_bytes(self, token: int) -> bytes:
        """The bytes one id stands for; b"" for control tokens (EOS, end of turn). ValueError outside the vocabulary."""
        ...

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        at_most: int | None = None,
    ) -> list[int]:
        """Ids of a templated conversation, special tokens included, BOS at most once. `tools`: functions that the
        model may call, in OpenAI's form. `at_most`: as for `encode`.

        Nothing in messages or tools becomes a special token. ValueError if there is no chat template, the template
        refuses the messages, or it knows no tools and some are given.
        """
        ...
