"""Open a model file: its weights and its tokenizer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from exactspec.target.base import Target
from exactspec.target.gguf_file import GgufSource
from exactspec.target.safetensors_dir import SafetensorsSource
from exactspec.target.tokenizer import Tokenizer
from exactspec.target.tokenizer_gguf import gguf_tokenizer
from exactspec.target.tokenizer_json import folder_tokenizer
from exactspec.target.weights import WeightSource

HF_PREFIX = "hf:"
"""Before a folder or hub id: run it through transformers, in float."""


@dataclass(frozen=True, slots=True)
class OpenModel:
    """An open model file. ``source.close()`` lets go of the file; the tokenizer does not need it."""

    source: WeightSource
    tokenizer: Tokenizer


def open_model(path: Path | str, *, context: int | None = None, sha256: str | None = None) -> OpenModel:
    """Open a GGUF file, or a folder with config.json, ``*.safetensors`` and tokenizer.json.

    Reads headers and the tokenizer only, a second or less; weights come matrix by matrix from ``source``.
    `context`: tokens in use, which decides whether a sliding window matters (None: all that the file allows).
    `sha256`: hash of the weights file, where it is known; otherwise it is computed when first asked for.

    >>> model = open_model("smollm2-135m.gguf")                  # doctest: +SKIP
    >>> model.source.matrix("layers.0.q").shape                  # doctest: +SKIP
    (576, 576)

    Raises ValueError, one line that begins with the path: not a model, damaged, or a kind of model that is not
    supported, which is named.
    """
    path = Path(path)
    try:
        if path.is_dir():
            folder = SafetensorsSource(path, context=context, sha256=sha256)
            return OpenModel(folder, folder_tokenizer(path, folder.config.vocab_size))
        source = GgufSource(path, context=context, sha256=sha256)
        return OpenModel(source, gguf_tokenizer(source.header.metadata, source.config.vocab_size))
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror or error}") from None
    except ValueError as error:
        raise ValueError(f"{path}: {' '.join(str(error).split())}") from None


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
