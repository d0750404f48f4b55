"""Files of JSON lines: one object a line, read whatever editor or program they come from, and added to line by line."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any


def json_object(raw: bytes) -> dict[str, Any] | None:
    """The object that a line holds; None where it holds anything else.

    >>> json_object(b'{"a": 1}'), json_object(b"[1]"), json_object(b"\\xff"), json_object(b"[" * 100_000)
    ({'a': 1}, None, None, None)
    """
    try:
        found = json.loads(raw.decode("utf-8"))
    except (ValueError, RecursionError):  # no JSON, no text, numbers of thousands of digits; nested without end
        return None
    return found if isinstance(found, dict) else None


def json_lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line number from 1, object) of every line that is not blank.

    Lines end with a line feed and nothing else: JSON strings may hold other separators (U+2028, a bare carriage
    return is refused by JSON itself). A byte order mark in front is no part of the first line. Raises ValueError
    naming file and line, OSError.
    """
    with path.open("rb") as file:
        for number, raw in enumerate(file, 1):
            if number == 1:
                raw = raw.removeprefix(b"\xef\xbb\xbf")
            if not raw.strip():
                continue
            found = json_object(raw)
            if found is None:
                what = "a JSON object" if _is_text(raw) else "UTF-8 text: convert it, for example with iconv -t utf-8"
                raise ValueError(f"{path}, line {number}, is not {what}")
            yield number, found


def _is_text(raw: bytes) -> bool:
    try:
        raw.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def append_lines(path: Path, lines: Iterable[str]) -> None:
    """Add lines (without their ends) to a file, which is made where there is none: all of them, or none where they
    cannot be written. One write for all, so that two programs do not mix theirs, nor does one that is killed leave a
    half. A last line that lacks its end gets it. Raises OSError naming the file."""
    data = "".join(line + "\n" for line in lines).encode()
    with path.open("ab", buffering=0) as file:
        found = os.fstat(file.fileno())
        end, whole = found.st_size, stat.S_ISREG(found.st_mode)  # what is no file, a pipe, cannot be taken back
        if whole and end and not _ends(path):
            data = b"\n" + data
        rest = memoryview(data)
        try:
            while rest:
                rest = rest[file.write(rest) :]
            if whole:
                os.fsync(file.fileno())
        except BaseException as error:
            if whole and os.fstat(file.fileno()).st_size <= end + len(data):  # else another program has added lines
                os.ftruncate(file.fileno(), end)
            if isinstance(error, OSError):  # writing to an open file does not say its name
                raise OSError(error.errno, error.strerror, str(path)) from None
            raise


def _ends(path: Path) -> bool:
    """Whether the last line has its end."""
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"
