"""Chat templates: messages to text, without a message ever writing a special token.

Templates are Jinja, run as transformers runs them (sandboxed, same options and helpers). Whatever a template does to
a content (trim, test, slice, join), the text it renders still says which special tokens are the template's own:
before rendering, every character of a message that could begin a special token gets a marker behind it, a character
that occurs nowhere in the messages or the template. The rendered text is searched for special tokens with the
markers in place, then the markers are taken out. A message without such characters is rendered as it is, so ids equal
those of transformers' ``apply_chat_template``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from jinja2 import Template, TemplateError, meta, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from exactspec.target.settings import one_line

# Role names are part of the template's own text ('<|' + role + '|>' is a special token in some), so they may not
# hold anything that could end one and begin another.
_ROLE = re.compile(r"[A-Za-z][A-Za-z0-9_.-]*")

# Non-characters first: no text interchange has them. Then private use.
_MARKERS = (*range(0xFDD0, 0xFDF0), *range(0xE000, 0xF900))


class ChatTemplate:
    """One model's template. `specials`: texts of all special tokens. `variables`: ``bos_token`` and the like.

    The source is compiled when first used, so a broken template does not keep a model from plain completion.
    """

    __slots__ = ("_compiled", "_firsts", "_inert", "_specials", "_tools", "_variables", "source")

    def __init__(self, source: str, specials: Sequence[str], variables: Mapping[str, str]) -> None:
        self.source = source
        self._specials = tuple(text for text in specials if len(text) > 1)
        self._variables = dict(variables)
        self._firsts = frozenset(text[0] for text in self._specials)
        self._compiled: Template | None = None
        self._inert: tuple[str, ...] = ()
        self._tools = False

    @property
    def takes_tools(self) -> bool:
        """Whether the template looks at ``tools``; one that does not would leave them out without a word. ValueError if
        it cannot be read."""
        self._compile()
        return self._tools

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool,
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> tuple[str, str]:
        """The templated text with markers, and the marker, to be taken out once special tokens were found. `tools`:
        descriptions of functions that the model may call, in OpenAI's form.

        >>> ChatTemplate("{{ messages[0].content }}<e>", ["<e>"], {}).render(
        ...     [{"role": "user", "content": "no <e>"}], add_generation_prompt=False)
        ('no <\\ufdd0e><e>', '\\ufdd0')

        Raises ValueError on messages of a wrong form and where the template refuses them.
        """
        template = self._compile()
        try:
            _check(messages)
            for text in _texts(tools):
                check_text(text, "tools")
            used = set(self.source).union(*_texts(messages), *_texts(tools))
        except RecursionError:
            raise ValueError("messages and tools must not be nested this deeply") from None
        marker = next((chr(code) for code in _MARKERS if chr(code) not in used), None)
        if marker is None:
            raise ValueError("the messages use every private character of Unicode; none is left to mark them with")
        try:
            text = template.render(
                messages=[self._mark(dict(message), marker) for message in messages],
                tools=None if tools is None else self._mark(tools, marker),
                documents=None,
                add_generation_prompt=add_generation_prompt,
                **self._variables,
            )
        except RecursionError:
            raise ValueError("the chat template does not end on these messages") from None
        except Exception as error:  # a template may raise anything: TypeError for a content that is no text, ...
            raise ValueError(f"the chat template refuses these messages: {one_line(error)}") from None
        return text, marker

    def _compile(self) -> Template:
        if self._compiled is None:
            check_text(self.source, "the chat template")
            environment = _environment()
            try:
                tree = environment.parse(self.source)
                compiled = environment.from_string(self.source)
            except RecursionError:
                raise ValueError("the chat template cannot be read: it is nested too deeply") from None
            except Exception as error:  # what Jinja makes of it goes through Python's own compiler
                raise ValueError(f"the chat template cannot be read: {one_line(error)}") from None
            self._inert = self._inert_texts(tree)
            self._tools = "tools" in meta.find_undeclared_variables(tree)
            self._compiled = compiled
        return self._compiled

    def _inert_texts(self, tree: nodes.Template) -> tuple[str, ...]:
        """Constants of the template that it may look for in a content, such as ``</think>``, the longest first.

        They stay unmarked, or the template would not find them. Only those in which no special token can begin.
        """
        constants = {node.value for node in tree.find_all(nodes.Const) if isinstance(node.value, str)}
        inert = [text for text in constants if len(text) > 1 and not self._can_begin(text)]
        return tuple(sorted((text for text in inert if not self._firsts.isdisjoint(text)), key=lambda t: (-len(t), t)))

    def _can_begin(self, text: str) -> bool:
        tails = [text[i:] for i, character in enumerate(text) if character in self._firsts]
        return any(s.startswith(tail) or tail.startswith(s) for tail in tails for s in self._specials)

    def _mark(self, value: Any, marker: str, key: str = "") -> Any:
        if isinstance(value, str):
            return value if key == "role" else self._mark_text(value, marker)
        if isinstance(value, Mapping):
            return {self._mark_text(k, marker): self._mark(v, marker, k) for k, v in value.items()}
        if isinstance(value, (list, tuple)):
            return [self._mark(item, marker) for item in value]
        return value

    def _mark_text(self, text: str, marker: str) -> str:
        """By whole searches alone: a content may have megabytes, and nothing but such characters."""
        marked = self._mark_all(text, marker)
        if len(marked) > len(text):
            for inert in self._inert:
                marked = marked.replace(self._mark_all(inert, marker), inert)
        return marked

    def _mark_all(self, text: str, marker: str) -> str:
        for first in self._firsts:
            if not first.isspace():
                text = text.replace(first, first + marker)
        return text


def _check(messages: Sequence[Mapping[str, Any]]) -> None:
    if isinstance(messages, (str, bytes, Mapping)) or not isinstance(messages, Sequence) or not messages:
        raise ValueError("messages must be a non-empty list of objects with 'role' and 'content'")
    for i, message in enumerate(messages):
        if not isinstance(message, Mapping):
            raise ValueError(f"message {i} is not an object with 'role' and 'content'")
        role = message.get("role")
        if not isinstance(role, str) or _ROLE.fullmatch(role) is None:
            raise ValueError(f"message {i}: role must be a name such as 'user', got {role!r}")
        for text in _texts(message):
            check_text(text, f"message {i}")


def check_text(text: str, what: str = "the text") -> None:
    """Raise ValueError, with the place, if `text` holds half a surrogate pair: it stands for no character."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ValueError(
            f"{what} is not valid Unicode at character {error.start} (lone surrogate U+{ord(text[error.start]):04X}); "
            "was it read from bytes that are not UTF-8?"
        ) from None


def _texts(value: Any) -> Iterator[str]:
    """All texts in a JSON-like value, keys included; ValueError on anything else."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            if not isinstance(key, str):
                raise ValueError(f"messages must be JSON-like: key {key!r} is not a text")
            yield key
            yield from _texts(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _texts(item)
    elif value is not None and not isinstance(value, (bool, int, float)):
        raise ValueError(f"messages must be JSON-like, got a {type(value).__name__}")


class _Generation(Extension):
    """``{% generation %}`` marks the assistant's part for training; here its body is simply rendered."""

    tags = {"generation"}  # noqa: RUF012 (jinja2 reads it from the class)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes for HTML, which models have not been trained on.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> None:
    raise TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)
