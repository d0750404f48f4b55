"""What is remembered of a model on disk, so that a later start trusts it at once and still notices damage.

A stored model is a folder ``models/KEY`` that holds the files and ``model.json``. The record has each file's size,
modification time and hash: while size and time are unchanged nothing is read; otherwise the file is hashed again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from exactspec.target.json_file import read_object
from exactspec.target.named import ModelError

RECORD = "model.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredFile:
    """`name` relative to the model's folder, `bytes`, `mtime_ns` (nanoseconds since the epoch), `sha256` in hex."""

    name: str
    bytes: int
    mtime_ns: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredModel:
    """The record beside a stored model. `pulled`: ISO date and time in UTC. `main`: the one GGUF file, or "" for
    a folder of safetensors."""

    name: str
    source: str
    licence: str
    pulled: str
    main: str
    files: tuple[StoredFile, ...]

    @property
    def sha256(self) -> str | None:
        """Hash of the one GGUF file; None for a folder."""
        return self.files[0].sha256 if self.main else None


def hash_file(path: Path) -> str:
    """SHA-256 of a file in hex."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sync(path: Path) -> None:
    """Flush a file's bytes, or a folder's entries, to the disk. Folders cannot be flushed on Windows."""
    if path.is_dir() and sys.platform == "win32":
        return
    fd = os.open(path, os.O_RDWR if sys.platform == "win32" else os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def describe(folder: Path, name: str, sha256: str) -> StoredFile:
    """The record of one file of `folder` whose hash is known."""
    stat = (folder / name).stat()
    return StoredFile(name=name, bytes=stat.st_size, mtime_ns=stat.st_mtime_ns, sha256=sha256)


def write_record(folder: Path, model: StoredModel) -> None:
    """Write ``model.json``, whole or not at all."""
    fresh = folder / f"{RECORD}.{os.getpid()}.new"
    with open(fresh, "w", encoding="utf-8") as file:
        json.dump({"format": 1, **asdict(model)}, file, indent=2)
        file.flush()
        os.fsync(file.fileno())
    os.replace(fresh, folder / RECORD)


def read_record(folder: Path) -> StoredModel | None:
    """The record of a model's folder; None if there is none, or none that this version can read."""
    try:
        data = read_object(folder / RECORD)
        if data.pop("format") != 1:
            return None
        model = StoredModel(**{**data, "files": tuple(StoredFile(**entry) for entry in data["files"])})
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None
    if not model.files or (model.main and model.files[0].name != model.main):
        return None
    return model


def check(folder: Path, model: StoredModel, *, rehash: bool = False) -> StoredModel | None:
    """The record of an undamaged model (with new times, if only the times had changed); None if a file is missing.

    Raises ModelError, naming the file, if one is not what was stored. `rehash` reads every file, changed or not.
    """
    files = []
    for entry in model.files:
        path = folder / entry.name
        if not path.is_file():
            return None
        stat = path.stat()
        if stat.st_size != entry.bytes:
            raise ModelError(f"{path} is damaged: {stat.st_size} bytes instead of {entry.bytes}")
        if (rehash or stat.st_mtime_ns != entry.mtime_ns) and hash_file(path) != entry.sha256:
            raise ModelError(f"{path} is damaged: its checksum is not the one it was stored with")
        files.append(replace(entry, mtime_ns=stat.st_mtime_ns))
    fresh = replace(model, files=tuple(files))
    if fresh != model:
        with contextlib.suppress(OSError):  # a read-only home hashes again next time, and works
            write_record(folder, fresh)
    return fresh


def disk_use(path: Path) -> int:
    """Bytes of all files below `path`; files that vanish meanwhile count nothing."""
    total = 0
    for root, _, names in os.walk(path):
        for name in names:
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(root, name)).st_size
    return total
