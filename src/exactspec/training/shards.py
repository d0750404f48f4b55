"""Features on disk: what the target computed for its own and other texts, in files of some 30 MB.

A document of m rows: ``tokens`` [m] that went through the target, and of each row the target's hidden state after its
final norm, keys and values of its last layer (as its cache holds them: rotated, bfloat16), its best ids with their
logits, and whether the row is trained on. Hidden states are those of the target's own forward and are not computed
again in training.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from exactspec.drafters.layer.tensor_file import map_tensors, tensor_bytes, write_whole

FORMAT: Final = "exactspec-features/1"
_PATTERN = "features-{:05d}.safetensors"
_FIELDS: Final = ("tokens", "trained", "hidden", "keys", "values", "topk_ids", "topk_logits")

Bits = npt.NDArray[np.uint16]


@dataclass(frozen=True, slots=True, eq=False)
class Document:
    """One text. Row q is token q at position q.

    `name`: unique in a folder. `kind`: of its prompt or source. `greedy`: the text after each trained row is the
    target's own best. `after`: the token that follows the last row, -1 where it is not known. `tokens` int32 [m].
    `trained` uint8 [m]: 1 where the row is in the loss, which it is if the *next* token is to be drafted. `hidden`
    bfloat16 [m, W]. `keys`, `values` bfloat16 [m, Kt, Dt]. `topk_ids` int32 [m, k], -1 where nothing was asked,
    `topk_logits` float32 [m, k].
    """

    name: str
    kind: str
    greedy: bool
    after: int
    tokens: npt.NDArray[np.int32]
    trained: npt.NDArray[np.uint8]
    hidden: Bits
    keys: Bits
    values: Bits
    topk_ids: npt.NDArray[np.int32]
    topk_logits: npt.NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.tokens)


class FeatureWriter:
    """Appends documents to a folder; a file is whole or absent. `identity`: of the target, the same for all files.

    What was added since the last file is lost when the process ends: `names` tells what is there.
    Raises ValueError if the folder holds features of another target.
    """

    def __init__(self, folder: Path, *, identity: str, tokens_per_file: int = 16384) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._identity, self._most = folder, identity, tokens_per_file
        self._waiting: list[Document] = []
        self.names: set[str] = set()
        self.tokens = 0
        self.nbytes = 0
        self._next = 0
        for path in feature_files(folder):
            _, metadata = map_tensors(path)
            _check(path, metadata, identity)
            documents = json.loads(metadata["documents"])
            self.names |= {entry["name"] for entry in documents}
            self.tokens += sum(entry["rows"] for entry in documents)
            self.nbytes += path.stat().st_size
            self._next = int(path.stem.split("-")[1]) + 1

    def add(self, document: Document) -> None:
        self._waiting.append(document)
        self.names.add(document.name)
        self.tokens += len(document)
        if sum(map(len, self._waiting)) >= self._most:
            self.flush()

    def flush(self) -> None:
        if not self._waiting:
            return
        path = self._folder / _PATTERN.format(self._next)
        data = _packed(self._waiting, self._identity)
        write_whole(path, data)
        self.nbytes += len(data)
        self._next += 1
        self._waiting = []


def feature_files(folder: Path) -> list[Path]:
    return sorted(folder.glob("features-*.safetensors"))


def _check(path: Path, metadata: dict[str, str], identity: str | None) -> None:
    if metadata.get("format") != FORMAT:
        raise ValueError(f"{path} is no file of features: take another folder")
    if identity is not None and metadata["identity"] != identity:
        raise ValueError(
            f"{path} holds features of another target ({metadata['identity']}, now {identity}): take another folder"
        )


def _packed(documents: Sequence[Document], identity: str) -> bytes:
    arrays = {name: np.concatenate([getattr(d, name) for d in documents]) for name in _FIELDS}
    entries = [
        {"name": d.name, "kind": d.kind, "greedy": d.greedy, "after": d.after, "rows": len(d)} for d in documents
    ]
    metadata = {"format": FORMAT, "identity": identity, "documents": json.dumps(entries)}
    return tensor_bytes(arrays, metadata)


def read_documents(folder: Path, *, identity: str | None = None) -> Iterator[Document]:
    """All documents of a folder, in the order in which they were written; arrays are views of the mapped files.

    `identity`: ValueError if a file is of another target. None: any target, but one.
    """
    for path in feature_files(folder):
        arrays, metadata = map_tensors(path)
        _check(path, metadata, identity)
        identity = metadata["identity"]
        at = 0
        for entry in json.loads(metadata["documents"]):
            end = at + entry["rows"]
            parts: dict[str, Any] = {name: arrays[name][at:end] for name in _FIELDS}
            yield Document(entry["name"], entry["kind"], entry["greedy"], entry.get("after", -1), **parts)
            at = end
