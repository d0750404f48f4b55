"""Result files: one JSON object a line, appended group by group, so that a killed run goes on where it stopped."""

from __future__ import annotations

import contextlib
import json
import os
import stat
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

from exactspec.json_lines import append_lines, json_object
from exactspec.target.filelock import try_lock

Line: TypeAlias = dict[str, Any]


class ResultFile:
    """An append-only file of JSON lines. For one writer at a time: `claim` it before what it lacks is looked for.

    Reading changes nothing: a file that was only to be looked at stays as it is, whatever it holds. Of a last line
    without its newline, what a killed writer left is taken out by the next `append`, and a whole object counts. Any
    other bad line is an error: ValueError naming file and line.
    """

    __slots__ = ("_held", "_lines", "_path", "_torn")

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lines: list[Line] = []
        self._torn = 0  # bytes at the end that are no line
        self._held: int | None = None  # descriptor that holds the lock
        if path.exists():
            self._check_kind()
            self._read()

    @property
    def path(self) -> Path:
        return self._path

    @property
    def lines(self) -> tuple[Line, ...]:
        """Every line, oldest first."""
        return tuple(self._lines)

    def claim(self) -> None:
        """Be the only writer until `release` or the end of the process, and read what others wrote meanwhile.

        The file is made where there is none, so a place that cannot be written is known before anything is measured.
        Raises ValueError if another process writes it, OSError.
        """
        self._path.parent.mkdir(parents=True, exist_ok=True)
        while self._held is None:
            self._check_kind()
            held = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
            if sys.platform != "win32" and not try_lock(held):
                os.close(held)
                raise ValueError(f"{self._path} is being written by another run: wait for it, or give another --out")
            if os.fstat(held).st_ino == _inode(self._path):
                self._held = held
            else:  # replaced between opening and locking
                os.close(held)
        self._lines.clear()
        self._read()

    def release(self) -> None:
        """Let others write. A file that stayed empty goes."""
        if self._held is not None:
            found = os.fstat(self._held)
            if stat.S_ISREG(found.st_mode) and not found.st_size:
                with contextlib.suppress(OSError):
                    self._path.unlink()
            os.close(self._held)
            self._held = None

    def __del__(self) -> None:
        self.release()

    def append(self, lines: Sequence[Line]) -> None:
        """Add a group of lines. Where they cannot all be written (OSError naming the file) none is there; a
        machine that stops meanwhile may leave the first few of them."""
        told = [json.dumps(line, sort_keys=True, allow_nan=False) for line in lines]
        self._path.parent.mkdir(parents=True, exist_ok=True)
        if self._torn:
            os.truncate(self._path, self._path.stat().st_size - self._torn)
            self._torn = 0
        append_lines(self._path, told)
        self._lines.extend(json.loads(line) for line in told)

    def drop(self, lines: Sequence[Line]) -> None:
        """Remove lines, the very objects of `lines`; the file is replaced in one step."""
        gone = {id(line) for line in lines}
        left = [line for line in self._lines if id(line) not in gone]
        fresh = self._path.with_name(f".new-{self._path.name}")
        with fresh.open("w", encoding="utf-8") as file:
            file.writelines(json.dumps(line, sort_keys=True) + "\n" for line in left)
            file.flush()
            os.fsync(file.fileno())
            held = None if self._held is None else os.dup(file.fileno())
        if held is not None and sys.platform != "win32":
            try_lock(held)  # nobody else knows the new file yet
        os.replace(fresh, self._path)
        if self._held is not None:
            os.close(self._held)
            self._held = held
        self._lines, self._torn = left, 0

    def _check_kind(self) -> None:
        if self._path.exists() and not self._path.is_file():
            raise ValueError(f"{self._path} is no file: what is measured must be read again, to go on after a stop")

    def _read(self) -> None:
        data = self._path.read_bytes()
        end = data.rfind(b"\n") + 1
        for number, raw in enumerate(data[:end].split(b"\n")[:-1], 1):
            self._lines.append(self._line(number, raw))
        rest = data[end:]
        self._torn = len(rest) if json_object(rest) is None and _begins_a_line(rest) else 0
        if len(rest) > self._torn:
            self._lines.append(self._line(len(self._lines) + 1, rest))

    def _line(self, number: int, raw: bytes) -> Line:
        found = json_object(raw)
        if found is None:
            raise ValueError(f"{self._path}, line {number}, is not a JSON object: repair or remove the file")
        return found


def _begins_a_line(rest: bytes) -> bool:
    """Whether this may be the beginning of a line that `append` writes, which is ASCII; anything else was never ours
    to take out."""
    return rest.startswith(b'{"'[: len(rest)]) and rest.isascii()


def _inode(path: Path) -> int | None:
    try:
        return path.stat().st_ino
    except FileNotFoundError:
        return None
