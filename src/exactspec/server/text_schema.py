"""The bodies of /v1/completions, /tokenize and /detokenize."""

from __future__ import annotations

from pydantic import Field

from exactspec.server.chat_schema import ChatMessage, Tool
from exactspec.server.schema import GenerateRequest, Strict


class CompletionRequest(GenerateRequest):
    """OpenAI's older completions request. `echo`, `suffix` and `best_of` other than `n` are refused."""

    prompt: str | list[str] | list[int] | list[list[int]]
    logprobs: int | None = None
    echo: bool | None = None
    suffix: str | None = None
    best_of: int | None = None


class TokenizeRequest(Strict):
    """vLLM's form: a text, or messages for the chat template. `add_special_tokens`: of a text, its BOS."""

    model: str | None = None
    prompt: str | None = None
    messages: list[ChatMessage] | None = Field(default=None, min_length=1)
    tools: list[Tool] | None = None
    add_generation_prompt: bool | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None


class DetokenizeRequest(Strict):
    model: str | None = None
    tokens: list[int]
