"""Drafters: each proposes continuations in its own way; `make_drafter` gives the one a `Speculation` names."""

from __future__ import annotations

from collections.abc import Mapping

from exactspec.draft_names import ModelDraft, model_draft
from exactspec.drafters.base import Drafter
from exactspec.drafters.copy import CopyDrafter
from exactspec.drafters.copyspec import CopySpecDrafter
from exactspec.drafters.first_of import FirstOf
from exactspec.drafters.model import ModelDrafter
from exactspec.drafters.recycle import RecycleDrafter
from exactspec.drafters.store import Stores
from exactspec.drafters.union import UnionDrafter
from exactspec.params import Speculation

__all__ = [
    "CopyDrafter",
    "CopySpecDrafter",
    "FirstOf",
    "ModelDrafter",
    "RecycleDrafter",
    "UnionDrafter",
    "make_drafter",
]


def make_drafter(
    speculation: Speculation, *, stores: Stores | None = None, models: Mapping[str, ModelDrafter] | None = None
) -> Drafter | None:
    """A new drafter for `speculation.draft`; None where nothing is drafted. It may serve any number of requests.

    `stores`: where `speculation.store` is kept; None: nothing is shared. `models`: by the names that ``model:NAME``
    gives them ("": the target itself). Raises ValueError for a model that is not among them.

    `auto` is all that costs next to nothing: what `copy` and `recycle` propose, as one tree.
    """
    if (asked := model_draft(speculation.draft)) is not None:
        return _with_model(asked, speculation, stores, models or {})
    match speculation.draft:
        case "none":
            return None
        case "copyspec":
            return CopySpecDrafter(gamma=speculation.gamma, block=speculation.block)
        case "copy":
            return _copy(speculation, stores)
        case "auto":
            return UnionDrafter((_copy(speculation, stores),), RecycleDrafter())
        case "recycle":
            return RecycleDrafter()
        case other:
            raise ValueError(f"no drafter is called {other!r}")


def _copy(speculation: Speculation, stores: Stores | None) -> CopyDrafter:
    store = None
    if stores is not None and speculation.store:
        store = stores.get(speculation.store, max_bytes=speculation.store_bytes)
    return CopyDrafter(min_match=speculation.min_match, store=store)


def _with_model(
    asked: ModelDraft, speculation: Speculation, stores: Stores | None, models: Mapping[str, ModelDrafter]
) -> Drafter:
    model = models.get(asked.model)
    if model is None:
        raise ValueError(
            f"draft {speculation.draft!r} needs the model {asked.model!r}, which is not open: "
            "name it when the engine is made (draft or draft_models)"
        )
    drafter = model.with_length(speculation.draft_length or None)
    if not asked.first:
        return drafter
    if asked.first == "auto":
        return UnionDrafter((_copy(speculation, stores),), RecycleDrafter(), costly=(drafter,))
    return FirstOf((CopySpecDrafter(gamma=speculation.gamma, block=speculation.block), drafter))
