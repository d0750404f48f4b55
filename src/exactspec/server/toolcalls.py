"""Calls of tools in a model's own form, taken out of a running answer.

The form of Qwen's and Hermes' templates: ``<tool_call>\\n{"name": ..., "arguments": {...}}\\n</tool_call>``, any number
of times, text before it. Arguments are handed on as they come, in the model's own characters.
"""

from __future__ import annotations

import json
import re
import secrets
from dataclasses import dataclass
from enum import Enum, auto
from typing import TypeAlias

OPEN, CLOSE = "<tool_call>", "</tool_call>"
_HEAD = re.compile(r'\s*\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=\{)')


@dataclass(frozen=True, slots=True)
class CallBegin:
    index: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    index: int
    text: str


Piece: TypeAlias = str | CallBegin | CallArguments
"""A text is content."""


class _At(Enum):
    CONTENT = auto()
    HEAD = auto()  # behind the opening mark
    ARGUMENTS = auto()
    TAIL = auto()  # behind the arguments


class ToolParser:
    """`push` takes text that is final and gives the pieces that it completes; `finish` what was held back.
    `calls`: those whose arguments are complete."""

    __slots__ = ("_at", "_begun", "_depth", "_escaped", "_held", "_quoted", "calls")

    def __init__(self) -> None:
        self.calls = 0
        self._begun = 0
        self._held = ""
        self._at = _At.CONTENT
        self._depth = 0
        self._quoted = self._escaped = False

    def push(self, text: str) -> list[Piece]:
        self._held += text
        out: list[Piece] = []
        steps = {
            _At.CONTENT: self._content,
            _At.HEAD: self._head,
            _At.ARGUMENTS: self._arguments,
            _At.TAIL: self._tail,
        }
        while steps[self._at](out):
            pass
        return out

    def finish(self) -> list[Piece]:
        """The answer is over. A call without readable head was none: it is content."""
        rest, self._held = self._held, ""
        if self._at is _At.HEAD:
            return [OPEN + rest]
        if self._at is _At.CONTENT and rest and not (self._begun and rest.isspace()):
            return [rest]
        return []

    # Each takes something off what is held; False where more text is needed.

    def _content(self, out: list[Piece]) -> bool:
        at = self._held.find(OPEN)
        if at >= 0:
            self._give(self._held[:at].rstrip(), out)
            self._held = self._held[at + len(OPEN) :]
            self._at = _At.HEAD
            return True
        # White space before a call belongs to it, and the mark may come in pieces.
        longest = min(len(OPEN) - 1, len(self._held))
        keep = next((n for n in range(longest, 0, -1) if self._held.endswith(OPEN[:n])), 0)
        free = self._held[: len(self._held) - keep].rstrip()
        self._give(free, out)
        self._held = self._held[len(free) :]
        return False

    def _give(self, text: str, out: list[Piece]) -> None:
        if text:
            out.append(text)

    def _head(self, out: list[Piece]) -> bool:
        head = _HEAD.match(self._held)
        name = None if head is None else _unquoted(head.group(1))
        if head is not None and name is not None:
            out.append(self._begin(name))
            self._held = self._held[head.end() :]
            self._at, self._depth, self._quoted, self._escaped = _At.ARGUMENTS, 0, False, False
            return True
        body, closed, rest = self._held.partition(CLOSE)
        if not closed:
            return False
        self._held, self._at = rest, _At.CONTENT
        call = _parsed(body)
        if call is None:
            self._give(OPEN + body + CLOSE, out)
        else:
            begin = self._begin(call[0])
            out += [begin, CallArguments(begin.index, call[1])]
            self.calls += 1
        return True

    def _begin(self, name: str) -> CallBegin:
        self._begun += 1
        return CallBegin(self._begun - 1, "call_" + secrets.token_hex(12), name)

    def _arguments(self, out: list[Piece]) -> bool:
        end = 0
        while end < len(self._held) and (self._depth or not end):
            self._character(self._held[end])
            end += 1
            if not self._depth:
                break
        if not end:
            return False
        out.append(CallArguments(self._begun - 1, self._held[:end]))
        self._held = self._held[end:]
        if self._depth:
            return False
        self.calls += 1
        self._at = _At.TAIL
        return True

    def _character(self, char: str) -> None:
        if self._escaped:
            self._escaped = False
        elif self._quoted:
            self._escaped = char == "\\"
            self._quoted = char != '"'
        elif char == '"':
            self._quoted = True
        elif char in "{[":
            self._depth += 1
        elif char in "}]":
            self._depth -= 1

    def _tail(self, out: list[Piece]) -> bool:
        at = self._held.find(CLOSE)
        if at < 0:
            self._held = self._held[-len(CLOSE) :]
            return False
        self._held = self._held[at + len(CLOSE) :]
        self._at = _At.CONTENT
        return True


def _unquoted(text: str) -> str | None:
    """A JSON string's text; None where it is none, or holds what is no character and so fits into no reply."""
    try:
        name = str(json.loads(text))
    except ValueError:
        return None
    return name if _is_text(name) else None


def _is_text(text: str) -> bool:
    """False with half a surrogate pair in it, which JSON can name and UTF-8 cannot write."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _parsed(body: str) -> tuple[str, str] | None:
    """Name and arguments of a call in another order or form; None if it is none."""
    try:
        call = json.loads(body)
    except (ValueError, RecursionError):
        return None
    if not isinstance(call, dict) or not isinstance(call.get("name"), str):
        return None
    arguments = call.get("arguments", call.get("parameters", {}))
    if not isinstance(arguments, str):
        plain = json.dumps(arguments, ensure_ascii=False)
        arguments = plain if _is_text(plain) else json.dumps(arguments)
    return (call["name"], arguments) if _is_text(call["name"] + arguments) else None
