"""What an answer must look like: any JSON object, JSON of a schema, a regular expression, or a grammar.

Only the description; `exactspec.grammars` compiles it for a tokenizer.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

KINDS = ("json_object", "json_schema", "regex", "grammar")
MAX_CHARACTERS = 100_000
"""Longest description that is taken: compiling one takes time and memory, and requests come from anywhere."""


class Unusable(ValueError):
    """A constraint cannot be compiled: it means nothing, or nothing that is supported."""


class Unanswerable(ValueError):
    """In the middle of an answer, the request's own parameters leave no token to draw."""


@dataclass(frozen=True, slots=True)
class Constraint:
    """The whole answer matches this, and ends where it may end.

    `kind`: "json_object" (any object), "json_schema" (`text`: a JSON Schema as JSON), "regex" (`text`: a regular
    expression in the syntax of Rust's regex crate, for the whole answer), "grammar" (`text`: a context-free grammar in
    llguidance's variant of Lark, its start symbol ``start``).
    Raises ValueError on an unknown kind, and on a text that is missing, too long, or no JSON where it must be; whether
    it can be compiled is known only with a tokenizer.

    >>> Constraint("regex", "[0-9]{4}-[0-9]{2}")
    Constraint(kind='regex', text='[0-9]{4}-[0-9]{2}')
    """

    kind: str
    text: str = ""

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"constraint must be one of {', '.join(KINDS)}, got {self.kind!r}")
        if not isinstance(self.text, str):
            raise ValueError(f"the {self.kind} of a constraint must be a text, got {type(self.text).__name__}")
        if (self.kind == "json_object") != (self.text == ""):
            raise ValueError(f"a {self.kind} constraint {'takes no' if self.text else 'needs a'} text")
        if len(self.text) > MAX_CHARACTERS:
            raise ValueError(
                f"the {self.kind} of a constraint has {len(self.text)} characters, more than {MAX_CHARACTERS}: "
                "make it shorter"
            )
        if self.kind == "json_schema":
            try:
                schema = json.loads(self.text)
            except (ValueError, RecursionError) as error:
                raise ValueError(f"the JSON schema of a constraint is no JSON: {error}") from None
            if not isinstance(schema, dict):
                raise ValueError("the JSON schema of a constraint must be an object")

    @classmethod
    def schema(cls, schema: Mapping[str, Any]) -> Constraint:
        """JSON of a schema given as Python values. ValueError where they are not JSON."""
        try:
            return cls("json_schema", json.dumps(schema))
        except (TypeError, ValueError, RecursionError) as error:
            raise ValueError(f"the JSON schema of a constraint is not JSON-like: {error}") from None

    @classmethod
    def choice(cls, texts: Sequence[str]) -> Constraint:
        """One of these texts, literally.

        >>> Constraint.choice(["yes", "no"]).text
        'start: "yes" | "no"'
        """
        if not texts or not all(isinstance(text, str) and text for text in texts):
            raise ValueError("a choice needs a list of non-empty texts")
        return cls("grammar", "start: " + " | ".join(json.dumps(text, ensure_ascii=False) for text in texts))
