"""Compiling parts of drafters, and of sampling, once per machine, into a folder of their own beside the kernels'.

The folder is keyed by everything that goes into the code (its sources, numba, llvmlite, the CPU) and used only while
every byte is the one written (see `target.compiled.numba_cache` and `kept`). Without a folder that can be used, it is
compiled every time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Generic, TypeVar

from exactspec.draft_names import BESIDE
from exactspec.target.compiled.numba_cache import code_key, host_cpu, in_folder
from exactspec.target.home import default_home

_Built = TypeVar("_Built")
Tell = Callable[[str], None]


class Once(Generic[_Built]):
    """What ``make(*key, progress=...)`` gives, made at the first call of a process for each `key`. `progress`, of that
    first call alone, hears of what takes time. Raises as `make` does."""

    __slots__ = ("_lock", "_made", "_make")

    def __init__(self, make: Callable[..., _Built]) -> None:
        self._make = make
        self._made: dict[tuple[str, ...], _Built] = {}
        self._lock = threading.Lock()

    def __call__(self, *key: str, progress: Tell | None = None) -> _Built:
        made = self._made.get(key)
        if made is None:
            with self._lock:
                made = self._made.get(key)
                if made is None:
                    made = self._made[key] = self._make(*key, progress=progress)
        return made


def prepare(draft: str, progress: Tell | None = None) -> None:
    """Load the functions that sampling and this draft mode take, so that no request waits for them; `progress` hears of
    those that have to be compiled first. Raises as `compile_all` does."""
    from exactspec.drafters.copying import load as copying
    from exactspec.drafters.recycling import load as recycling
    from exactspec.softmax import load as softmax

    softmax.compiled(progress=progress)

    everything = draft.partition("+")[0] == "auto" or draft.startswith(BESIDE)
    if everything or draft == "copy":
        copying.compiled(progress=progress)
    if everything or draft == "recycle":
        recycling.compiled(progress=progress)


def folder_of(name: str, *sources: Path) -> Path:
    """Where the compiled code is kept. `sources`: all files that it is made of, or folders of such files."""
    return default_home() / "kernels" / f"{name}-{code_key(sources, host_cpu())}"


def compile_all(
    name: str,
    sources: Sequence[Path],
    entry: ModuleType,
    signatures: Mapping[str, Any],
    *,
    takes: str,
    what: str = "",
    progress: Tell | None = None,
) -> dict[str, Any]:
    """The functions of `entry` named in `signatures`, compiled for just these types, or loaded from where they are.
    `sources`: see `folder_of`. `takes`: how long to compile, and `what` (a drafter of that name), for `progress`.

    Raises ValueError if numba's compiler is switched off.
    """
    import numba

    what = what or f"{name} drafter"
    _require_compiler(what)

    def build(keep: bool) -> dict[str, Any]:
        functions = {}
        for function_name, signature in signatures.items():
            function = numba.njit(error_model="numpy", cache=keep)(getattr(entry, function_name))
            function.compile(signature)
            function.disable_compile()
            functions[function_name] = function
        return functions

    return in_folder(folder_of(name, *sources), build, what=what, takes=takes, progress=progress)


def compile_c(
    name: str,
    sources: Sequence[Path],
    function: Callable[..., Any],
    signature: Any,
    *,
    what: str,
    takes: str,
    progress: Tell | None = None,
) -> Any:
    """`function` as a numba C function (its field `address` is what compiled code can call), compiled or loaded.
    `what`: the name for `progress`; the rest as for `compile_all`. Raises ValueError if numba's compiler is switched
    off."""
    import numba

    _require_compiler(f"{name} drafter")

    def build(keep: bool) -> Any:
        return numba.cfunc(signature, cache=keep, error_model="numpy")(function)

    return in_folder(folder_of(name, *sources), build, what=what, takes=takes, progress=progress)


def _require_compiler(what: str) -> None:
    from numba import config

    if config.DISABLE_JIT:
        raise ValueError(f"NUMBA_DISABLE_JIT is set: unset it, the {what} exists only in compiled form")
