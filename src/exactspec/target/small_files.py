"""Small files that are there whole or not at all, and whose loss costs only time."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from pathlib import Path


def try_write(path: Path, text: str) -> None:
    """Put `text` into `path` in one step, its folder made if needed; a reader sees the old file or the new one.
    Where it cannot be written, nothing happens."""
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".partial-")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(text)
            if path.is_dir():  # from elsewhere: it would be in the way for ever
                shutil.rmtree(path)
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise
