"""The names of ways to draft, as they stand in `Speculation.draft`, ``--draft`` and the arms of a benchmark.

Besides `DRAFTS`: ``model:NAME`` drafts with another model, NAME being what ``--model`` takes; ``copyspec+model:NAME``
copies where the rule of `copyspec` finds something and asks the model elsewhere; ``auto+model:NAME`` puts the model's
tree beside those of `auto`, where it is worth its time. ``self`` drafts with the target
itself: slower than plain decoding, and a check that a drafter in step with its target is never rejected.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

DRAFTS = ("none", "copyspec", "copy", "recycle", "auto")
"""Names that need no second model."""

MODEL_FORMS = ("model:NAME", "copyspec+model:NAME", "auto+model:NAME")
"""How names with a model are shown to people."""

_FORM = re.compile(r"(?:(copyspec|auto)\+)?(?:model:(.+)|self)", re.DOTALL)


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


def check_draft(draft: object) -> None:
    """Raises ValueError unless `draft` is a name of a way to draft."""
    if not isinstance(draft, str) or (draft not in DRAFTS and model_draft(draft) is None):
        raise ValueError(f"draft must be one of {', '.join((*DRAFTS, *MODEL_FORMS))}, got {draft!r}")


def models_of(*drafts: object) -> tuple[str, ...]:
    """The models that these names need opened, each once; the target itself is open anyway."""
    found = (model_draft(draft) for draft in drafts if isinstance(draft, str))
    return tuple(dict.fromkeys(one.model for one in found if one is not None and one.model))
