"""What a training run is told: three tables, each with defaults that made the shipped layers.

Written as TOML with the tables [data], [layer] and [train]; every option that is not there keeps its default, one that
is not known is an error.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from exactspec.drafters.layer.card import DRAFT_FEATURES, PRECISIONS


def _require(ok: bool, what: str) -> None:
    if not ok:
        raise ValueError(f"training configuration: {what}")


@dataclass(frozen=True, slots=True, kw_only=True)
class DataConfig:
    """Where the text comes from.

    `self_prompts`: conversations that the target writes itself. `prompts`: "recipes" (built in), or a file of JSON
    lines, ``{"turns": ["...", ...]}`` or ``{"messages": [...]}``, whose user turns are asked. `max_answer`: tokens of
    one answer. `temperature`: of the answers that are not greedy; `greedy`: the share that is. `slots`: conversations
    in one forward. `corpus`: folders of text or code, or "library" for Python's own; `corpus_tokens`: how much of it,
    in pieces of `corpus_length`. `chats`: files of JSON lines ``{"messages": [...]}``, trained on answers alone.
    `held_out`: so many more prompts, from other material, that no stage trains on. `size_limit_gb`: of the features.
    """

    self_prompts: int = 10000
    prompts: str = "recipes"
    max_answer: int = 256
    temperature: float = 0.8
    greedy: float = 0.5
    slots: int = 32
    corpus: tuple[str, ...] = ("library",)
    corpus_tokens: int = 300_000
    corpus_length: int = 768
    chats: tuple[str, ...] = ()
    held_out: int = 200
    size_limit_gb: float = 8.0
    seed: int = 0

    def __post_init__(self) -> None:
        _require(self.self_prompts >= 0 and self.corpus_tokens >= 0, "amounts of text must not be negative")
        _require(self.self_prompts > 0 or self.corpus_tokens > 0 or bool(self.chats), "there is no text to train on")
        _require(self.max_answer >= 1 and self.slots >= 1 and self.held_out >= 1, "max_answer, slots, held_out >= 1")
        _require(self.corpus_length >= 16, "corpus_length must be at least 16 tokens")
        _require(self.temperature > 0, "temperature must be positive; greedy answers are a share of their own")
        _require(0 <= self.greedy <= 1, "greedy is a share between 0 and 1")
        _require(self.size_limit_gb > 0, "size_limit_gb must be positive")


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerConfig:
    """The layer's sizes; 0 takes what fits the target. See docs/longspec.md."""

    heads: int = 0
    kv_heads: int = 0
    head_dim: int = 0
    cross_heads: int = 0
    inner: int = 0
    head: int = 8192
    window: int = 512
    anchors: int = 4
    depth: int = 5
    rope_theta: float = 10000.0
    draft_feature: str = "own"
    precision: str = "bfloat16"

    def __post_init__(self) -> None:
        _require(self.draft_feature in DRAFT_FEATURES, f"draft_feature is one of {', '.join(DRAFT_FEATURES)}")
        _require(self.precision in PRECISIONS, f"precision is one of {', '.join(PRECISIONS)}")
        _require(self.depth >= 1 and self.window >= 1 and self.head >= 1, "depth, window and head must be at least 1")
        _require(self.anchors >= 0, "anchors must not be negative")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig:
    """The recipe. `tokens`: rows trained on, all in all. `batch`: rows of a step, in samples of `length`. `decay`: the
    last part of the run, in which the learning rate falls to 0. `lags`: weights of lag 1, 2, ... (as many as the
    layer's depth). `labels`: "target", its distribution and its best id, or "text", the text's next token. `soft`:
    weight of the target's distribution in the loss, the rest is its best id. `anchor_offset`:
    whether positions are shifted. `feature_dropout`: share of samples whose earlier features are hidden.
    `start_from`: folder of a layer of the same target and sizes that an earlier run made; its head and gains are kept.
    `self_share`: rows from the target's own texts, the rest is corpus. `evaluate_every`, `checkpoint_every`: steps.
    `patience`: evaluations without a better one before the run ends; 0: never."""

    tokens: int = 8_000_000
    batch: int = 1024
    length: int = 256
    learning_rate: float = 2e-3
    warmup: int = 100
    decay: float = 0.4
    weight_decay: float = 0.05
    clip: float = 1.0
    lags: tuple[float, ...] = (0.3, 0.2, 0.2, 0.15, 0.15)
    labels: str = "target"
    soft: float = 0.7
    anchor_offset: bool = True
    feature_dropout: float = 0.05
    self_share: float = 0.85
    start_from: str = ""
    evaluate_every: int = 500
    checkpoint_every: int = 200
    patience: int = 0
    seed: int = 0
    threads: int = 0

    def __post_init__(self) -> None:
        _require(self.tokens >= 1 and self.batch >= 1 and self.length >= 2, "tokens, batch >= 1 and length >= 2")
        _require(self.learning_rate > 0 and self.clip > 0 and self.weight_decay >= 0, "rates must be positive")
        _require(0 <= self.decay <= 1 and 0 <= self.soft <= 1 and 0 <= self.self_share <= 1, "shares lie in 0 .. 1")
        _require(self.labels in ("target", "text"), "labels is target or text")
        _require(0 <= self.feature_dropout < 1, "feature_dropout is a share below 1")
        _require(len(self.lags) >= 1 and min(self.lags) >= 0 and sum(self.lags) > 0, "lags are weights, not all 0")
        _require(self.evaluate_every >= 1 and self.checkpoint_every >= 1, "evaluate_every, checkpoint_every >= 1")
        _require(self.warmup >= 0 and self.patience >= 0 and self.threads >= 0, "counts must not be negative")

    @property
    def steps(self) -> int:
        return max(1, self.tokens // self.batch)


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    data: DataConfig = field(default_factory=DataConfig)
    layer: LayerConfig = field(default_factory=LayerConfig)
    train: TrainConfig = field(default_factory=TrainConfig)

    def __post_init__(self) -> None:
        _require(
            len(self.train.lags) == self.layer.depth,
            f"train.lags has {len(self.train.lags)} weights, layer.depth is {self.layer.depth}",
        )

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def read_config(path: Path) -> Config:
    """ValueError, one line, on a file that is no TOML, and on options that are not known or out of range."""
    try:
        with open(path, "rb") as file:
            return config_of(tomllib.load(file))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is no TOML: {error}") from None


def config_of(tables: Mapping[str, Any]) -> Config:
    """The configuration of nested tables (see `Config.as_dict`)."""
    kinds = {"data": DataConfig, "layer": LayerConfig, "train": TrainConfig}
    made: dict[str, Any] = {}
    for name, table in tables.items():
        _require(name in kinds and isinstance(table, Mapping), f"{name!r} is no table; there are {', '.join(kinds)}")
        made[name] = _filled(name, kinds[name], table)
    return Config(**made)


def _filled(name: str, kind: type[Any], table: Mapping[str, Any]) -> Any:
    known = {f.name: f for f in fields(kind)}
    values: dict[str, Any] = {}
    for option, value in table.items():
        _require(option in known, f"{name}.{option} is not known; there are {', '.join(known)}")
        wanted = known[option].type  # a text: annotations are not evaluated
        if isinstance(wanted, str) and wanted.startswith("tuple"):
            _require(isinstance(value, list | tuple), f"{name}.{option} must be a list")
            inner: type = float if "float" in wanted else str
            _require(all(_is(item, inner) for item in value), f"{name}.{option} must be a list of {inner.__name__}s")
            values[option] = tuple(inner(item) for item in value)
        else:
            inner = {"int": int, "float": float, "str": str, "bool": bool}[str(wanted)]
            _require(_is(value, inner), f"{name}.{option} must be of type {inner.__name__}, got {value!r}")
            values[option] = inner(value)
    return kind(**values)


def _is(value: object, kind: type) -> bool:
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    return isinstance(value, kind) and (kind is bool or not isinstance(value, bool))
