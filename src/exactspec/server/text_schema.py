"""The bodies of /v1/completions, /tokenize and /detokenize."""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias

from pydantic import Discriminator, Field, Tag

from exactspec.server.chat_schema import Messages, Tools
from exactspec.server.schema import GenerateRequest, Items, Strict
from exactspec.server.settings import MOST_CHOICES


def _form(prompt: Any) -> str:
    """Which of the forms of a prompt is meant: its first item tells, and no other form is tried."""
    if not isinstance(prompt, list):
        return "str"
    first = prompt[0] if prompt else ""
    return "list[list[int]]" if isinstance(first, list) else "list[int]" if isinstance(first, int) else "list[str]"


PromptField: TypeAlias = Annotated[
    Annotated[str, Tag("str")]
    | Annotated[Items[str], Field(max_length=MOST_CHOICES), Tag("list[str]")]
    | Annotated[Items[int], Tag("list[int]")]
    | Annotated[Items[Items[int]], Field(max_length=MOST_CHOICES), Tag("list[list[int]]")],
    Discriminator(_form),
]


class CompletionRequest(GenerateRequest):
    """OpenAI's older completions request. `echo`, `suffix` and `best_of` other than `n` are refused."""

    prompt: PromptField
    logprobs: int | None = None
    echo: bool | None = None
    suffix: str | None = None
    best_of: int | None = None


class TokenizeRequest(Strict):
    """vLLM's form: a text, or messages for the chat template. `add_special_tokens`: of a text, its BOS."""

    model: str | None = None
    prompt: str | None = None
    messages: Messages | None = None
    tools: Tools | None = None
    add_generation_prompt: bool | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None


class DetokenizeRequest(Strict):
    model: str | None = None
    tokens: Items[int]
