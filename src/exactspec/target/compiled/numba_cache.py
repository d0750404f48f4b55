"""numba's compiled code kept in folders of our own, named after what the code is.

numba's own key sees the source file of the outermost function and where it lies. A folder's name here is the hash of
all sources, of the versions of numba and llvmlite, and of the CPU: checkouts of the same code share a folder, others
lie side by side, and a file whose time alone changed is compiled code still (see kept for the folders themselves).
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from exactspec.target.compiled.kept import State, forget_old, kept, state_of

_Built = TypeVar("_Built")
_LOCK = threading.Lock()  # numba's configuration is one per process
_LOCATOR = "exactspec.target.compiled.locator.FolderLocator"


def sources_of(place: Path) -> list[Path]:
    """The source files meant by a path: itself, or all of a folder's."""
    return sorted(place.glob("*.py")) if place.is_dir() else [place]


def code_key(places: Iterable[Path], cpu: Iterable[str]) -> str:
    """What tells the code compiled of these sources from any other, in hex. `places`: files, or folders of files;
    `cpu`: its name and features, as LLVM calls them (numba may have been told of others)."""
    import llvmlite
    import numba

    told = (str(numba.config.CPU_NAME), str(numba.config.CPU_FEATURES))
    digest = hashlib.sha256()
    for part in (numba.__version__, llvmlite.__version__, *told, *cpu):
        digest.update(part.encode() + b"\0")
    for place in places:
        for source in sources_of(place):
            digest.update(source.name.encode() + b"\0" + source.read_bytes())
    return digest.hexdigest()[:16]


def host_cpu() -> tuple[str, ...]:
    """This machine's CPU, for `code_key`."""
    from llvmlite import binding

    features = sorted(name for name, has in binding.get_host_cpu_features().items() if has)
    return (binding.get_host_cpu_name(), *features)


def is_compiled(folder: Path) -> bool:
    """Whether the code of this folder need not be compiled: it is there, every byte as it was written."""
    return state_of(folder) is State.SOUND


def in_folder(
    folder: Path,
    build: Callable[[bool], _Built],
    *,
    what: str,
    takes: str,
    progress: Callable[[str], None] | None = None,
) -> _Built:
    """What `build` makes, with numba's files in `folder`; ``build(keep)`` compiles, or loads, with ``cache=keep``.

    `progress` hears, in one line each, of what takes time: of a compilation (`what`, and how long it `takes`), that
    another process is at it, and why nothing can be kept, if so. Raises as `build` does.
    """
    say = progress or (lambda message: None)

    def waiting() -> None:
        say(f"waiting for another process that compiles the {what}")

    with _LOCK, kept(folder, waiting=waiting) as place:
        if place.path is None:
            say(_unkept(what, folder, place.reason))
            say(f"compiling the {what} for this machine: {takes}")
            return build(False)
        if place.state is State.ABSENT:
            say(f"compiling the {what} for this machine, once: {takes}")
        elif place.state is State.DAMAGED:
            say(f"compiling the {what} for this machine again, because what was kept is damaged: {takes}")
        try:
            with _files_in(place.path):
                built = build(True)
        except Exception as error:  # numba could not read or write there: do without
            place.discard()
            say(_unkept(what, folder, getattr(error, "strerror", None) or str(error) or type(error).__name__))
            return build(False)
        forget_old(place.path)
        return built


def _unkept(what: str, folder: Path, reason: str) -> str:
    return (
        f"the compiled {what} cannot be kept in {folder.parent} ({' '.join(reason.split())}): every start compiles "
        "anew; free space there, or set EXACTSPEC_HOME to a folder that can be written"
    )


@contextmanager
def _files_in(folder: Path) -> Iterator[None]:
    from numba import config

    settings: dict[str, Any] = {"CACHE_DIR": str(folder), "CACHE_LOCATOR_CLASSES": _LOCATOR}
    before = {name: getattr(config, name) for name in settings}
    try:
        for name, value in settings.items():
            setattr(config, name, value)
        yield
    finally:
        for name, value in before.items():
            setattr(config, name, value)
