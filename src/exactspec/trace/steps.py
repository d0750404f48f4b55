"""A traced request: its steps with their trees, tokens shown as text.

`trace_of` makes a `Trace` of a completion that was recorded with ``record_steps=True``; `as_dict` is its JSON form.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from exactspec.results import Completion, StepRecord

_NAMED = {"\n": "\\n", "\t": "\\t", "\r": "\\r", "\\": "\\\\"}
_HIDDEN = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp", "Zs"}  # but the space


def shown(data: bytes, token: int) -> str:
    """One token as text that fits a line, whatever its bytes: blanks are dots, what cannot be seen is escaped, bytes of
    a character that is not whole are ``\\xNN``; a token without text is its id.

    >>> shown(b" a\\n", 5), shown("é".encode()[:1], 5), shown(b"", 5)
    ('·a\\\\n', '\\\\xc3', '<5>')
    """
    if not data:
        return f"<{token}>"
    return "".join(_visible(character) for character in data.decode("utf-8", "surrogateescape"))


def _visible(character: str) -> str:
    code = ord(character)
    if character == " ":
        return "·"
    if character in _NAMED:
        return _NAMED[character]
    if 0xDC80 <= code <= 0xDCFF:
        return f"\\x{code - 0xDC00:02x}"
    if unicodedata.category(character) in _HIDDEN:
        return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
    return character


@dataclass(frozen=True, slots=True)
class Node:
    """A drafted token. `parent`: an earlier node of the step, -1 the root. `depth` from 1. `origin`: where it was
    copied from, -1 if it was not."""

    id: int
    text: str
    parent: int
    depth: int
    source: str
    score: float
    origin: int
    accepted: bool


@dataclass(frozen=True, slots=True)
class Token:
    """An emitted token. `source`: as in `TokenInfo`."""

    id: int
    text: str
    source: str


@dataclass(frozen=True, slots=True)
class Step:
    """`record`: the figures. `nodes`: what was verified. `tokens`: what was emitted, the accepted nodes first. `tau`:
    tokens per step up to and including this one."""

    number: int
    record: StepRecord
    nodes: tuple[Node, ...]
    tokens: tuple[Token, ...]
    tau: float


@dataclass(frozen=True, slots=True)
class Trace:
    """`draft`: how it was drafted, as asked for."""

    draft: str
    completion: Completion
    steps: tuple[Step, ...]

    def as_dict(self) -> dict[str, Any]:
        """All of it, for JSON. Trees are lists of nodes."""
        done = self.completion
        return {
            "draft": self.draft,
            "text": done.text,
            "token_ids": list(done.token_ids),
            "finish_reason": done.finish_reason,
            "seed": done.seed,
            "identity": done.identity,
            "metrics": done.metrics.as_dict(),
            "steps": [_step_dict(step) for step in self.steps],
        }


def trace_of(completion: Completion, *, draft: str, token_bytes: Callable[[int], bytes]) -> Trace:
    """The trace of a completion with steps. `token_bytes`: the tokenizer's; ids that it refuses have no text."""
    steps: list[Step] = []
    at = 0
    for number, record in enumerate(completion.steps, 1):
        infos = completion.tokens[at : at + record.emitted]
        at += record.emitted
        tokens = tuple(Token(info.id, _text(token_bytes, info.id), info.source) for info in infos)
        steps.append(Step(number, record, _nodes(record, token_bytes), tokens, at / number))
    return Trace(draft, completion, tuple(steps))


def _nodes(record: StepRecord, token_bytes: Callable[[int], bytes]) -> tuple[Node, ...]:
    tree = record.tree
    if tree is None:
        return ()
    accepted = set(record.path)
    columns = (tree.tokens, tree.parents, tree.depths(), tree.source, tree.score, tree.origin)
    return tuple(
        Node(id_, _text(token_bytes, id_), parent, depth, tree.sources[source], score, origin, i in accepted)
        for i, (id_, parent, depth, source, score, origin) in enumerate(
            zip(*(c.tolist() for c in columns), strict=True)
        )
    )


def _text(token_bytes: Callable[[int], bytes], token: int) -> str:
    try:
        return shown(token_bytes(token), token)
    except ValueError:  # a row of the model that the tokenizer has no id for
        return shown(b"", token)


def _step_dict(step: Step) -> dict[str, Any]:
    record = step.record
    figures = ("context", "rows", "depth", "accepted", "emitted", "source", "propose_s", "verify_s", "walk_s")
    return {
        "step": step.number,
        **{name: getattr(record, name) for name in figures},
        "tau": step.tau,
        "tokens": [asdict(token) for token in step.tokens],
        "nodes": [asdict(node) for node in step.nodes],
    }


def in_order(nodes: tuple[Node, ...]) -> list[int]:
    """The numbers of the nodes, each behind its parent with all below it, siblings by score."""
    below: dict[int, list[int]] = {}
    for number, node in enumerate(nodes):
        below.setdefault(node.parent, []).append(number)
    order: list[int] = []
    open_ = sorted(below.get(-1, []), key=lambda n: nodes[n].score)
    while open_:
        number = open_.pop()
        order.append(number)
        open_ += sorted(below.get(number, []), key=lambda n: nodes[n].score)
    return order
