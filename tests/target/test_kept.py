"""The folder of compiled kernels: used while undamaged, else emptied; one process compiles and others wait."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import gguf
import numpy as np
import pytest
from tiny_weights import RandomWeights

from exactspec.target.cpu import describe_cpu
from exactspec.target.dequant import Dequantiser
from exactspec.target.kernels import kept as module
from exactspec.target.kernels.compile import are_compiled, load_kernels
from exactspec.target.kernels.kept import RECORD, forget_old, intact, kept
from exactspec.target.pack import pack_model

Q8_0 = gguf.GGMLQuantizationType.Q8_0


def fill(folder: Path, stamp: str = "s") -> Path:
    with kept(folder, stamp=stamp) as place:
        assert place == folder
        (folder / "sub").mkdir()
        (folder / "sub" / "code.nbc").write_bytes(bytes(range(256)) * 64)
        (folder / "sub" / "index.nbi").write_bytes(b"index")
    assert intact(folder, stamp)
    return folder


def names(folder: Path | None) -> set[str]:
    assert folder is not None
    return {path.name for path in folder.rglob("*") if path.is_file()}


def flip(folder: Path) -> None:
    file = folder / "sub" / "code.nbc"
    data = bytearray(file.read_bytes())
    data[9000] ^= 1
    file.write_bytes(data)


def truncate(folder: Path) -> None:
    (folder / "sub" / "code.nbc").write_bytes(b"")


def lose(folder: Path) -> None:
    (folder / "sub" / "index.nbi").unlink()


def add(folder: Path) -> None:
    (folder / "sub" / "stray.nbc").write_bytes(b"from elsewhere")


def unseal(folder: Path) -> None:  # what a killed process leaves
    (folder / RECORD).unlink()


def spoil_record(folder: Path) -> None:
    (folder / RECORD).write_bytes(b"\xff[{")


@pytest.mark.parametrize("damage", [flip, truncate, lose, add, unseal, spoil_record])
def test_a_damaged_folder_is_emptied(tmp_path, damage):
    folder = fill(tmp_path / "k")
    damage(folder)
    with kept(folder, stamp="s") as place:
        assert names(place) == set()
        (folder / "again.nbc").write_bytes(b"compiled again")
    with kept(folder, stamp="s") as place:
        assert names(place) == {"again.nbc", RECORD}


def test_a_sound_folder_stays_and_another_stamp_empties_it(tmp_path):
    folder = fill(tmp_path / "k")
    with kept(folder, stamp="s") as place:
        assert names(place) == {"code.nbc", "index.nbi", RECORD}
    with kept(folder, stamp="t") as place:
        assert names(place) == set()


def test_an_interrupted_compilation_leaves_nothing_that_counts(tmp_path):
    context = kept(tmp_path / "k", stamp="s")
    context.__enter__()
    (tmp_path / "k" / "half.nbc").write_bytes(b"half")
    assert context.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None) is False
    with kept(tmp_path / "k", stamp="s") as place:
        assert names(place) == set()


def test_a_second_one_waits_and_finds_what_the_first_one_made(tmp_path):
    found: list[set[str]] = []
    waiting = threading.Event()

    def second() -> None:
        with kept(tmp_path / "k", stamp="s", waiting=waiting.set) as place:
            found.append(names(place))

    thread = threading.Thread(target=second)
    with kept(tmp_path / "k", stamp="s"):
        thread.start()
        assert waiting.wait(20)
        (tmp_path / "k" / "code.nbc").write_bytes(b"code")
    thread.join(20)
    assert found == [{"code.nbc", RECORD}]


def test_a_folder_that_cannot_be_written_is_read_through_a_copy_if_sound(tmp_path, monkeypatch):
    folder = fill(tmp_path / "k")

    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(module, "file_lock", refuse)
    with kept(folder, stamp="s") as place:
        assert place is not None
        assert place != folder
        assert names(place) == {"code.nbc", "index.nbi", RECORD}
        (place / "new").write_bytes(b"")
    assert not place.exists()
    assert names(folder) == {"code.nbc", "index.nbi", RECORD}
    flip(folder)
    with kept(folder, stamp="s") as place:
        assert place is None


def test_a_file_where_the_folder_should_be(tmp_path):
    (tmp_path / "k").write_bytes(b"")
    with kept(tmp_path / "k", stamp="s") as place:
        assert place is None


def test_using_the_kernels_adds_nothing_to_their_folder():
    cpu = describe_cpu()
    packing = load_kernels(cpu).packing
    assert are_compiled(cpu)
    pack_model(RandomWeights(), packing, 1)
    assert len(packing.rows.signatures) == 1
    assert are_compiled(cpu)


def test_what_nobody_used_for_long_is_removed(tmp_path):
    used, young, old = (fill(tmp_path / name) for name in ("used", "young", "old"))
    for folder in (used, old):
        os.utime(folder, (0, 0))
    forget_old(used)
    assert {path.name for path in tmp_path.iterdir() if path.is_dir()} == {"used", "young"}
    assert used.stat().st_mtime > 1e9  # its use was noted
    assert intact(used, "s")
    assert intact(young, "s")


def test_dequantising_kernels_are_kept_and_checked_like_the_others(tmp_path):
    raw = np.full((3, 34), 7, dtype=np.uint8)
    expected = gguf.quants.dequantize(raw, Q8_0)
    raw.flags.writeable = False

    def folder_after_use() -> Path:
        values, finite = Dequantiser(tmp_path)(raw, Q8_0)
        assert finite
        np.testing.assert_array_equal(values, expected)
        (folder,) = (path for path in (tmp_path / "kernels").iterdir() if path.is_dir())
        return folder

    folder = folder_after_use()
    assert folder.name.endswith("-q8_0")
    code = next(folder.rglob("*.nbc"))
    whole, time = code.read_bytes(), code.stat().st_mtime_ns
    folder_after_use()
    assert code.stat().st_mtime_ns == time  # loaded, not compiled
    code.write_bytes(whole[:-100] + bytes(100))
    assert folder_after_use() == folder
    assert code.stat().st_mtime_ns != time
