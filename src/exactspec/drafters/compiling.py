"""Compiling a drafter's parts once per machine, into a folder of their own beside the kernels'.

The folder is keyed by everything that goes into the code (its sources, numba, llvmlite, the CPU) and used only while
every byte is the one written (see `target.kernels.kept`). Without a folder that can be used, it is compiled every time.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from exactspec.draft_names import BESIDE
from exactspec.target.home import default_home
from exactspec.target.kernels.kept import intact, kept

_Built = TypeVar("_Built")
_LOCK = threading.Lock()  # numba's configuration is one per process


def sources_of(package: Path) -> list[Path]:
    """The files that a compiled folder depends on: all of a package's."""
    return sorted(package.glob("*.py"))


def key_of(*packages: Path) -> str:
    """What tells the code of these sources on this machine from any other, in hex."""
    import llvmlite
    import llvmlite.binding as llvm
    import numba

    features = sorted(name for name, has in llvm.get_host_cpu_features().items() if has)
    digest = hashlib.sha256()
    for part in (numba.__version__, llvmlite.__version__, llvm.get_host_cpu_name(), *features):
        digest.update(part.encode() + b"\0")
    for package in packages:
        for source in sources_of(package):
            digest.update(source.name.encode() + b"\0" + source.read_bytes())
    return digest.hexdigest()[:16]


def prepare(draft: str, progress: Callable[[str], None] | None = None) -> None:
    """Load the functions that this draft mode takes, so that no request waits for them; `progress` hears of those that
    have to be compiled first. Raises as `compile_all` does."""
    from exactspec.drafters.copying import load as copying
    from exactspec.drafters.recycling import load as recycling

    everything = draft.partition("+")[0] == "auto" or draft.startswith(BESIDE)
    if everything or draft == "copy":
        copying.prepare(progress)
    if everything or draft == "recycle":
        recycling.prepare(progress)


def folder_of(name: str, *packages: Path) -> Path:
    """Where the compiled code is kept."""
    return default_home() / "kernels" / f"{name}-{key_of(*packages)}"


def is_kept(name: str, *packages: Path) -> bool:
    """Whether it need not be compiled: the folder is there, whole, and of these very files."""
    return intact(folder_of(name, *packages), _stamp(packages))


def compile_all(name: str, package: Path, entry: ModuleType, signatures: Mapping[str, Any]) -> dict[str, Any]:
    """The functions of `entry` named in `signatures`, compiled for just these types, or loaded from where they are.

    Raises ValueError if numba's compiler is switched off.
    """
    import numba

    if numba.config.DISABLE_JIT:
        raise ValueError(f"NUMBA_DISABLE_JIT is set: unset it, the {name} drafter exists only in compiled form")

    def build(*, keep: bool) -> dict[str, Any]:
        functions = {}
        for function_name, signature in signatures.items():
            function = numba.njit(error_model="numpy", cache=keep)(getattr(entry, function_name))
            function.compile(signature)
            function.disable_compile()
            functions[function_name] = function
        return functions

    return _kept(name, (package,), build)


def compile_c(name: str, packages: Sequence[Path], function: Callable[..., Any], signature: Any) -> Any:
    """`function` as a numba C function (its field `address` is what compiled code can call), compiled or loaded.
    `packages`: the folders of all sources that it is made of. Raises ValueError if numba's compiler is switched off."""
    import numba

    if numba.config.DISABLE_JIT:
        raise ValueError(f"NUMBA_DISABLE_JIT is set: unset it, the {name} drafter exists only in compiled form")

    def build(*, keep: bool) -> Any:
        return numba.cfunc(signature, cache=keep, error_model="numpy")(function)

    return _kept(name, packages, build)


def _stamp(packages: Sequence[Path]) -> str:
    sources = [source for package in packages for source in sources_of(package)]
    return "|".join([*map(str, packages), *(str(source.stat().st_mtime_ns) for source in sources)])


def _kept(name: str, packages: Sequence[Path], build: Callable[..., _Built]) -> _Built:
    import numba

    with _LOCK:
        before = numba.config.CACHE_DIR
        try:
            with kept(folder_of(name, *packages), stamp=_stamp(packages)) as folder:
                if folder is None:
                    return build(keep=False)
                numba.config.CACHE_DIR = str(folder)
                try:
                    return build(keep=True)
                except Exception:  # numba could not read or write there: do without
                    return build(keep=False)
        finally:
            numba.config.CACHE_DIR = before
