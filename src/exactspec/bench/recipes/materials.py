"""Texts that recipes are made of: the Python library's own files, and system files that slim installations lack."""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

# Tests, and what some distributions of Python leave out or write anew, so that one Python version gives one list.
_SKIPPED_FOLDERS: Final = frozenset(
    {
        *("test", "tests", "idlelib", "lib2to3", "site-packages", "dist-packages", "turtledemo", "__pycache__"),
        *("distutils", "ensurepip", "lib-dynload", "pydoc_data", "tkinter"),
    }
)
_SKIPPED_NAMES: Final = ("_sysconfigdata", "sitecustomize", "this.py")


def _stdlib() -> Path:
    return Path(sysconfig.get_path("stdlib"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Materials:
    """Where texts are read from. `library`: the folder of the Python library. `system`: what stands for `/`."""

    library: Path = field(default_factory=_stdlib)
    system: Path = Path("/")

    def library_files(self, smallest: int = 0, largest: int | None = None) -> list[tuple[str, Path]]:
        """(name, path) of the library's own `.py` files within a size range in bytes, in the order of their names."""
        found: list[tuple[str, Path]] = []
        for folder, folders, names in os.walk(self.library):
            folders[:] = [f for f in folders if f not in _SKIPPED_FOLDERS and not f.startswith("config-")]
            for name in names:
                if not name.endswith(".py") or name.startswith(_SKIPPED_NAMES):
                    continue
                path = Path(folder, name)
                if smallest <= path.stat().st_size and (largest is None or path.stat().st_size <= largest):
                    found.append((path.relative_to(self.library).as_posix(), path))
        return sorted(found)

    def library_texts(self, smallest: int = 0, largest: int | None = None) -> Iterator[tuple[str, str]]:
        """(name, text) of those files; what is not UTF-8 is left out."""
        for name, path in self.library_files(smallest, largest):
            text = text_of(path)
            if text is not None:
                yield name, text

    def package_names(self) -> list[str]:
        """Names of the library's top-level modules and packages, public ones, sorted."""
        names = {name.split("/")[0].removesuffix(".py") for name, _ in self.library_files()}
        return sorted(name for name in names if not name.startswith("_"))

    def system_text(self, path: str) -> str | None:
        """Text of a system file, `path` being absolute; None where there is none."""
        try:
            return (self.system / path.lstrip("/")).read_text(encoding="utf-8", errors="replace")
        except OSError:
            return None

    def system_lines(self, path: str) -> list[str]:
        """Its lines; empty where there is none."""
        return (self.system_text(path) or "").splitlines()


def text_of(path: Path) -> str | None:
    """Text of a library file, None if it is not UTF-8."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return None
