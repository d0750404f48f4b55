"""``exactspec train longspec``: features, head, layer, training, the finished folder. Every part goes on where it was.

An output folder holds ``config.json`` (what the run was told), ``features/``, ``state-*/`` (checkpoints), ``logs/``
(TensorBoard) and ``layer/`` (the best layer so far, with its card).
"""

from __future__ import annotations

import json
import platform
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator

from exactspec.drafters.layer.card import Card, CardSizes, CardTarget
from exactspec.drafters.layer.checkpoint import Layer, read_layer, write_layer
from exactspec.drafters.layer.tensor_file import from_bfloat16, write_whole
from exactspec.target.weights import ModelConfig, WeightSource
from exactspec.training.config import Config, LayerConfig
from exactspec.training.evaluate import Acceptance
from exactspec.training.features import HELD_OUT, TRAIN
from exactspec.training.loop import Hooks, Progress, train
from exactspec.training.model import DraftLayer
from exactspec.training.samples import Ids, choose_head, prepare, without_repeats
from exactspec.training.shards import Document, read_documents

_CORPUS_KIND = "corpus"
_LOGS = "logs"
_MEASURED = 200  # documents that the gains are measured on
LAYER = "layer"


def layer_sizes(options: LayerConfig, config: ModelConfig) -> CardSizes:
    """Sizes of a layer for a target: its own attention and kv heads where nothing is said, an inner size of 8/3 of the
    width."""
    inner = -(-8 * config.hidden_size // 3 // 32) * 32
    return CardSizes(
        heads=options.heads or config.num_heads,
        kv_heads=options.kv_heads or config.num_kv_heads,
        head_dim=options.head_dim or config.head_dim,
        cross_heads=options.cross_heads or config.num_heads,
        inner=options.inner or inner,
        head=min(options.head, config.vocab_size),
    )


def new_card(options: LayerConfig, source: WeightSource, name: str, *, embed_gain: float, feature_gain: float) -> Card:
    config = source.config
    return Card(
        target=CardTarget.of(config, sha256=source.sha256, name=name),
        sizes=layer_sizes(options, config),
        window=options.window,
        anchors=options.anchors,
        depth=options.depth,
        rope_theta=options.rope_theta,
        eps=1e-6,
        embed_gain=embed_gain,
        feature_gain=feature_gain,
        draft_feature=options.draft_feature,
        precision=options.precision,
    )


def target_tables(source: WeightSource, head_ids: Ids) -> tuple[np.ndarray, np.ndarray]:
    """The target's embedding [vocab, W] and the head's rows of `head_ids`, both with the target's own factors."""
    c = source.config
    embed = source.matrix("embed")
    head = embed[head_ids] if c.tied_head else source.matrix("head")[head_ids]
    return embed * np.float32(c.embed_scale), head * np.float32(c.logit_scale)


def check_same(config: Config, folder: Path) -> None:
    """Keep what a run was told; ValueError if the folder holds one that was told otherwise about layer or recipe. Of
    the recipe, threads and how often something is written may change."""
    path = folder / "config.json"
    free = {"threads", "evaluate_every", "checkpoint_every", "patience"}

    def told(tables: dict[str, Any]) -> dict[str, Any]:
        recipe = {k: v for k, v in tables["train"].items() if k not in free}
        return {"layer": tables["layer"], "train": recipe}

    now = json.loads(json.dumps(config.as_dict()))
    if path.exists() and any(folder.glob("state-*")):
        before = json.loads(path.read_text(encoding="utf-8"))
        if told(before) != told(now):
            odd = [
                f"{table}.{k}"
                for table in ("layer", "train")
                for k in now[table]
                if k not in free and before[table].get(k) != now[table][k]
            ]
            raise ValueError(
                f"{folder} holds a run with another {', '.join(odd)}: take another --out, or go on as it was"
            )
    write_whole(path, json.dumps(now, indent=2).encode())


def read_all(folders: Sequence[Path], part: str) -> list[Document]:
    return [document for folder in folders for document in read_documents(folder / part)]


def train_layer(
    source: WeightSource,
    name: str,
    config: Config,
    folder: Path,
    *,
    features: Sequence[Path],
    max_position: int,
    tell: Callable[[str], None],
    stop_after: int | None = None,
) -> Progress:
    """Train on the features in some folders (each as `features.make_features` writes it). The best layer lies in
    ``folder/layer``. ValueError if there are none, or the folder holds another run."""
    folder.mkdir(parents=True, exist_ok=True)
    check_same(config, folder)
    if config.train.threads:
        torch.set_num_threads(config.train.threads)
    held = read_all(features, HELD_OUT)
    documents = without_repeats(read_all(features, TRAIN), held)
    if not documents or not held:
        raise ValueError(f"no features in {', '.join(map(str, features))}: make them first")
    earlier = read_layer(Path(config.train.start_from)) if config.train.start_from else None
    if earlier is not None:
        earlier.card.check_target(source.config, source.sha256)
    with closing(source):
        start = _start(folder, documents, source, layer_sizes(config.layer, source.config).head, earlier)
        head_ids = np.array(start["head_ids"], dtype=np.int64)
        embed, head = target_tables(source, head_ids)
    gains = {"embed_gain": float(start["embed_gain"]), "feature_gain": float(start["feature_gain"])}
    card = new_card(config.layer, source, name, **gains)
    layer = DraftLayer(card, source.config, torch.from_numpy(embed), torch.from_numpy(head), seed=config.train.seed)
    if earlier is not None:
        if earlier.card.sizes != card.sizes:
            raise ValueError(f"{config.train.start_from} has other sizes: {earlier.card.sizes}, asked for {card.sizes}")
        layer.load(earlier)
    prepared = [prepare(d, head_ids, labels=config.train.labels) for d in documents]
    own = [p for p in prepared if p.document.kind != _CORPUS_KIND]
    corpus = [p for p in prepared if p.document.kind == _CORPUS_KIND]
    unseen = [prepare(d, head_ids) for d in held if d.greedy]
    rows = {
        "own": sum(p.rows for p in own),
        "corpus": sum(p.rows for p in corpus),
        "held_out": sum(p.rows for p in unseen),
    }
    tell(f"rows to train on: {rows['own']:,} of the target's own text, {rows['corpus']:,} of corpus; " + _size(layer))

    def improved(progress: Progress, acceptance: Acceptance) -> None:
        facts = {
            "config": config.as_dict(),
            "rows": rows,
            "documents": {"own": len(own), "corpus": len(corpus), "held_out": len(unseen)},
            "kinds": {k: sum(p.document.kind == k for p in own) for k in sorted({p.document.kind for p in own})},
            "steps": progress.place.step,
            "rows_trained": sum(progress.place.rows),
            "seconds": round(progress.seconds, 1),
            "held_out": {
                "tau_chain": acceptance.tau,
                "acceptance_by_depth": list(acceptance.by_depth),
                "tau_chain_by_kind": acceptance.by_kind,
                "tokens": acceptance.tokens,
            },
            "target_coverage": round(float(np.mean(np.concatenate([p.best >= 0 for p in unseen]))), 4),
            "versions": {"python": platform.python_version(), "torch": torch.__version__, "numpy": np.__version__},
        }
        write_layer(folder / LAYER, replace(layer.to_layer(head_ids), card=replace(card, training=facts)))

    accelerator = Accelerator(cpu=not torch.cuda.is_available())
    with closing(_writer(folder / _LOGS, accelerator)) as writer:
        return train(
            layer,
            own,
            corpus,
            unseen,
            config.train,
            folder,
            longest=max_position,
            hooks=Hooks(tell=tell, log=writer.log, improved=improved),
            stop_after=stop_after,
            accelerator=accelerator,
        )


def _start(
    folder: Path, documents: Sequence[Document], source: WeightSource, size: int, earlier: Layer | None
) -> dict[str, Any]:
    """What is decided once a run, from the features that are there at its start: the ids of the head, and the gains
    that bring both inputs to a root mean square of 1. More features later must not move them. Those of an `earlier`
    layer are kept."""
    path = folder / "start.json"
    if path.exists():
        start: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if len(start["head_ids"]) != size:
            raise ValueError(f"{path} has {len(start['head_ids'])} ids, layer.head asks for {size}: take another --out")
        return start
    if earlier is not None:
        gains = {"embed_gain": earlier.card.embed_gain, "feature_gain": earlier.card.feature_gain}
        return {"head_ids": earlier.head_ids.tolist(), **gains}
    some = documents[:_MEASURED]
    tokens, counts = np.unique(np.concatenate([d.tokens for d in some]), return_counts=True)
    embed = np.stack([source.matrix("embed", int(t), int(t) + 1)[0] for t in tokens]) * source.config.embed_scale
    squares = float(np.average(np.mean(np.square(embed), axis=1), weights=counts))
    features = np.concatenate([from_bfloat16(d.hidden) for d in some])
    start = {
        "head_ids": choose_head(documents, source.config.vocab_size, size).tolist(),
        "embed_gain": squares**-0.5,
        "feature_gain": float(np.mean(np.square(features))) ** -0.5,
    }
    write_whole(path, json.dumps(start).encode())
    return start


class _Writer:
    """TensorBoard where it is installed."""

    def __init__(self, writer: Any) -> None:
        self._writer = writer

    def log(self, step: int, values: dict[str, float]) -> None:
        if self._writer is not None:
            for name, value in values.items():
                self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()


def _writer(folder: Path, accelerator: Accelerator) -> _Writer:
    if not accelerator.is_main_process:
        return _Writer(None)
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ModuleNotFoundError:
        return _Writer(None)
    return _Writer(SummaryWriter(str(folder)))


def _size(layer: DraftLayer) -> str:
    weights = sum(p.numel() for p in layer.parameters())
    return f"layer of {weights / 1e6:.1f} million weights, head of {layer.head.numel() / 1e6:.1f} million"
