"""Open a model file: its weights and its tokenizer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from exactspec.target.base import Target
from exactspec.target.packed_source import PackedSource
from exactspec.target.packed_store import ModelKey, PackedStore, file_stamp
from exactspec.target.plain import fingerprint
from exactspec.target.settings import one_line
from exactspec.target.tokenizer import Tokenizer
from exactspec.target.tokenizer_gguf import GgufVocabulary, gguf_vocabulary, tokenizer_of
from exactspec.target.weights import WeightSource

if TYPE_CHECKING:
    from exactspec.target.gguf_file import GgufSource

_CHECKING_THREADS = 2

HF_PREFIX = "hf:"
"""Before a folder or hub id: run it through transformers, in float."""


@dataclass(frozen=True, slots=True)
class OpenModel:
    """An open model file. ``source.close()`` lets go of the file; the tokenizer does not need it."""

    source: WeightSource
    tokenizer: Tokenizer


def open_model(path: Path | str, *, sha256: str | None = None, packed: PackedStore | None = None) -> OpenModel:
    """Open a GGUF file, or a folder with config.json, ``*.safetensors`` and tokenizer.json.

    Reads headers and the tokenizer only, a second or less; weights come matrix by matrix from ``source``.
    `sha256`: hash of the weights file, where it is known; otherwise it is computed when first asked for.
    `packed`: where packed models are kept. Then ``source`` is a `PackedSource`, and a GGUF file that is kept there is
    not opened at all.

    >>> model = open_model("smollm2-135m.gguf")                  # doctest: +SKIP
    >>> model.source.matrix("layers.0.q").shape                  # doctest: +SKIP
    (576, 576)

    Raises ValueError, one line that begins with the path: not a model, damaged, or a kind of model that is not
    supported, which is named.
    """
    path = Path(path)
    try:
        if path.is_dir():
            return _open_folder(path, sha256, packed)
        return _open_gguf(path, sha256, packed)
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror or error}") from None
    except ValueError as error:
        raise ValueError(f"{path}: {one_line(error)}") from None


def open_float(
    name: str,
    *,
    dtype: str | None = None,
    device: str | None = None,
    threads: int | None = None,
    context: int | None = None,
    progress: Callable[[str], None] | None = None,
) -> tuple[Target, Tokenizer]:
    """The float target and the tokenizer of ``hf:FOLDER`` or ``hf:ORG/NAME``; see `exactspec.target.hf_open.open_hf`.

    `dtype` None: "float32"; `device` None: "cpu". Raises ValueError also where torch or transformers is missing.
    """
    try:
        from exactspec.target.hf_open import open_hf
    except ModuleNotFoundError as error:
        raise ValueError(
            f"{name} needs the package {error.name}: pip install 'exactspec[hf]' (torch and transformers)"
        ) from None
    return open_hf(
        name.removeprefix(HF_PREFIX),
        dtype=dtype or "float32",
        device=device or "cpu",
        threads=threads,
        context=context,
        progress=progress,
    )


def _open_gguf(path: Path, sha256: str | None, packed: PackedStore | None) -> OpenModel:
    if packed is None:
        source, vocabulary = _read_gguf(path, sha256)
        return OpenModel(source, tokenizer_of(vocabulary))
    sha256 = sha256 or packed.known_hash(path)
    entry = packed.find(ModelKey(sha256), threads=_CHECKING_THREADS) if sha256 else None
    if entry is not None and entry.vocabulary is not None:
        kept = PackedSource(
            lambda: _read_gguf(path, sha256)[0],
            store=packed,
            key=ModelKey(entry.manifest.sha256),
            origin=path,
            config=entry.config,
            vocabulary=entry.vocabulary,
            entry=entry,
        )
        return OpenModel(kept, tokenizer_of(entry.vocabulary))
    source, vocabulary = _read_gguf(path, sha256)
    tokenizer = tokenizer_of(vocabulary)
    fresh = PackedSource(
        lambda: source,
        store=packed,
        key=ModelKey(_hash(path, source, sha256, packed)),
        origin=path,
        config=source.config,
        vocabulary=vocabulary,
        entry=entry,
    )
    return OpenModel(fresh, tokenizer)


def _read_gguf(path: Path, sha256: str | None) -> tuple[GgufSource, GgufVocabulary]:
    from exactspec.target.gguf_file import GgufSource  # what a kept model does not need is imported where it is used

    source = GgufSource(path, sha256=sha256)
    return source, gguf_vocabulary(source.header.metadata, source.config.vocab_size)


def _open_folder(path: Path, sha256: str | None, packed: PackedStore | None) -> OpenModel:
    from exactspec.target.safetensors_dir import SafetensorsSource
    from exactspec.target.tokenizer_json import folder_tokenizer

    if packed is not None:
        sha256 = sha256 or packed.known_hash(path)
    source = SafetensorsSource(path, sha256=sha256)
    tokenizer = folder_tokenizer(path, source.config.vocab_size)
    if packed is None:
        return OpenModel(source, tokenizer)
    # The hash of a folder is of its weights; what else decides is in the configuration.
    key = ModelKey(_hash(path, source, sha256, packed), extra=fingerprint(source.config))
    entry = packed.find(key, threads=_CHECKING_THREADS)
    kept = PackedSource(lambda: source, store=packed, key=key, origin=path, config=source.config, entry=entry)
    return OpenModel(kept, tokenizer)


def _hash(path: Path, source: WeightSource, sha256: str | None, packed: PackedStore) -> str:
    if sha256 is not None:
        return sha256
    stamp = file_stamp(path)
    found = source.sha256
    packed.remember_hash(path, found, stamp)
    return found
