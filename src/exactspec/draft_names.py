"""The names of ways to draft, as they stand in `Speculation.draft`, ``--draft`` and the arms of a benchmark.

Besides `DRAFTS`: ``model:NAME`` drafts with another model, NAME being what ``--model`` takes; ``copyspec+model:NAME``
copies where the rule of `copyspec` finds something and asks the model elsewhere; ``auto+model:NAME`` puts the model's
tree beside those of `auto`, where it is worth its time. ``self`` drafts with the target
itself: slower than plain decoding, and a check that a drafter in step with its target is never rejected.

``longspec`` drafts with the trained layer that is shipped for the target, ``longspec:FOLDER`` with the one in a folder;
``copy+recycle+longspec``, with a folder or without, puts its tree beside those of `copy+recycle`, where it is worth its
time. That is what `auto` does where a layer is shipped and rows are cheap enough for it to pay.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

LAYER = "longspec"
BESIDE = "copy+recycle"
DRAFTS = ("none", "copyspec", "copy", "recycle", BESIDE, LAYER, f"{BESIDE}+{LAYER}", "auto")
"""Names that need no second model."""

_SELF = "self"
_FIRST = ("copyspec", "auto")
MODEL_FORMS = tuple(first + model for model in ("model:NAME", _SELF) for first in ("", *(f"{f}+" for f in _FIRST)))
"""How names with a model are shown to people."""

LAYER_FORMS = (f"{LAYER}:FOLDER", f"{BESIDE}+{LAYER}:FOLDER")
"""How names with a layer's folder are shown to people."""

FORMS = (*DRAFTS, *LAYER_FORMS, *MODEL_FORMS)
"""All names, as they are shown to people."""

_FORM = re.compile(rf"(?:({'|'.join(_FIRST)})\+)?(?:model:(.+)|{_SELF})", re.DOTALL)
_LAYER_FORM = re.compile(r"(copy\+recycle\+)?longspec(?::(.+))?", re.DOTALL)


@dataclass(frozen=True, slots=True)
class ModelDraft:
    """A name with a model in it. `model`: "" for the target itself. `first`: what is asked before the model, "" for
    nothing; `auto` is asked beside it."""

    model: str
    first: str = ""


def model_draft(draft: str) -> ModelDraft | None:
    """The parts of a name with a model in it; None for any other.

    >>> model_draft("copyspec+model:smollm2-135m")
    ModelDraft(model='smollm2-135m', first='copyspec')
    >>> model_draft("copy") is None
    True
    """
    match = _FORM.fullmatch(draft)
    return None if match is None else ModelDraft(match[2] or "", match[1] or "")


@dataclass(frozen=True, slots=True)
class LayerDraft:
    """A name with a trained layer in it. `folder`: "" for the shipped one. `beside`: of what `copy+recycle` drafts."""

    folder: str
    beside: bool

    @property
    def layer(self) -> str:
        """What the layer is called among an engine's models."""
        return f"{LAYER}:{self.folder}" if self.folder else LAYER


def layer_draft(draft: str) -> LayerDraft | None:
    """The parts of a name with a trained layer in it; None for any other.

    >>> layer_draft("copy+recycle+longspec:out/layer")
    LayerDraft(folder='out/layer', beside=True)
    >>> layer_draft("recycle") is None
    True
    """
    match = _LAYER_FORM.fullmatch(draft)
    return None if match is None else LayerDraft(match[2] or "", match[1] is not None)


def check_draft(draft: object) -> None:
    """Raises ValueError unless `draft` is a name of a way to draft."""
    if not isinstance(draft, str) or not (draft in DRAFTS or model_draft(draft) or layer_draft(draft)):
        raise ValueError(f"draft must be one of {', '.join(FORMS)}, got {draft!r}")


def models_of(*drafts: object) -> tuple[str, ...]:
    """The models and layers that these names need opened, each once; the target itself is open anyway.

    >>> models_of("auto+model:a", "longspec:b", "copy", "model:a")
    ('a', 'longspec:b')
    """
    found: dict[str, None] = {}
    for draft in drafts:
        if not isinstance(draft, str):
            continue
        if (layer := layer_draft(draft)) is not None:
            found[layer.layer] = None
        elif (one := model_draft(draft)) is not None and one.model:
            found[one.model] = None
    return tuple(found)
