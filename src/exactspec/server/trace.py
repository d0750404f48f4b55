"""Where an answer's tokens came from, beside the chunks of a stream: ``"speculative": {"trace": true}``.

The first object of a choice carries ``prompt``, the texts of the prompt's tokens; each has ``tokens``. A span counts in
the history: the prompt's tokens, then the answer's. Joined texts are the text itself: a character made by several
tokens is given with the last of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from exactspec.detokenize import Detokenizer
from exactspec.results import TokenInfo
from exactspec.server.call import Json


class Tracer:
    """Of one choice. `pieces`: bytes of a token. `prompt`: ids that the answer goes on from."""

    __slots__ = ("_answer", "_pieces", "_prompt")

    def __init__(self, pieces: Callable[[int], bytes], prompt: Sequence[int]) -> None:
        self._pieces = pieces
        self._prompt: Sequence[int] | None = prompt
        self._answer = Detokenizer()

    def show(self, tokens: Sequence[TokenInfo]) -> Json:
        shown: Json = {}
        if self._prompt is not None:
            detokenizer = Detokenizer()
            shown["prompt"] = [detokenizer.push(self._pieces(token)) for token in self._prompt]
            self._prompt = None
        shown["tokens"] = [
            {
                "id": token.id,
                "text": self._answer.push(self._pieces(token.id)),
                "source": token.source,
                "source_span": token.source_span,
            }
            for token in tokens
        ]
        return shown
