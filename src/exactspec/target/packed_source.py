"""A model whose packed weights are kept on the disk: made at the first load, mapped at later ones."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from exactspec.target.base import FloatArray
from exactspec.target.kernels.compile import Packing
from exactspec.target.nibble_pack import saved_bytes
from exactspec.target.pack import PackedModel, pack_model, pack_parts
from exactspec.target.packed_store import WEIGHTS, ModelKey, PackedEntry, PackedStore
from exactspec.target.tokenizer_gguf import GgufVocabulary
from exactspec.target.weights import ModelConfig, WeightSource

_SPARE = 64 << 20  # bytes that stay free on the disk


class PackedSource:
    """A `WeightSource` that also gives the model as it is packed. `open`: opens the model file itself, which a model
    that is kept undamaged never needs. `entry`: what the store found, if anything. `vocabulary`: None for a folder."""

    __slots__ = ("_entry", "_key", "_open", "_origin", "_source", "_store", "_vocabulary", "config")

    def __init__(
        self,
        open: Callable[[], WeightSource],
        *,
        store: PackedStore,
        key: ModelKey,
        origin: Path,
        config: ModelConfig,
        vocabulary: GgufVocabulary | None = None,
        entry: PackedEntry | None = None,
    ) -> None:
        self.config = config
        self._open, self._store, self._key, self._origin = open, store, key, origin
        self._vocabulary, self._entry = vocabulary, entry
        self._source: WeightSource | None = None

    @property
    def sha256(self) -> str:
        return self._key.sha256

    def matrix(self, name: str, start: int = 0, stop: int | None = None) -> FloatArray:
        return self._opened().matrix(name, start, stop)

    def vector(self, name: str) -> FloatArray:
        return self._opened().vector(name)

    @property
    def weight_bytes(self) -> int:
        """Of the packed model: what is kept, else closely what will be."""
        from exactspec.memory import estimate

        if self._entry is not None:
            return self._entry.manifest.files[WEIGHTS].bytes
        return estimate(self.config, context=1).weights - saved_bytes(self._opened())

    def close(self) -> None:
        if self._source is not None:
            self._source.close()

    def packed(self, packing: Packing, threads: int, *, progress: Callable[[str], None] | None = None) -> PackedModel:
        """The packed model: mapped if it is kept; else packed, kept and mapped; in memory where it cannot be kept,
        which `progress` is told in one line. Raises ValueError as the model file's own reader does."""
        if self._entry is not None and self._entry.intact():
            return self._entry.model()
        broken = self._entry is not None  # its manifest was right, its weights are not
        self._entry = None
        say = progress or (lambda message: None)
        waited: list[None] = []

        def waiting() -> None:
            if not waited:
                waited.append(say("waiting for another process that packs this model"))

        try:
            with self._store.locked(self._key, waiting):
                kept = None if broken and not waited else self._store.find(self._key, threads=threads)
                if kept is None or not kept.intact():
                    damaged = self._store.is_damaged(self._key)
                    say("the kept model is damaged: packing it again" if damaged else "packing the weights, once")
                    self._build(packing, threads)
                    kept = self._store.find(self._key, threads=threads)
            if kept is not None and kept.intact():
                return kept.model()
            reason = "what was written there reads back otherwise"
        except OSError as error:
            reason = error.strerror or str(error)
        say(
            f"the packed weights cannot be kept in {self._store.root} ({reason}): every start packs them again; free "
            "space there, or set EXACTSPEC_HOME to a folder that can be written"
        )
        return pack_model(self._opened(), packing, threads)

    def _build(self, packing: Packing, threads: int) -> None:
        source = self._opened()
        need, free = self.weight_bytes + _SPARE, shutil.disk_usage(self._store.root).free
        if need > free:
            raise OSError(f"{need / 1e6:.0f} MB are needed, {free / 1e6:.0f} MB are free")
        self._store.build(
            self._key,
            origin=str(self._origin),
            config=self.config,
            parts=pack_parts(source, packing, threads),
            vocabulary=self._vocabulary,
        )

    def _opened(self) -> WeightSource:
        if self._source is None:
            self._source = self._open()
        return self._source


def load_packed(
    source: WeightSource, packing: Packing, threads: int, *, progress: Callable[[str], None] | None = None
) -> PackedModel:
    """The packed model of any source: kept if the source can keep it, else in memory."""
    if isinstance(source, PackedSource):
        return source.packed(packing, threads, progress=progress)
    return pack_model(source, packing, threads)
