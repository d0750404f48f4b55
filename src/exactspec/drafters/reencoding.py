"""Drafting across tokenizers: the history is encoded anew for the drafting model, and what it proposes for the target.

Towards the model: the history's text, with control tokens by their text where the model has them, else left out. The
text is cut into pieces at borders between words, which are found from left to right by the text alone; a piece is
encoded by itself and never again, only the last, still open one is encoded at every step. So a step costs the same at
any length, and a history gives the same ids however it came about. The model's BOS stands once, at the start, if it
has one.

Back to the target: the text of each proposed path is encoded, and of its tokens those are offered that more text could
not change: those that end at or before the last border between words. A token is as likely as the path down to the
node that completes it. Where text cannot be mapped, nothing is offered: at the end of a history that stops inside a
character, behind bytes that are no UTF-8, or where the target's tokens do not spell the text.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from exactspec.detokenize import incomplete_tail
from exactspec.drafters.reading import Grown, tree_of
from exactspec.drafters.vocabularies import control_names
from exactspec.target.tokenizer import Tokenizer
from exactspec.tree import DraftTree

SHORTEST, LONGEST = 64, 512  # characters of a piece
_LEAVES = 24  # likeliest paths that are encoded

_PIECE = re.compile(r"(?<=\S)(?= \w)|(?<=\n)(?=\S)")
# Where the usual pre-tokenizers always cut: behind letters and digits, before blanks, behind line ends. (Punctuation
# may join the letters or the line end that follow it.)
_WORD = re.compile(r"(?<=[^\W_])(?=[ \t\r\n_]|[^\w\s'’])|(?<=\S)(?=[ \t])|(?<=\n)(?=\S)")
_AHEAD = 2  # characters that a border needs to be seen


@dataclass(frozen=True, slots=True, eq=False)
class Translation:
    """Two tokenizers and what their control tokens are to one another."""

    model: Tokenizer
    target: Tokenizer
    to_model: dict[int, int]
    to_target: dict[int, int]

    @classmethod
    def between(cls, model: Tokenizer, target: Tokenizer) -> Translation:
        theirs = {text: token for token, text in control_names(model).items()}
        ours = {text: token for token, text in control_names(target).items()}
        both = theirs.keys() & ours.keys()
        return cls(
            model, target, {ours[text]: theirs[text] for text in both}, {theirs[text]: ours[text] for text in both}
        )

    def encode_model(self, text: str, *, first: bool) -> list[int]:
        return _encoder(self.model, first)(text)

    def encode_target(self, text: str) -> list[int]:
        return _encoder(self.target, False)(text)


def _encoder(tokenizer: Tokenizer, first: bool) -> Callable[[str], list[int]]:
    """How text is encoded at the start, or within a text where the tokenizer makes a difference."""
    inner = None if first else getattr(tokenizer, "encode_inner", None)
    return tokenizer.encode if inner is None else inner


class Reencoded:
    """A `reading.Reading` across tokenizers.

    `ids` are those of the closed pieces, then those of the open one; `settled` counts the former.
    """

    __slots__ = ("_first", "_history", "_open", "_rest", "_translation", "ids", "settled")

    def __init__(self, translation: Translation) -> None:
        self._translation = translation
        self._history: list[int] = []
        self._restart()

    def _restart(self) -> None:
        bos = self._translation.model.bos_id
        self.ids: list[int] = [] if bos is None else [bos]
        self.settled = len(self.ids)
        self._open = ""
        self._rest = b""  # begins a character
        self._first = True  # no text yet

    @property
    def ready(self) -> bool:
        return bool(self.ids) and not self._rest

    def append(self, tokens: Sequence[int]) -> None:
        start = len(self._history)
        self._history += tokens
        self._read(start)

    def truncate(self, n: int) -> None:
        del self._history[n:]
        self._restart()
        self._read(0)

    def fork(self) -> Reencoded:
        twin = Reencoded(self._translation)
        twin._history, twin.ids, twin.settled = self._history.copy(), self.ids.copy(), self.settled
        twin._open, twin._rest, twin._first = self._open, self._rest, self._first
        return twin

    def _read(self, start: int) -> None:
        """Take in the history from `start` on."""
        del self.ids[self.settled :]
        target = self._translation.target
        data = [self._rest]
        for at in range(start, len(self._history)):
            token = self._history[at]
            piece = target.token_bytes(token) if token < target.vocab_size else b""
            if piece:
                data.append(piece)
                continue
            self._text(b"".join(data))
            data = []
            self._control(at, token)
        self._text(b"".join(data))
        if self._open:
            self.ids += self._translation.encode_model(self._open, first=self._first)

    def _text(self, data: bytes) -> None:
        end = len(data) - incomplete_tail(data)
        self._rest = data[end:]
        text = self._open + data[:end].decode("utf-8", "replace")
        at = 0
        while (border := _piece_end(text, at)) is not None:
            self._close(text[at:border])
            at = border
        self._open = text[at:]

    def _close(self, text: str) -> None:
        self.ids += self._translation.encode_model(text, first=self._first)
        self.settled = len(self.ids)
        self._first = False

    def _control(self, at: int, token: int) -> None:
        """A control token ends the open piece, and a character that was not complete."""
        if self._open:
            self._close(self._open)
        self._open, self._rest = "", b""
        if at == 0 and token == self._translation.target.bos_id:
            return  # the model's own stands there, if it has one
        same = self._translation.to_model.get(token)
        if same is not None:
            self.ids.append(same)
            self.settled = len(self.ids)
            self._first = False

    # -- back ------------------------------------------------------------------------------------------------------

    def translate(self, grown: Grown) -> DraftTree:
        inner = set(grown.parents)
        leaves = sorted((n for n in range(len(grown.tokens)) if n not in inner), key=lambda n: -grown.probs[n])
        rows: list[tuple[int, int, float]] = []
        place: dict[tuple[int, int], int] = {}
        for leaf in leaves[:_LEAVES]:
            above = -1
            for token, prob in self._path(grown, leaf):
                at = place.setdefault((above, token), len(rows))
                if at == len(rows):
                    rows.append((token, above, prob))
                elif prob > rows[at][2]:
                    rows[at] = (token, above, prob)
                above = at
        return tree_of(rows)

    def _path(self, grown: Grown, leaf: int) -> list[tuple[int, float]]:
        """The target's tokens of one path, and the probabilities of the nodes that complete them."""
        nodes: list[int] = []
        node = leaf
        while node >= 0:
            nodes.append(node)
            node = grown.parents[node]
        nodes.reverse()
        model, target = self._translation.model, self._translation.target
        pieces: list[bytes] = []
        last: tuple[int, float] | None = None  # a control token that the target has too
        ended = False
        for node in nodes:
            token = grown.tokens[node]
            piece = model.token_bytes(token) if token < model.vocab_size else b""
            if not piece:
                same = self._translation.to_target.get(token)
                last = None if same is None else (same, grown.probs[node])
                ended = last is not None
                break
            pieces.append(piece)
        data = b"".join(pieces)
        text = _valid(data)
        whole = ended and len(text.encode()) == len(data)
        border = len(data) if whole else len(text[: _last_border(text)].encode())
        ends = list(accumulate(len(piece) for piece in pieces))
        found: list[tuple[int, float]] = []
        at = 0
        for token in self._translation.encode_target(text) if border else ():
            spelt = target.token_bytes(token)
            if not spelt or at + len(spelt) > border or not data.startswith(spelt, at):
                break
            at += len(spelt)
            found.append((token, grown.probs[nodes[bisect_left(ends, at)]]))
        if whole and last is not None and at == len(data):
            found.append(last)
        return found


def _piece_end(text: str, start: int) -> int | None:
    """Where the piece that begins at `start` ends; None if that is not decided yet."""
    match = _PIECE.search(text, start + SHORTEST)
    if match is not None and match.start() <= start + LONGEST:
        return match.start()
    return start + LONGEST if len(text) >= start + LONGEST + _AHEAD else None


def _last_border(text: str) -> int:
    """The last place between two words."""
    last = 0
    for match in _WORD.finditer(text):
        last = match.start()
    return last


def _valid(data: bytes) -> str:
    """The text up to the first byte that is no UTF-8, without a character that is not complete."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        return data[: error.start].decode("utf-8")
