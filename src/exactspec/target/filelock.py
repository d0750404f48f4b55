"""A lock between processes that the operating system drops when its holder dies, however it dies."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

if sys.platform == "win32":
    import msvcrt

    def try_lock(fd: int) -> bool:
        """Whether the open file is now locked by this holder."""
        try:
            msvcrt.locking(fd, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True

else:
    import fcntl

    def try_lock(fd: int) -> bool:
        """Whether the open file is now locked by this holder."""
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


@contextlib.contextmanager
def file_lock(path: Path, waiting: Callable[[], None] | None = None, *, poll_s: float = 0.1) -> Iterator[None]:
    """Hold `path` as an exclusive lock; `waiting` is called once per try while another holder has it.

    The file stays on disk: deleting it would let a waiter and a newcomer hold two different files of one name.
    Threads of one process exclude each other too, since every holder opens the file anew. Raises OSError.
    """
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        # Polling, not a blocking call: Ctrl-C must work while waiting, on Windows too.
        while not try_lock(fd):
            if waiting is not None:
                waiting()
            time.sleep(poll_s)
        yield
    finally:
        os.close(fd)  # closing releases the lock
