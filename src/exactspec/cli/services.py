"""What a command talks to: the engine it opens and the three standard streams. Tests pass their own."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, BinaryIO, Protocol, TextIO, TypeAlias

from exactspec.params import SamplingParams, Speculation
from exactspec.results import Chunk
from exactspec.target.tokenizer import Tokenizer

Message: TypeAlias = Mapping[str, Any]
Prompt: TypeAlias = str | Sequence[Message]
Stream: TypeAlias = Generator[Chunk, None, None]
Reading: TypeAlias = Callable[[int, int], None]
"""Called while a long prompt is read, with (tokens done, tokens in all)."""


class CliError(Exception):
    """A mistake of the caller: shown as one line that says what to do; exit code 2."""


class TokenizerLike(Protocol):
    @property
    def has_chat_template(self) -> bool: ...

    def token_bytes(self, token: int) -> bytes: ...


class TargetLike(Protocol):
    @property
    def max_length(self) -> int: ...


class SessionLike(Protocol):
    def stream(
        self,
        prompt: Any,
        params: SamplingParams,
        *,
        speculation: Speculation | None = None,
        progress: Reading | None = None,
    ) -> Stream: ...


class EngineLike(Protocol):
    """The part of `exactspec.Engine` that the command line uses."""

    @property
    def tokenizer(self) -> TokenizerLike: ...

    @property
    def target(self) -> TargetLike: ...

    def encode(self, prompt: Any) -> list[int]: ...

    def stream(
        self,
        prompt: Any,
        params: SamplingParams,
        *,
        speculation: Speculation | None = None,
        prediction: str | None = None,
        record_steps: bool = False,
        progress: Reading | None = None,
    ) -> Stream: ...

    def session(self) -> SessionLike: ...


class OpenEngine(Protocol):
    """Loads a model by name, and models that draft for it; `progress` receives one-line notes while it does."""

    def __call__(
        self,
        name: str,
        *,
        draft: str,
        threads: int | None,
        context: int | None,
        cache_dtype: str,
        progress: Callable[[str], None],
        dtype: str | None = None,
        device: str | None = None,
        draft_models: Sequence[str] = (),
        speculation: Speculation | None = None,
    ) -> EngineLike: ...


class OpenTokenizer(Protocol):
    """How a command gets a tokenizer alone."""

    def __call__(self, name: str, *, progress: Callable[[str], None]) -> Tokenizer: ...


def open_engine(
    name: str,
    *,
    draft: str,
    threads: int | None,
    context: int | None,
    cache_dtype: str,
    progress: Callable[[str], None],
    dtype: str | None = None,
    device: str | None = None,
    draft_models: Sequence[str] = (),
    speculation: Speculation | None = None,
) -> EngineLike:
    """The real engine. Imported here: numba and the kernels must not slow down ``--help``."""
    from exactspec.engine import Engine

    return Engine.from_pretrained(
        name,
        draft=draft,
        threads=threads,
        context=context,
        cache_dtype=cache_dtype,
        dtype=dtype,
        device=device,
        draft_models=draft_models,
        speculation=speculation,
        progress=progress,
    )


def open_tokenizer(name: str, *, progress: Callable[[str], None]) -> Tokenizer:
    """A model's tokenizer without its weights; those of ``hf:`` models come with them."""
    from exactspec.target.hub import ModelStore
    from exactspec.target.load import HF_PREFIX, open_float, open_model

    if name.startswith(HF_PREFIX):
        return open_float(name, progress=progress)[1]
    model = open_model(ModelStore().resolve(name).path)
    model.source.close()
    return model.tokenizer


def _nowhere() -> TextIO:
    return open(os.devnull, "w", encoding="utf-8")


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """Everything outside the command line that a command may touch.

    `stdin` is read as bytes, so that text which is not UTF-8 is reported and never guessed. `ask` reads one line
    of an interactive chat (`input`, with line editing). `stdout` gets answers only; notes go to `stderr`.
    """

    stdin: BinaryIO
    stdout: TextIO
    stderr: TextIO
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    open_engine: OpenEngine = open_engine
    open_tokenizer: OpenTokenizer = open_tokenizer
    ask: Callable[[str], str] = input

    @classmethod
    def of_process(cls) -> Services:
        """The process's own streams. A terminal that cannot show a character shows a replacement instead. A stream
        that the caller closed (``>&-``) is None in Python; what is written to it goes nowhere."""
        stdout, stderr = sys.stdout or _nowhere(), sys.stderr or _nowhere()
        for stream in (stdout, stderr):
            encoding = (getattr(stream, "encoding", None) or "").lower().replace("-", "")
            if encoding != "utf8" and hasattr(stream, "reconfigure"):
                stream.reconfigure(errors="replace")
        stdin = sys.stdin.buffer if sys.stdin is not None else io.BytesIO()
        return cls(stdin=stdin, stdout=stdout, stderr=stderr)

    def note(self, text: str) -> None:
        """One line for the person, never part of the answer."""
        print(" ".join(text.split()), file=self.stderr, flush=True)
