"""Packed models on the disk: what a first load makes, later loads map.

Layout below the home folder: ``packed/MODEL-CODE/`` holds ``manifest.json``, ``weights.bin`` and ``head.bin`` (a GGUF
file's vocabulary, and arrays of the configuration). MODEL stands for the model file's SHA-256, CODE for everything that
decides how it is packed: the package's sources around model files and the versions that they rest on. So a change of
either is another folder. Of one model, the two used last stay (two versions of the package, or two checkouts, may share
a home), the second while it is in use; the others are removed once a new one is there.

The manifest is the model's own dataclasses as JSON (see `plain`) with the place and checksum of every array file, and
a checksum of itself in its first line. A folder appears in one rename when all of it is on the disk: a killed process
leaves only a ``.partial-`` folder, which the next one removes. The lock ``.lock-MODEL-CODE`` is held while packing.
Anything that is not as it was written counts as not there.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args, get_type_hints

from exactspec.target.array_file import ArrayWriter, FileRecord, is_intact, open_arrays
from exactspec.target.filelock import file_lock
from exactspec.target.home import default_home
from exactspec.target.json_file import read_object
from exactspec.target.plain import decode, encode
from exactspec.target.small_files import try_write
from exactspec.target.stored import disk_use, sync
from exactspec.target.weights import ModelConfig

if TYPE_CHECKING:  # listing and deleting need neither the kernels nor a tokenizer
    from exactspec.target.pack import PackedModel
    from exactspec.target.tokenizer_gguf import GgufVocabulary

MANIFEST, HEAD, WEIGHTS = "manifest.json", "head.bin", "weights.bin"
_PARTIAL = ".partial-"
_FORMAT = 2
# What reading a folder of another form may raise.
_DAMAGED = (OSError, ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError)
_UNUSED_DAYS = 90  # a folder that was not used for so long goes when another is made
_OTHER_CODE_DAYS = 7  # so does, after these, the other version of the same model


@dataclass(frozen=True, slots=True, eq=False)
class Manifest:
    """`sha256`: of the model file. `origin`: its path, for people. `config`, `parts`, `vocabulary`: see `plain`."""

    format: int
    sha256: str
    origin: str
    config: Any
    vocabulary: Any
    parts: Any
    files: Mapping[str, FileRecord]


@dataclass(frozen=True, slots=True)
class ModelKey:
    """What a packed model was made from. `sha256`: of the model file. `extra`: whatever else changes how it is packed
    (the configuration of a folder, whose hash is of the weights alone)."""

    sha256: str
    extra: str = ""

    @property
    def short(self) -> str:
        return hashlib.sha256(f"{self.sha256} {self.extra}".encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedUse:
    """One entry of `PackedStore.list`. `sha256`, `origin`: see `Manifest`, "" where it cannot be read. `current`: this
    version of the package would use it."""

    path: Path
    bytes: int
    sha256: str
    origin: str
    current: bool

    def belongs_to(self, folder: Path) -> bool:
        """Whether it was made of `folder`, or of a file in it."""
        return bool(self.origin) and Path(self.origin).is_relative_to(folder)


class PackedEntry:
    """A packed model whose manifest and head were checked. Its weights are being checked while other things load;
    `intact` waits for the answer. `config`, `vocabulary` (None for a folder): as the model file gave them."""

    def __init__(self, folder: Path, manifest: Manifest, threads: int) -> None:
        from exactspec.target.tokenizer_gguf import GgufVocabulary

        self.folder, self.manifest = folder, manifest
        head = open_arrays(folder / HEAD, manifest.files[HEAD])
        self.config: ModelConfig = decode(ModelConfig, manifest.config, head)
        self.vocabulary: GgufVocabulary | None = decode(GgufVocabulary | None, manifest.vocabulary, head)
        weights = manifest.files[WEIGHTS]
        self._weights = open_arrays(folder / WEIGHTS, weights)
        pool = ThreadPoolExecutor(1, thread_name_prefix="exactspec-check")
        self._checked: Future[bool] = pool.submit(is_intact, folder / WEIGHTS, weights, threads=threads)
        pool.shutdown(wait=False)

    def intact(self) -> bool:
        """Whether every byte of the weights is the one that was written."""
        return self._checked.result()

    def model(self) -> PackedModel:
        """The weights, as views of the map."""
        from exactspec.target.pack import PackedModel, from_parts

        hints = get_type_hints(PackedModel)
        (layer,) = get_args(hints["layers"])
        kinds = {name: layer if name.startswith("layers.") else hints[name] for name in self.manifest.parts}
        return from_parts(
            self.config, {name: decode(kinds[name], part, self._weights) for name, part in self.manifest.parts.items()}
        )


def code_key() -> str:
    """Hash of all that decides how a model file is read and packed; a change of it makes new folders."""
    from exactspec import __version__

    digest = hashlib.sha256(f"{_FORMAT} {__version__}".encode())
    for package in ("numpy", "numba", "gguf", "safetensors"):
        digest.update(f" {package} {metadata.version(package)}".encode())
    here = Path(__file__).parent
    for source in sorted([*here.glob("*.py"), *(here / "kernels").glob("*.py")]):
        digest.update(source.name.encode() + b"\0" + source.read_bytes())
    return digest.hexdigest()[:16]


class PackedStore:
    """The packed models below a home folder. Safe to use from several processes and threads at once."""

    def __init__(self, home: Path | None = None) -> None:
        self.home = default_home() if home is None else home
        self.root = self.home / "packed"
        self._code = code_key()

    def folder(self, key: ModelKey) -> Path:
        return self.root / f"{key.short}-{self._code}"

    def find(self, key: ModelKey, *, threads: int = 1) -> PackedEntry | None:
        """The packed form of a model, or None where there is none or it is damaged. `threads` check its weights.
        Takes no lock and writes nothing but the time of its use."""
        folder = self.folder(key)
        try:
            manifest = _read_manifest(folder)
            if manifest.sha256 != key.sha256 or not is_intact(folder / HEAD, manifest.files[HEAD]):
                return None
            entry = PackedEntry(folder, manifest, threads)
        except _DAMAGED:
            return None
        with contextlib.suppress(OSError):
            os.utime(folder / MANIFEST)
        return entry

    def is_damaged(self, key: ModelKey) -> bool:
        """For a key that `find` gave nothing for: whether there is something, which must then be damaged. A folder is
        only ever seen whole."""
        return os.path.lexists(self.folder(key))

    @contextlib.contextmanager
    def locked(self, key: ModelKey, waiting: Callable[[], None] | None = None) -> Iterator[None]:
        """Held while a model is packed; `waiting` is called while another process does. Raises OSError."""
        self.root.mkdir(parents=True, exist_ok=True)
        with file_lock(self._lock(self.folder(key)), waiting):
            yield

    def build(
        self,
        key: ModelKey,
        *,
        origin: str,
        config: ModelConfig,
        parts: Iterable[tuple[str, Any]],
        vocabulary: GgufVocabulary | None,
    ) -> None:
        """Write a model, part by part as `parts` gives them, and remove what it replaces. Call it with the lock held.
        Raises OSError, and whatever `parts` raises; then nothing of it is left."""
        final = self.folder(key)
        partial = final.with_name(_PARTIAL + final.name)
        _remove(partial)  # of a process that was killed
        partial.mkdir(parents=True)
        try:
            with ArrayWriter(partial / HEAD) as writer:
                plain_config, plain_vocabulary = encode(config, writer.put), encode(vocabulary, writer.put)
                files = {HEAD: writer.finish()}
            with ArrayWriter(partial / WEIGHTS) as writer:
                plain_parts = {name: encode(part, writer.put) for name, part in parts}
                files[WEIGHTS] = writer.finish()
            manifest = Manifest(_FORMAT, key.sha256, origin, plain_config, plain_vocabulary, plain_parts, files)
            _write_manifest(partial, manifest)
            _remove(final)
            os.rename(partial, final)
            with contextlib.suppress(OSError):
                sync(self.root)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
        self._clean(final)

    def _clean(self, fresh: Path) -> None:
        """Remove what the model that was just made replaces, what nobody has used for long, and what killed processes
        left. What a process packs right now stays."""
        model = fresh.name.partition("-")[0]
        ages: dict[Path, float] = {}
        for use in self.list():
            with contextlib.suppress(OSError):
                ages[use.path] = time.time() - (use.path / MANIFEST).stat().st_mtime
        versions = sorted((age, path) for path, age in ages.items() if path != fresh and _model_of(path) == model)
        kept = {path for age, path in versions[:1] if age <= _OTHER_CODE_DAYS * 86400}
        for use in self.list():
            replaced = use.path != fresh and _model_of(use.path) == model and use.path not in kept
            if replaced or ages.get(use.path, 0.0) > _UNUSED_DAYS * 86400 or use.path.name.startswith(_PARTIAL):
                with contextlib.suppress(OSError), file_lock(self._lock(use.path), _busy):
                    shutil.rmtree(use.path, ignore_errors=True)

    def _lock(self, folder: Path) -> Path:
        return self.root / f".lock-{folder.name.removeprefix(_PARTIAL)}"

    def list(self) -> tuple[PackedUse, ...]:
        """All folders, also of other versions; unfinished ones have no origin."""
        uses = []
        with contextlib.suppress(OSError):
            for folder in sorted(self.root.iterdir()):
                if not folder.is_dir():
                    continue
                sha256 = origin = ""
                with contextlib.suppress(*_DAMAGED):
                    manifest = _read_manifest(folder)
                    sha256, origin = manifest.sha256, manifest.origin
                uses.append(
                    PackedUse(
                        path=folder,
                        bytes=disk_use(folder),
                        sha256=sha256,
                        origin=origin,
                        current=bool(sha256) and folder.name.endswith(f"-{self._code}") and folder.name[0] != ".",
                    )
                )
        return tuple(uses)

    def check(self, use: PackedUse) -> bool:
        """Whether all of it is as it was written; reads everything."""
        try:
            files = _read_manifest(use.path).files
        except _DAMAGED:
            return False
        return all(is_intact(use.path / name, record) for name, record in files.items())

    def delete(self, use: PackedUse) -> int:
        """Delete one entry of `list`; returns the bytes freed. A process that uses it may go on (POSIX). Raises
        OSError that names the folder."""
        try:
            shutil.rmtree(use.path)
        except OSError as error:  # its own name is that of a file inside, without the folder
            raise OSError(error.errno, error.strerror, str(use.path)) from None
        return use.bytes

    # ------------------------------------------------------------------------------- hashes of files given by path

    def known_hash(self, path: Path) -> str | None:
        """The SHA-256 of a file that was hashed before and has the same size, time and inode since."""
        try:
            known = read_object(self._hash_record(path))
            return str(known["sha256"]) if known["stamp"] == file_stamp(path) else None
        except (OSError, ValueError, TypeError, KeyError):
            return None

    def remember_hash(self, path: Path, sha256: str, stamp: str) -> None:
        """`stamp`: `file_stamp` from before the file was hashed. Where it cannot be written, it is hashed again."""
        record = {"path": str(path), "stamp": stamp, "sha256": sha256}
        with contextlib.suppress(OSError):  # of a path that cannot be made absolute
            try_write(self._hash_record(path), json.dumps(record))

    def _hash_record(self, path: Path) -> Path:
        name = hashlib.sha256(os.fsencode(path.absolute())).hexdigest()[:16]
        return self.home / "hashes" / f"{name}.json"


def file_stamp(path: Path) -> str:
    """Size, modification time and inode of a file; of a folder, those of all its files. Raises OSError."""
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    # A link to nowhere (an editor's lock, say) is no part of a model.
    stats = [(file.name, file.stat()) for file in files if not (file.is_symlink() and not file.exists())]
    return " ".join(f"{name}:{stat.st_size}:{stat.st_mtime_ns}:{stat.st_ino}" for name, stat in stats)


def _model_of(folder: Path) -> str:
    return folder.name.partition("-")[0]


def _busy() -> None:
    raise BlockingIOError


def _remove(path: Path) -> None:
    """Whatever it is, if it is there. Raises OSError."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _read_manifest(folder: Path) -> Manifest:
    checksum, _, body = (folder / MANIFEST).read_bytes().partition(b"\n")
    if checksum.decode("ascii", "replace") != hashlib.sha256(body).hexdigest():
        raise ValueError("the manifest is damaged")
    stored = json.loads(body)
    if stored["format"] != _FORMAT:
        raise ValueError("the manifest has another format")
    manifest: Manifest = decode(Manifest, stored, _no_array)
    return manifest


def _write_manifest(folder: Path, manifest: Manifest) -> None:
    body = json.dumps(encode(manifest, _no_array)).encode()
    with open(folder / MANIFEST, "wb") as file:
        file.write(hashlib.sha256(body).hexdigest().encode() + b"\n" + body)
        file.flush()
        os.fsync(file.fileno())
    sync(folder)


def _no_array(array: object) -> Any:
    raise TypeError("a manifest holds no arrays")
