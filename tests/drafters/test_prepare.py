"""The compiled copy drafter is made ready before the first request, and a first compilation is announced."""

from __future__ import annotations

from pathlib import Path

import pytest

from exactspec.drafters.compiling import folder_of
from exactspec.drafters.copying import load


def test_only_a_first_compilation_is_announced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXACTSPEC_HOME", str(tmp_path))
    calls: list[None] = []
    said: list[str] = []

    def compiled() -> None:
        calls.append(None)
        folder_of(load.NAME, load.PACKAGE).mkdir(parents=True, exist_ok=True)

    monkeypatch.setattr(load, "compiled", compiled)
    load.prepare(said.append)
    load.prepare(said.append)
    load.prepare()
    assert len(calls) == 3
    assert len(said) == 1
    assert said[0].startswith("compiling the copy drafter")
