"""A calibration is measured once: kept, read again, and measured anew whenever the file is not what was written."""

from __future__ import annotations

from pathlib import Path

import pytest

from exactspec.target.cpu import describe_cpu
from exactspec.target.kept_flags import calibration_key, kept_flags
from exactspec.target.precision import Wide

WIDE = Wide(((True, False, False, True), (False, False, True, False)), True)
KEY = "ab" * 32


class Maker:
    def __init__(self) -> None:
        self.calls = 0

    def __call__(self) -> Wide:
        self.calls += 1
        return WIDE


def test_made_once(tmp_path: Path) -> None:
    maker = Maker()
    assert kept_flags(KEY, 2, maker, home=tmp_path) == WIDE
    assert kept_flags(KEY, 2, maker, home=tmp_path) == WIDE
    assert maker.calls == 1
    assert [path.suffix for path in (tmp_path / "calibrated").iterdir()] == [".json"]
    kept_flags("cd" * 32, 2, maker, home=tmp_path)
    assert maker.calls == 2


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[: len(text) // 2],
        lambda text: text.replace("1001", "1011"),
        lambda text: text.replace("1001", "1002"),
        lambda text: text.replace('"head": true', '"head": false'),
        lambda text: text.replace("abab", "abac", 1),
        *(lambda text, other=other: other for other in ("[]", "5", '"x"', "[" * 100_000, "")),
    ],
    ids=["cut", "flag", "digit", "head", "key", "list", "number", "text", "deep", "empty"],
)
def test_damage_is_noticed(tmp_path: Path, damage) -> None:
    maker, said = Maker(), []
    kept_flags(KEY, 2, maker, home=tmp_path, progress=said.append)
    (path,) = (tmp_path / "calibrated").iterdir()
    before = path.read_text()
    path.write_text(damage(before))
    assert path.read_text() != before
    assert kept_flags(KEY, 2, maker, home=tmp_path, progress=said.append) == WIDE
    assert [line.rpartition(", ")[2] for line in said] == ["once", "because what was kept is damaged"]
    assert maker.calls == 2
    assert path.read_text() == before


def test_flags_of_another_number_of_layers_are_not_taken(tmp_path: Path) -> None:
    maker = Maker()
    kept_flags(KEY, 2, maker, home=tmp_path)
    kept_flags(KEY, 3, maker, home=tmp_path)
    assert maker.calls == 2


def test_a_folder_that_cannot_be_written_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "calibrated").write_text("a file where the folder should be")
    maker = Maker()
    assert kept_flags(KEY, 2, maker, home=tmp_path) == WIDE
    assert kept_flags(KEY, 2, maker, home=tmp_path) == WIDE
    assert maker.calls == 2


def test_the_key_names_what_matters() -> None:
    cpu = describe_cpu()
    key = calibration_key("11", cpu, "float32")
    assert key == calibration_key("11", cpu, "float32")
    assert len({key, calibration_key("12", cpu, "float32"), calibration_key("11", cpu, "bfloat16")}) == 3
