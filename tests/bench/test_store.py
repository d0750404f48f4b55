"""Result files: only appending changes them, and only one run at a time."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from exactspec.bench.store import ResultFile


@pytest.mark.parametrize("rest", ['{"b": 2', "{", '{"b": 2}', ""])
def test_reading_changes_nothing(tmp_path: Path, rest: str) -> None:
    path = tmp_path / "r.jsonl"
    path.write_text('{"a": 1}\n' + rest)
    before = path.read_bytes()
    whole = rest.endswith("}")
    assert ResultFile(path).lines == (({"a": 1}, {"b": 2}) if whole else ({"a": 1},))
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    "content", [b"my notes", b'{"a": 1}\nmy notes', b"\x00\xff" * 40, b"[1]", b"{\xff", b'{"a": 1}\n\n{"b": 2}\n']
)
def test_what_is_no_result_file_stays_as_it_is(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "notes"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="is not a JSON object"):
        ResultFile(path)
    assert path.read_bytes() == content


@pytest.mark.parametrize(("rest", "kept"), [('{"b": 2', []), ('{"b": 2}', [{"b": 2}])])
def test_appending_goes_on_behind_what_is_whole(tmp_path: Path, rest: str, kept: list[object]) -> None:
    path = tmp_path / "r.jsonl"
    path.write_text('{"a": 1}\n' + rest)
    out = ResultFile(path)
    out.append([{"c": 3}])
    out.append([{"d": 4}])
    assert list(out.lines) == [{"a": 1}, *kept, {"c": 3}, {"d": 4}]
    assert ResultFile(path).lines == out.lines
    assert path.read_text().endswith('\n{"c": 3}\n{"d": 4}\n')


def test_one_writer_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "r.jsonl"
    first, second = ResultFile(path), ResultFile(path)
    first.claim()
    assert path.exists()  # where it cannot be made that is known at once
    first.append([{"a": 1}, {"b": 2}])
    with pytest.raises(ValueError, match=r"r\.jsonl is being written by another run: wait for it, or give another"):
        second.claim()
    first.drop(first.lines[:1])  # another file has taken its place
    with pytest.raises(ValueError, match="another run"):
        second.claim()
    first.append([{"c": 3}])
    first.release()
    second.claim()
    assert second.lines == first.lines == ({"b": 2}, {"c": 3})
    second.release()
    assert path.exists()


def test_nothing_written_leaves_nothing(tmp_path: Path) -> None:
    out = ResultFile(tmp_path / "r.jsonl")
    out.claim()
    out.release()
    assert list(tmp_path.iterdir()) == []
    out.claim()
    out.append([{"a": 1}])
    out.release()
    assert ResultFile(tmp_path / "r.jsonl").lines == ({"a": 1},)


def test_a_killed_writer_holds_nothing(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    code = (
        "import os, sys, signal\nfrom pathlib import Path\nfrom exactspec.bench.store import ResultFile\n"
        "out = ResultFile(Path(sys.argv[1]))\nout.claim()\nout.append([{'a': 1}])\n"
        "print('ready', flush=True)\nsys.stdin.read()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=os.environ
    )
    assert process.stdout is not None
    assert process.stdout.readline().strip() == b"ready"
    out = ResultFile(path)
    with pytest.raises(ValueError, match="another run"):
        out.claim()
    process.kill()
    process.communicate()
    out.claim()
    assert out.lines == ({"a": 1},)


def test_a_place_that_cannot_be_written_is_said_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        ResultFile(tmp_path / "file" / "r.jsonl").claim()
    os.mkfifo(tmp_path / "pipe")
    for other in (tmp_path, tmp_path / "pipe", Path(os.devnull)):
        with pytest.raises(ValueError, match="is no file"):
            ResultFile(other)
        assert other.exists()
