"""A folder of compiled code that is used only while every byte is the one that was written.

numba trusts its cache files: a truncated one raises, but a damaged one is linked and run, which ends the process or
gives wrong numbers. So a record of hashes lies beside them, written last. Who uses the folder holds its lock: a second
process waits for the first one's compilation instead of repeating it, and a killed one leaves no record.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from exactspec.target.filelock import file_lock

RECORD = "hashes.json"


def hashes(folder: Path) -> dict[str, str]:
    """SHA-256 in hex of every file below `folder`, but the record, by relative name. Raises OSError."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != RECORD)
    return {path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def intact(folder: Path, stamp: str) -> bool:
    """Whether `folder` holds just the files of its record, written under `stamp`. No record, or no files: False."""
    try:
        record = json.loads((folder / RECORD).read_text(encoding="utf-8"))
        files = hashes(folder)
    except (OSError, ValueError):
        return False
    return bool(files) and bool(record == {"stamp": stamp, "files": files})


def seal(folder: Path, stamp: str) -> None:
    """Write the record of what `folder` holds now, whole or not at all. A folder that cannot be sealed is compiled
    again next time, so an OSError is no error."""
    with contextlib.suppress(OSError):
        record = folder / RECORD
        fresh = folder.with_name(f".new-{folder.name}")  # outside: it is no file of the folder
        fresh.write_text(json.dumps({"stamp": stamp, "files": hashes(folder)}), encoding="utf-8")
        os.replace(fresh, record)


@contextlib.contextmanager
def kept(folder: Path, *, stamp: str, waiting: Callable[[], None] | None = None) -> Iterator[Path | None]:
    """The folder to compile into and load from, for as long as the context lasts: sound, or empty.

    A damaged folder is emptied first, and so is one of another `stamp` (whatever numba itself would call stale). One
    that cannot be written is read through a copy if it is sound (numba wants to write); otherwise None: nothing can be
    kept. `waiting` is called while another process holds the folder.
    """
    with contextlib.ExitStack() as stack:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            stack.enter_context(file_lock(folder.with_name(f".lock-{folder.name}"), waiting))
            if not intact(folder, stamp):
                shutil.rmtree(folder)
                folder.mkdir()
            tempfile.TemporaryFile(dir=folder).close()
        except OSError:
            if not intact(folder, stamp):
                yield None
                return
            copy = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="exactspec-")))
            shutil.copytree(folder, copy, dirs_exist_ok=True)
            yield copy
            return
        yield folder
        if not intact(folder, stamp):
            seal(folder, stamp)


def forget_old(used: Path, *, days: float = 30) -> None:
    """Note that `used` was used now, and remove its neighbours that nobody has used for so many days: those of other
    versions. A folder that is being compiled into is young."""
    with contextlib.suppress(OSError):
        os.utime(used)
    with contextlib.suppress(OSError):
        for folder in used.parent.iterdir():
            if folder != used and folder.is_dir() and time.time() - folder.stat().st_mtime > days * 86400:
                shutil.rmtree(folder, ignore_errors=True)
