"""What the two generating endpoints take in common: OpenAI's fields, vLLM's names for the rest, and our own.

Strict: a text is no number. A field that is not listed is refused, as OpenAI does; those that are listed and have no
effect here say so.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field


class Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")


class Tolerant(BaseModel):
    """For objects that clients send back as they got them, with whatever else they hold."""

    model_config = ConfigDict(strict=True, extra="ignore")


class StreamOptions(Strict):
    """`include_usage`: one more chunk before the end, with the usage. `include_obfuscation` has no effect."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class TextPart(Tolerant):
    """A piece of text in a list of content parts."""

    type: Literal["text"]
    text: str


class Prediction(Strict):
    """Text that the answer is expected to resemble: drafts are copied from it, too."""

    type: Literal["content"]
    content: str | list[TextPart]


class SpeculativeOptions(Strict):
    """How to draft; cannot change an answer. `draft`: a name as for ``--draft``, of a model or layer only if the
    server has it open. `max_nodes`: most drafted tokens verified in one step. `trace`: each chunk says where its
    tokens came from."""

    draft: str | None = None
    max_nodes: int | None = None
    trace: bool | None = None


class StructuredOutputs(Strict):
    """vLLM's form of constraints: at most one."""

    json_: str | dict[str, Any] | None = Field(default=None, alias="json")
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None


class GenerateRequest(Strict):
    """Fields of /v1/chat/completions and /v1/completions."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: int | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    stop: str | list[str] | None = None
    seed: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    prediction: Prediction | None = None
    user: str | None = Field(default=None, description="No effect.")

    # vLLM's names.
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    stop_token_ids: list[int] | None = None
    min_tokens: int | None = None
    ignore_eos: bool | None = None
    guided_json: str | dict[str, Any] | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    structured_outputs: StructuredOutputs | None = None
    return_token_ids: bool | None = None

    # Ours.
    speculative: SpeculativeOptions | None = None
