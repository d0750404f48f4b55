"""The card of a draft layer: which target it was trained for, its sizes, and how it came to be. JSON, checked in full.

Sizes below are named as in docs/longspec.md: W the target's hidden size, D and Dt the head sizes of the layer's own
attention and of the target's, F the inner size, H the ids of the trimmed head.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Final

from exactspec.drafters.layer.kernels.frame import MOST_TOP
from exactspec.target.weights import ModelConfig

FORMAT: Final = "exactspec-longspec/1"
PRECISIONS: Final = ("bfloat16", "int8")
DRAFT_FEATURES: Final = ("verified", "own")


@dataclass(frozen=True, slots=True, kw_only=True)
class CardTarget:
    """The target a layer belongs to. `sha256`: hex, of the target's weights file (`WeightSource.sha256`); `name` is
    for people only."""

    name: str
    family: str
    sha256: str
    vocab_size: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int

    @classmethod
    def of(cls, config: ModelConfig, *, sha256: str, name: str) -> CardTarget:
        return cls(
            name=name,
            family=config.family,
            sha256=sha256,
            vocab_size=config.vocab_size,
            hidden_size=config.hidden_size,
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CardSizes:
    """`heads`, `kv_heads`, `head_dim`: of the layer's own attention. `cross_heads`: query heads over the target's
    keys, a multiple of the target's kv heads. `inner`: of the feed-forward. `head`: ids of the trimmed head."""

    heads: int
    kv_heads: int
    head_dim: int
    cross_heads: int
    inner: int
    head: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """`window`: tokens a row sees of the layer's own keys, itself included. `anchors`: first positions that training
    left in place. `depth`: largest lag trained, so the depth to which drafts are good. `rope_theta`: of the layer's own
    keys. `embed_gain`, `feature_gain`: factors on the two inputs. `draft_feature`: what a node below the root takes as
    feature: "verified", that of the root; "own", its parent's output. `top_chunks`: of the target's keys that a row
    sees besides the first and the recent ones, unless told otherwise (see `sight`). `weights_sha256`: of the tensors'
    file. `training`: how it came to be (data, tokens, recipe, acceptance by depth and category, versions); for people.
    """

    target: CardTarget
    sizes: CardSizes
    window: int
    anchors: int
    depth: int
    rope_theta: float
    eps: float
    embed_gain: float
    feature_gain: float
    draft_feature: str
    precision: str
    top_chunks: int = 0
    weights_sha256: str = ""
    training: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        t, s = self.target, self.sizes
        counts = {f"target.{f.name}": getattr(t, f.name) for f in fields(t) if f.type == "int"}
        counts |= {f"sizes.{f.name}": getattr(s, f.name) for f in fields(s)}
        counts |= {"window": self.window, "depth": self.depth}
        for name, value in counts.items():
            if not (type(value) is int and value >= 1):
                raise ValueError(f"draft layer: {name} must be a whole number of at least 1, the card says {value!r}")
        if not (type(self.anchors) is int and self.anchors >= 0):
            raise ValueError(f"draft layer: anchors must be a whole number, the card says {self.anchors!r}")
        if not (type(self.top_chunks) is int and 0 <= self.top_chunks <= MOST_TOP):
            raise ValueError(f"draft layer: top_chunks must be 0 to {MOST_TOP}, the card says {self.top_chunks!r}")
        if s.heads % s.kv_heads or s.cross_heads % t.num_kv_heads:
            raise ValueError("draft layer: query heads must be a multiple of the kv heads they read")
        if s.head_dim % 2 or t.head_dim % 2:
            raise ValueError("draft layer: head sizes must be even: rotation needs pairs")
        if s.head > t.vocab_size:
            raise ValueError(f"draft layer: a head of {s.head} ids for a vocabulary of {t.vocab_size}")
        for name in ("rope_theta", "eps", "embed_gain", "feature_gain"):
            value = getattr(self, name)
            if not (isinstance(value, float | int) and math.isfinite(value) and value > 0):
                raise ValueError(f"draft layer: {name} must be positive, the card says {value!r}")
        for name, allowed in (("draft_feature", DRAFT_FEATURES), ("precision", PRECISIONS)):
            if getattr(self, name) not in allowed:
                raise ValueError(
                    f"draft layer: {name} must be one of {', '.join(allowed)}, the card says {getattr(self, name)!r}"
                )

    def to_json(self) -> str:
        return json.dumps({"format": FORMAT} | asdict(self), indent=2, ensure_ascii=False) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Card:
        """ValueError, one line, on anything but a card of this format with all its fields and no others."""
        try:
            data = json.loads(text)
        except ValueError as error:
            raise ValueError(f"draft layer: the card is no JSON ({error})") from None
        if not isinstance(data, dict) or data.pop("format", None) != FORMAT:
            raise ValueError(f"draft layer: the card is not of the format {FORMAT}")
        target, sizes = data.pop("target", None), data.pop("sizes", None)
        if not isinstance(target, dict) or not isinstance(sizes, dict):
            raise ValueError("draft layer: the card lacks target or sizes")
        try:
            return cls(target=CardTarget(**target), sizes=CardSizes(**sizes), **data)
        except TypeError as error:  # a field too many or too few
            raise ValueError(f"draft layer: the card does not fit its format ({error})") from None

    def check_target(self, config: ModelConfig, sha256: str) -> None:
        """ValueError, with the reason, unless the layer was trained for this target."""
        have = CardTarget.of(config, sha256=sha256, name=self.target.name)
        for f in fields(CardTarget):
            if f.name != "sha256" and getattr(have, f.name) != getattr(self.target, f.name):
                raise ValueError(
                    f"the draft layer is for {self.target.name}: its {f.name} is {getattr(self.target, f.name)}, "
                    f"this target's is {getattr(have, f.name)}"
                )
        if have.sha256 != self.target.sha256:
            raise ValueError(
                f"the draft layer was trained for other weights of {self.target.name}: sha256 "
                f"{self.target.sha256[:16]}..., this target's is {sha256[:16]}...; train one with 'exactspec train'"
            )
