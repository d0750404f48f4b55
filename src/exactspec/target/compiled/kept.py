"""A folder of compiled code that is used only while every byte is the one that was written.

numba trusts its cache files: a truncated one raises, but a damaged one is linked and run, which ends the process or
gives wrong numbers. So a record of hashes lies beside them, written last. Who uses the folder holds its lock: a second
process waits for the first one's compilation instead of repeating it, and a killed one leaves no record.

Code that was loaded is in the process's memory. So a folder that nobody holds may be removed at any time.
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
from enum import Enum
from pathlib import Path

from exactspec.target.filelock import file_lock
from exactspec.target.json_file import read_object

RECORD = "hashes.json"
_NEEDED = 16 << 20  # bytes free on the disk, or nothing is begun: compiled code takes one or two


class State(Enum):
    """ABSENT: nothing, or what a process left that was killed while it compiled. DAMAGED: finished once, and not as it
    was written, or not readable."""

    SOUND = "sound"
    ABSENT = "absent"
    DAMAGED = "damaged"


def hashes(folder: Path) -> dict[str, str]:
    """SHA-256 in hex of every file below `folder`, but the record, by relative name. Raises OSError."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != RECORD)
    return {path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def state_of(folder: Path) -> State:
    """Sound: the folder holds just the files of its record, which was written under this folder's name."""
    try:
        record = read_object(folder / RECORD)
        files = hashes(folder)
    except FileNotFoundError:
        return State.ABSENT
    except (OSError, ValueError):
        return State.DAMAGED
    sound = bool(files) and record == {"stamp": folder.name, "files": files}
    return State.SOUND if sound else State.DAMAGED


def seal(folder: Path) -> None:
    """Write the record of what `folder` holds now, whole or not at all. A folder that cannot be sealed is compiled
    again next time, so an OSError is no error."""
    fresh = folder.with_name(f".new-{folder.name}")  # outside: it is no file of the folder
    with contextlib.suppress(OSError):
        try:
            fresh.write_text(json.dumps({"stamp": folder.name, "files": hashes(folder)}), encoding="utf-8")
            os.replace(fresh, folder / RECORD)
        except OSError:
            fresh.unlink(missing_ok=True)
            raise


class Kept:
    """The folder to compile into and load from, sound or empty. `path`: None if nothing can be kept, for the `reason`.
    `state`: what was found."""

    __slots__ = ("path", "reason", "sealed", "state")

    def __init__(self, path: Path | None, state: State, reason: str = "") -> None:
        self.path, self.state, self.reason = path, state, reason
        self.sealed = path is not None

    def discard(self) -> None:
        """Let nothing of the folder count: compiling into it failed half way."""
        self.sealed = False
        if self.path is not None:
            shutil.rmtree(self.path, ignore_errors=True)


@contextlib.contextmanager
def kept(folder: Path, *, waiting: Callable[[], None] | None = None) -> Iterator[Kept]:
    """The folder, for as long as the context lasts; a damaged one is emptied first.

    One that cannot be written is used if it is sound. `waiting` is called, once, if another process holds a folder that
    is not sound, that is, while it compiles.
    """
    asked: list[State] = []

    def held() -> None:
        if not asked:
            asked.append(state_of(folder))
            if asked[0] is not State.SOUND and waiting is not None:
                waiting()

    with contextlib.ExitStack() as stack:
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            stack.enter_context(file_lock(_lock_of(folder), held))
            state = state_of(folder)
            if state is not State.SOUND:
                _make_empty(folder)
            place = Kept(folder, state)
        except OSError as error:
            state = state_of(folder)
            place = Kept(folder if state is State.SOUND else None, state, error.strerror or str(error))
        yield place
        if place.sealed and state_of(folder) is not State.SOUND:
            seal(folder)


def _make_empty(folder: Path) -> None:
    """Raises OSError, also where what is going to be written would not fit."""
    if folder.is_dir():
        shutil.rmtree(folder)
    folder.mkdir()
    tempfile.TemporaryFile(dir=folder).close()
    free = shutil.disk_usage(folder).free
    if free < _NEEDED:
        raise OSError(f"{free / 1e6:.0f} MB are free")


def _lock_of(folder: Path) -> Path:
    return folder.with_name(f".lock-{folder.name}")


def forget_old(used: Path, *, most: int = 8, days: float = 30) -> None:
    """Note that `used` was used now, and remove folders beside it: of its kind (its name up to the last ``-``) all but
    the `most` that were used last, and any that nobody has used for so many days. One that a process holds stays."""
    with contextlib.suppress(OSError):
        os.utime(used)
        others = [folder for folder in used.parent.iterdir() if folder.is_dir() and folder != used]
        times = {folder: folder.stat().st_mtime for folder in others}
        latest = sorted(others, key=lambda folder: -times[folder])
        kind = used.name.rpartition("-")[0]
        alike = [folder for folder in latest if folder.name.rpartition("-")[0] == kind]
        aged = [folder for folder in latest if time.time() - times[folder] > days * 86400]
        for folder in dict.fromkeys([*alike[most - 1 :], *aged]):
            _remove(folder)


def _remove(folder: Path) -> None:
    def busy() -> None:
        raise BlockingIOError

    with contextlib.suppress(OSError), file_lock(_lock_of(folder), busy):
        shutil.rmtree(folder, ignore_errors=True)
