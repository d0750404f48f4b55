from __future__ import annotations

import importlib.util
import io
import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from scripted import ByteTokenizer

from exactspec.cli.main import main
from exactspec.cli.services import Services

FAKE = Path(__file__).with_name("fake_engine.py")


@pytest.fixture(scope="session")
def fake() -> ModuleType:
    spec = importlib.util.spec_from_file_location("exactspec_fake_engine", FAKE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Text(io.TextIOWrapper):
    """A text stream over memory that may claim to be a terminal."""

    def __init__(self, *, tty: bool, encoding: str = "utf-8") -> None:
        super().__init__(io.BytesIO(), encoding=encoding, errors="strict" if encoding == "utf-8" else "replace")
        self.tty = tty

    def isatty(self) -> bool:
        return self.tty

    def value(self) -> str:
        self.flush()
        return self.buffer.getvalue().decode(self.encoding)  # type: ignore[attr-defined]


class Bytes(io.BytesIO):
    def __init__(self, data: bytes, *, tty: bool) -> None:
        super().__init__(data)
        self.tty = tty

    def isatty(self) -> bool:
        return self.tty


@dataclass
class Result:
    code: int
    out: str
    err: str
    engine: Any


@pytest.fixture
def cli(fake: ModuleType) -> Callable[..., Result]:
    """Run a command line in this process with the fake engine."""

    def run(
        *argv: str,
        stdin: bytes | None = None,
        tty: bool = False,
        env: dict[str, str] | None = None,
        lines: Iterable[Any] | None = None,
        encoding: str = "utf-8",
        engine: Any = None,
        err_tty: bool = False,
    ) -> Result:
        """`stdin` None: a terminal. `tty`, `err_tty`: stdout, stderr is one. `lines`: what the person types; an
        exception is raised. `engine`: to be used instead of the fake."""
        opened: list[Any] = []

        def open_engine(name: str, **options: Any) -> Any:
            opened.append(engine or fake.open_fake(name, **options))
            return opened[-1]

        typed = iter(lines or ())

        def ask(prompt: str) -> str:
            line = next(typed, EOFError())
            if isinstance(line, BaseException):
                raise line
            return str(line)

        out, err = Text(tty=tty, encoding=encoding), Text(tty=err_tty)
        services = Services(
            stdin=Bytes(stdin or b"", tty=stdin is None),
            stdout=out,
            stderr=err,
            environ=env or {},
            open_engine=open_engine,
            open_tokenizer=lambda name, progress: ByteTokenizer(),
            ask=ask,
        )
        code = main(argv, services=services)
        return Result(code, out.value(), err.value(), opened[-1] if opened else None)

    return run


@pytest.fixture
def program() -> Callable[..., subprocess.CompletedProcess[bytes]]:
    """Run the command as a process: the real one, or (`fake`) with the fake engine."""

    def run(
        *argv: str, fake: bool = True, env: dict[str, str] | None = None, stdin: bytes = b""
    ) -> subprocess.CompletedProcess[bytes]:
        start = [str(FAKE)] if fake else ["-m", "exactspec.cli.main"]
        return subprocess.run(
            [sys.executable, *start, *argv], input=stdin, capture_output=True, env=os.environ | (env or {}), timeout=60
        )

    return run
