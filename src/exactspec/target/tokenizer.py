"""The tokenizer seam; `load_tokenizer` lives beside it once a model file is open."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol


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

    def encode(self, text: str) -> list[int]:
        """Ids of plain text: no BOS, and a special token's name in the text is ordinary text."""
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
    ) -> list[int]:
        """Ids of a templated conversation, special tokens included, BOS at most once. `tools`: functions that the
        model may call, in OpenAI's form.

        Nothing in messages or tools becomes a special token. ValueError if there is no chat template, the template
        refuses the messages, or it knows no tools and some are given.
        """
        ...
