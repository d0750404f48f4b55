"""Compiled drafters: kept by what they are, and every compilation, and every wait for one, is announced."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from numba import types

from exactspec.drafters.compiling import Once, compile_all, folder_of
from exactspec.drafters.copying import load as copying
from exactspec.drafters.layer.kernels import load as layer
from exactspec.drafters.recycling import load as recycling
from exactspec.target import kernels
from exactspec.target.compiled import kept, numba_cache
from exactspec.target.compiled.numba_cache import is_compiled
from exactspec.target.filelock import file_lock

NAME = "tiny_entry"
FIRST = "compiling the tiny drafter for this machine, once: a second"
AGAIN = "compiling the tiny drafter for this machine again, because what was kept is damaged: a second"


def module_in(package: Path, body: str = "return 2 * x") -> ModuleType:
    """A module of one function, in a folder of its own; imported by its name, as numba does when it loads code."""
    package.mkdir(parents=True)
    source = package / "entry.py"
    source.write_text(f"def twice(x):\n    {body}\n")
    spec = importlib.util.spec_from_file_location(NAME, source)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.modules[NAME] = module
    return module


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EXACTSPEC_HOME", str(tmp_path / "home"))
    monkeypatch.setitem(sys.modules, NAME, ModuleType(NAME))  # taken back at the end
    return tmp_path / "home"


@pytest.fixture
def entry(home: Path, tmp_path: Path) -> ModuleType:
    return module_in(tmp_path / "package")


def package_of(entry: ModuleType) -> Path:
    return Path(str(entry.__file__)).parent


def compiled(entry: ModuleType, expected: int = 42) -> list[str]:
    """What is said."""
    said: list[str] = []
    signatures = {"twice": types.int64(types.int64)}
    functions = compile_all("tiny", [package_of(entry)], entry, signatures, takes="a second", progress=said.append)
    assert functions["twice"](21) == expected
    return said


def code_of(entry: ModuleType) -> Path:
    return next(folder_of("tiny", package_of(entry)).rglob("*.nbc"))


def test_what_is_whole_is_loaded(entry: ModuleType) -> None:
    assert not is_compiled(folder_of("tiny", package_of(entry)))
    assert compiled(entry) == [FIRST]
    assert is_compiled(folder_of("tiny", package_of(entry)))
    written = code_of(entry).stat().st_mtime_ns
    assert compiled(entry) == []
    assert code_of(entry).stat().st_mtime_ns == written


@pytest.mark.parametrize("at", [0, 0.25, 0.5, 0.75, 1])
@pytest.mark.parametrize("suffix", ["*.nbc", "*.nbi", "hashes.json"])
def test_a_flipped_byte_is_noticed(entry: ModuleType, suffix: str, at: float) -> None:
    compiled(entry)
    file = next(folder_of("tiny", package_of(entry)).rglob(suffix))
    data = bytearray(file.read_bytes())
    data[int(at * (len(data) - 1))] ^= 1
    file.write_bytes(data)
    assert not is_compiled(folder_of("tiny", package_of(entry)))
    assert compiled(entry) == [AGAIN]
    assert compiled(entry) == []


def test_what_a_killed_process_left_is_compiled(entry: ModuleType) -> None:
    compiled(entry)
    (folder_of("tiny", package_of(entry)) / kept.RECORD).unlink()
    assert not is_compiled(folder_of("tiny", package_of(entry)))
    assert compiled(entry) == [FIRST]


def test_a_checkout_elsewhere_of_the_same_code_shares_it(entry: ModuleType, tmp_path: Path) -> None:
    compiled(entry)
    other = module_in(tmp_path / "elsewhere" / "package")
    os.utime(str(other.__file__), (1, 1))
    assert compiled(other) == []
    assert compiled(entry) == []


def test_other_code_lies_beside_it(entry: ModuleType, tmp_path: Path) -> None:
    compiled(entry)
    other = module_in(tmp_path / "other", "return 3 * x")
    assert compiled(other, 63) == [FIRST]
    assert compiled(entry) == []
    assert compiled(other, 63) == []


def test_old_ones_are_bounded(home: Path, tmp_path: Path) -> None:
    for i in range(10):
        compiled(module_in(tmp_path / f"p{i}", f"return {i} * x"), 21 * i)
    assert len([path for path in (home / "kernels").iterdir() if path.is_dir()]) == 8


def test_a_wait_for_another_process_is_called_one(entry: ModuleType, home: Path) -> None:
    said: list[str] = []
    told = threading.Event()

    def say(line: str) -> None:
        said.append(line)
        told.set()

    def second() -> None:
        compile_all("tiny", [package_of(entry)], entry, {}, takes="a second", progress=say)

    folder = folder_of("tiny", package_of(entry))
    folder.parent.mkdir(parents=True)
    thread = threading.Thread(target=second)
    with file_lock(folder.with_name(f".lock-{folder.name}")):
        thread.start()
        assert told.wait(60)
        assert said == ["waiting for another process that compiles the tiny drafter"]
        folder.mkdir()
        (folder / "made").touch()
        kept.seal(folder)
    thread.join(60)
    assert len(said) == 1


def test_nowhere_to_keep_it(entry: ModuleType, home: Path) -> None:
    home.touch()
    said = compiled(entry)
    assert len(said) == 2
    assert said[0].startswith(f"the compiled tiny drafter cannot be kept in {home / 'kernels'} (")
    assert said[0].endswith("or set EXACTSPEC_HOME to a folder that can be written")
    assert said[1] == "compiling the tiny drafter for this machine: a second"


def test_a_disk_that_fills_up_on_the_way(entry: ModuleType, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from numba.core.caching import IndexDataCacheFile

    def full(self: Any, name: str, data: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(IndexDataCacheFile, "_save_data", full)
        said = compiled(entry)
    assert said[0] == FIRST
    assert "(No space left on device): every start compiles anew" in said[1]
    assert not is_compiled(folder_of("tiny", package_of(entry)))
    assert compiled(entry) == [FIRST]
    assert compiled(entry) == []


def test_numba_finds_its_configuration_as_it_was(entry: ModuleType) -> None:
    from numba import config

    before = config.CACHE_DIR, config.CACHE_LOCATOR_CLASSES
    compiled(entry)
    assert before == (config.CACHE_DIR, config.CACHE_LOCATOR_CLASSES)


def test_made_once_for_each_key() -> None:
    calls: list[tuple[str, ...]] = []

    def make(*key: str, progress: Callable[[str], None] | None) -> object:
        calls.append(key)
        if progress is not None:
            progress("made")
        return object()

    said: list[str] = []
    once = Once(make)
    assert once("a", progress=said.append) is once("a") is once("a", progress=said.append)
    assert once("b") is not once("a")
    assert calls == [("a",), ("b",)]
    assert said == ["made"]


def imported(module: str) -> set[Path]:
    """The files of all modules of exactspec that a module imports when it is loaded, directly or not, and its own."""
    found: dict[str, Path] = {}
    todo = [module]
    while todo:
        name = todo.pop()
        spec = importlib.util.find_spec(name)
        if name in found or spec is None or spec.origin is None:
            continue
        found[name] = Path(spec.origin)
        for node in ast.parse(found[name].read_text()).body:
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("exactspec."):
                package = importlib.util.find_spec(str(node.module))
                whole = package is not None and package.submodule_search_locations is not None
                todo += [f"{node.module}.{a.name}" for a in node.names] if whole else [str(node.module)]
    return set(found.values())


@pytest.mark.parametrize(
    ("module", "places"),
    [
        ("exactspec.drafters.copying.entry", [copying.PACKAGE]),
        ("exactspec.drafters.recycling.entry", [recycling.PACKAGE]),
        ("exactspec.drafters.layer.kernels.entry", layer.PACKAGES),
        ("exactspec.target.kernels.forward", [Path(kernels.__path__[0])]),
        ("exactspec.target.kernels.nibble_packing", [Path(kernels.__path__[0])]),
        ("exactspec.target.kernels.packing", [Path(kernels.__path__[0])]),
    ],
)
def test_the_key_covers_every_source(module: str, places: list[Path]) -> None:
    covered = {source for place in places for source in numba_cache.sources_of(place)}
    files = imported(module)
    assert len(files) > 1
    assert files <= covered
