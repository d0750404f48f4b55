"""Result files: one JSON object a line, appended group by group, so that a killed run goes on where it stopped."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

Line: TypeAlias = dict[str, Any]


class ResultFile:
    """An append-only file of JSON lines. Not for two writers at once.

    A last line without its newline (its writer was killed) is dropped; any other bad line is an error: ValueError
    naming file and line.
    """

    __slots__ = ("_lines", "_path")

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lines: list[Line] = []
        if path.exists():
            self._read()

    @property
    def path(self) -> Path:
        return self._path

    @property
    def lines(self) -> tuple[Line, ...]:
        """Every line, oldest first."""
        return tuple(self._lines)

    def append(self, lines: Sequence[Line]) -> None:
        """Add a group of lines. Where they cannot all be written (OSError naming the file) none is there; a process
        that is killed meanwhile may leave the first few of them."""
        data = "".join(json.dumps(line, sort_keys=True, allow_nan=False) + "\n" for line in lines).encode()
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("ab", buffering=0) as file:
            end = os.fstat(file.fileno()).st_size
            try:
                rest = memoryview(data)
                while rest:
                    rest = rest[file.write(rest) :]
                os.fsync(file.fileno())
            except BaseException as error:
                os.ftruncate(file.fileno(), end)
                if isinstance(error, OSError):  # writing to an open file does not say its name
                    raise OSError(error.errno, error.strerror, str(self._path)) from None
                raise
        self._lines.extend(json.loads(line) for line in data.splitlines())

    def drop(self, lines: Sequence[Line]) -> None:
        """Remove lines, the very objects of `lines`; the file is replaced in one step."""
        gone = {id(line) for line in lines}
        left = [line for line in self._lines if id(line) not in gone]
        fresh = self._path.with_name(f".new-{self._path.name}")
        with fresh.open("w", encoding="utf-8") as file:
            file.writelines(json.dumps(line, sort_keys=True) + "\n" for line in left)
            file.flush()
            os.fsync(file.fileno())
        os.replace(fresh, self._path)
        self._lines = left

    def _read(self) -> None:
        data = self._path.read_bytes()
        end = data.rfind(b"\n") + 1
        for number, raw in enumerate(data[:end].splitlines(), 1):
            try:
                line = json.loads(raw)
            except ValueError:
                line = None
            if not isinstance(line, dict):
                raise ValueError(f"{self._path}, line {number}, is not a JSON object: repair or remove the file")
            self._lines.append(line)
        if end < len(data):
            os.truncate(self._path, end)
