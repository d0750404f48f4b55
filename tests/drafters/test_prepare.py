"""The compiled copy drafter is made ready before the first request, and every compilation is announced."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from types import ModuleType

import pytest

from exactspec.drafters.compiling import compile_all, folder_of, is_kept
from exactspec.drafters.copying import load


@pytest.fixture
def entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A module of one function, in a folder of its own."""
    monkeypatch.setenv("EXACTSPEC_HOME", str(tmp_path / "home"))
    source = tmp_path / "package" / "entry.py"
    source.parent.mkdir()
    source.write_text("def twice(x):\n    return 2 * x\n")
    spec = importlib.util.spec_from_file_location("entry", source)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_only_what_is_whole_and_of_these_files_is_kept(entry: ModuleType) -> None:
    from numba import types

    source = Path(str(entry.__file__))
    package = source.parent

    def compiled() -> None:
        functions = compile_all("tiny", package, entry, {"twice": types.int64(types.int64)})
        assert functions["twice"](21) == 42

    assert not is_kept("tiny", package)
    compiled()
    assert is_kept("tiny", package)
    code = next(folder_of("tiny", package).rglob("*.nbc"))
    data = bytearray(code.read_bytes())
    data[len(data) // 2] ^= 1
    code.write_bytes(data)
    assert not is_kept("tiny", package)  # damaged
    compiled()
    assert is_kept("tiny", package)
    (folder_of("tiny", package) / "hashes.json").unlink()
    assert not is_kept("tiny", package)  # of a process that was killed
    compiled()
    os.utime(source, (1, 1))
    assert not is_kept("tiny", package)  # of other files, whatever they hold


def test_a_compilation_is_announced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[None] = []
    said: list[str] = []
    kept = False
    monkeypatch.setattr(load, "compiled", lambda: calls.append(None))
    monkeypatch.setattr(load, "is_kept", lambda name, package: kept)
    load.prepare(said.append)
    load.prepare()
    kept = True
    load.prepare(said.append)
    assert len(calls) == 3
    assert len(said) == 1
    assert said[0].startswith("compiling the copy drafter")
