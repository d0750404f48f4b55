"""What the two generating endpoints take in common: OpenAI's fields, vLLM's names for the rest, and our own.

Strict: a text is no number. A field that is not listed is refused, as OpenAI does; those that are listed and have no
effect here say so. One mistake is enough: pydantic would describe each of a million, in the event loop, for seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeAlias, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

T = TypeVar("T")
Items: TypeAlias = Annotated[list[T], Field(fail_fast=True)]
"""A list of which only the first item that is wrong is named."""


def named_values(*kinds: type) -> BeforeValidator:
    """For an object that holds values of these types: of others, only the first is looked at."""

    def first_wrong(value: Any) -> Any:
        entries = value.items() if isinstance(value, Mapping) else ()
        return next(({key: item} for key, item in entries if type(item) not in kinds), value)

    return BeforeValidator(first_wrong)


def at_most(n: int, what: str) -> BeforeValidator:
    """For a list that is refused before its items are looked at, if there are more than n; other forms pass."""

    def few_enough(value: Any) -> Any:
        if isinstance(value, list) and len(value) > n:
            raise ValueError(f"at most {n} {what} are taken, got {len(value)}")
        return value

    return BeforeValidator(few_enough)


class Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _one_unknown_field(cls, value: Any) -> Any:
        if not isinstance(value, Mapping):
            return value
        known = {field.alias or name for name, field in cls.model_fields.items()}
        unknown = [key for key in value if key not in known]
        return value if len(unknown) < 2 else {key: value[key] for key in value if key in known or key == unknown[0]}


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
    content: Annotated[str | Items[TextPart], at_most(1000, "parts")]


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
    choice: Items[str] | None = None
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
    stop: str | Items[str] | None = None
    seed: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: Annotated[dict[str, float], named_values(int, float)] | None = None
    prediction: Prediction | None = None
    user: str | None = Field(default=None, description="No effect.")

    # vLLM's names.
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    stop_token_ids: Items[int] | None = None
    min_tokens: int | None = None
    ignore_eos: bool | None = None
    guided_json: str | dict[str, Any] | None = None
    guided_regex: str | None = None
    guided_choice: Items[str] | None = None
    guided_grammar: str | None = None
    structured_outputs: StructuredOutputs | None = None
    return_token_ids: bool | None = None

    # Ours.
    speculative: SpeculativeOptions | None = None
