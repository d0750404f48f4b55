"""How an answer looks: copied tokens in colour on a terminal, plain bytes everywhere else."""

from __future__ import annotations

import codecs
from collections import deque
from collections.abc import Callable, Mapping
from typing import TextIO

from exactspec.results import Chunk, Completion, TokenInfo

RESET = "\x1b[0m"
COPIED = "\x1b[32m"
PREDICTED = "\x1b[35m"
DRAFTED = "\x1b[36m"


def is_terminal(stream: TextIO) -> bool:
    try:
        return stream.isatty()
    except ValueError:  # closed
        return False


def use_color(stream: TextIO, environ: Mapping[str, str], *, no_color: bool) -> bool:
    """Whether to colour `stream`. In order: --no-color, NO_COLOR, FORCE_COLOR (CPython's own order), a terminal."""
    if no_color or environ.get("NO_COLOR"):
        return False
    force = environ.get("FORCE_COLOR", "")
    if force:
        return force != "0"
    return is_terminal(stream) and environ.get("TERM") != "dumb"


def style_of(token: TokenInfo) -> str:
    """The colour of a token's source, "" for the target's own."""
    if token.source == "target":
        return ""
    if token.source == "prediction":
        return PREDICTED
    return COPIED if token.source_span is not None else DRAFTED


def visible(char: str) -> str:
    """`char` as a terminal may show it: control characters as pictures, since a model's text could otherwise move the
    cursor or change the terminal's settings. Newline, tab and carriage return stay."""
    code = ord(char)
    if code < 0x20:
        return char if char in "\n\t\r" else chr(0x2400 + code)
    if code == 0x7F:
        return "\u2421"
    return "\ufffd" if 0x80 <= code < 0xA0 else char


class Painter:
    """Turns chunks into terminal text, each character in the colour of the token it came from.

    A chunk's text lags behind its tokens (characters and possible stop strings are held back), so the tokens' bytes
    are decoded beside it and the two are aligned character by character. The text shown is always the chunk's own;
    alignment only decides colours. `token_bytes`: a token id's bytes. `color`, `escape`: see `use_color`, `visible`.
    """

    # How far alignment looks ahead for a character, e.g. past a leading space that the text does not have.
    WINDOW = 8

    def __init__(self, token_bytes: Callable[[int], bytes], *, color: bool, escape: bool) -> None:
        self._token_bytes = token_bytes
        self._color = color
        self._escape = escape
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._pending: deque[tuple[str, str]] = deque()

    def paint(self, chunk: Chunk) -> str:
        """What to write for `chunk`. Every colour that is opened is closed again before the end."""
        if not self._color:
            return "".join(map(visible, chunk.text)) if self._escape else chunk.text
        for token in chunk.tokens:
            style = style_of(token)
            self._pending.extend((char, style) for char in self._decoder.decode(self._token_bytes(token.id)))
        out: list[str] = []
        current = ""
        for char in chunk.text:
            style = self._style(char)
            if style != current:
                out.append((RESET if current else "") + style)
                current = style
            out.append(visible(char) if self._escape else char)
        if current:
            out.append(RESET)
        return "".join(out)

    def _style(self, char: str) -> str:
        for skip in range(min(self.WINDOW, len(self._pending))):
            if self._pending[skip][0] == char:
                for _ in range(skip):
                    self._pending.popleft()
                return self._pending.popleft()[1]
        return ""


class ReadingNote:
    """Says on a terminal how far a long prompt was read; `clear` takes the note away again."""

    def __init__(self, stderr: TextIO, environ: Mapping[str, str]) -> None:
        self._stderr = stderr
        self._wanted = is_terminal(stderr) and environ.get("TERM") != "dumb"
        self._shown = False

    def __call__(self, done: int, total: int) -> None:
        if self._wanted and done < total - 1:  # the last token is the first step's root
            self._stderr.write(f"\r\x1b[Kreading the prompt: {done} of {total} tokens")
            self._stderr.flush()
            self._shown = True

    def clear(self) -> None:
        if self._shown:
            self._stderr.write("\r\x1b[K")
            self._stderr.flush()
            self._shown = False


def copied_share(completion: Completion) -> float:
    """Share of the emitted tokens that were copied from the context or the prediction."""
    tokens = completion.tokens
    return sum(token.source_span is not None for token in tokens) / len(tokens) if tokens else 0.0


def plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def summary(completion: Completion) -> str:
    """One line about how the answer was made."""
    m = completion.metrics
    parts = [
        plural(m.completion_tokens, "token"),
        f"{m.decode_tokens_per_s:.1f} tok/s",
        f"tau {m.tau:.2f}",
        f"{copied_share(completion):.0%} copied",
        f"prefill {m.prefill_s:.2f} s ({plural(m.prompt_tokens, 'token')}, {m.cached_tokens} cached)",
        completion.finish_reason,
    ]
    return "[" + ", ".join(parts) + "]"
