"""The folder of compiled kernels: used while undamaged, else emptied; one process compiles and others wait."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import gguf
import numpy as np
import pytest
from tiny_weights import RandomWeights

from exactspec.target.compiled import kept as module
from exactspec.target.compiled.kept import RECORD, State, forget_old, kept, state_of
from exactspec.target.cpu import describe_cpu
from exactspec.target.dequant import Dequantiser
from exactspec.target.kernels.compile import are_compiled, load_kernels
from exactspec.target.pack import pack_model

Q8_0 = gguf.GGMLQuantizationType.Q8_0


def fill(folder: Path) -> Path:
    with kept(folder) as place:
        assert place.path == folder
        (folder / "sub").mkdir()
        (folder / "sub" / "code.nbc").write_bytes(bytes(range(256)) * 64)
        (folder / "sub" / "index.nbi").write_bytes(b"index")
    assert state_of(folder) is State.SOUND
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


def record_of_another_kind(folder: Path) -> None:
    (folder / RECORD).write_text("[" * 100_000)


def empty_record(folder: Path) -> None:
    (folder / RECORD).write_bytes(b"")


def folder_for_record(folder: Path) -> None:
    (folder / RECORD).unlink()
    (folder / RECORD).mkdir()


def folder_for_file(folder: Path) -> None:
    lose(folder)
    (folder / "sub" / "index.nbi").mkdir()


def of_another_name(folder: Path) -> None:
    record = folder / RECORD
    record.write_text(record.read_text().replace('"stamp": "k"', '"stamp": "l"'))
    assert '"l"' in record.read_text()


DAMAGES = [
    flip, truncate, lose, add, spoil_record, record_of_another_kind, empty_record, folder_for_record, folder_for_file,
    of_another_name,
]  # fmt: skip


@pytest.mark.parametrize("damage", [*DAMAGES, unseal])
def test_a_damaged_folder_is_emptied(tmp_path, damage):
    folder = fill(tmp_path / "k")
    damage(folder)
    with kept(folder) as place:
        assert place.state is (State.ABSENT if damage is unseal else State.DAMAGED)
        assert names(place.path) == set()
        (folder / "again.nbc").write_bytes(b"compiled again")
    with kept(folder) as place:
        assert place.state is State.SOUND
        assert names(place.path) == {"again.nbc", RECORD}


def test_a_sound_folder_stays(tmp_path):
    folder = fill(tmp_path / "k")
    with kept(folder) as place:
        assert names(place.path) == {"code.nbc", "index.nbi", RECORD}


def test_an_interrupted_compilation_leaves_nothing_that_counts(tmp_path):
    context = kept(tmp_path / "k")
    context.__enter__()
    (tmp_path / "k" / "half.nbc").write_bytes(b"half")
    assert context.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None) is False
    with kept(tmp_path / "k") as place:
        assert place.state is State.ABSENT
        assert names(place.path) == set()


def test_what_is_discarded_is_not_sealed(tmp_path):
    with kept(tmp_path / "k") as place:
        (tmp_path / "k" / "half.nbc").write_bytes(b"half")
        place.discard()
    assert state_of(tmp_path / "k") is State.ABSENT


def test_a_second_one_waits_and_finds_what_the_first_one_made(tmp_path):
    found: list[set[str]] = []
    waiting = threading.Event()

    def second() -> None:
        with kept(tmp_path / "k", waiting=waiting.set) as place:
            found.append(names(place.path))

    thread = threading.Thread(target=second)
    with kept(tmp_path / "k"):
        thread.start()
        assert waiting.wait(60)
        (tmp_path / "k" / "code.nbc").write_bytes(b"code")
    thread.join(60)
    assert found == [{"code.nbc", RECORD}]


def test_who_waits_for_one_that_only_loads_is_not_told_of_a_compilation(tmp_path):
    folder, said, done = fill(tmp_path / "k"), [], threading.Event()

    def second() -> None:
        with kept(folder, waiting=lambda: said.append("waiting")):
            done.set()

    thread = threading.Thread(target=second)
    with kept(folder):
        thread.start()
        assert not done.wait(0.5)
    assert done.wait(60)
    thread.join(60)
    assert said == []


def test_a_folder_that_cannot_be_written_is_read_if_sound(tmp_path, monkeypatch):
    folder = fill(tmp_path / "k")

    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(module, "file_lock", refuse)
    with kept(folder) as place:
        assert place.path == folder
        assert names(place.path) == {"code.nbc", "index.nbi", RECORD}
    flip(folder)
    with kept(folder) as place:
        assert (place.path, place.reason) == (None, "Permission denied")


def test_a_file_where_the_folder_should_be(tmp_path):
    (tmp_path / "k").write_bytes(b"")
    with kept(tmp_path / "k") as place:
        assert place.path is None
        assert place.reason


def test_nothing_is_begun_on_a_full_disk(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_NEEDED", 1 << 60)
    with kept(tmp_path / "k") as place:
        assert place.path is None
        assert place.reason.endswith("MB are free")


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
    assert state_of(used) is state_of(young) is State.SOUND


def test_of_a_kind_those_used_last_stay_and_one_that_is_held(tmp_path):
    now = time.time()
    folders = [fill(tmp_path / f"copy-{i}") for i in range(6)]
    fill(tmp_path / "recycle-0")
    for i, folder in enumerate(folders):
        os.utime(folder, (now - 100 * i, now - 100 * i))
    with kept(folders[4]):
        forget_old(folders[5], most=3)
    left = {path.name for path in tmp_path.iterdir() if path.is_dir()}
    assert left == {"copy-0", "copy-1", "copy-4", "copy-5", "recycle-0"}


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
    assert folder.name.startswith("q8_0-")
    code = next(folder.rglob("*.nbc"))
    whole, time = code.read_bytes(), code.stat().st_mtime_ns
    folder_after_use()
    assert code.stat().st_mtime_ns == time  # loaded, not compiled
    code.write_bytes(whole[:-100] + bytes(100))
    assert folder_after_use() == folder
    assert code.stat().st_mtime_ns != time
