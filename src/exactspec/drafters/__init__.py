"""Drafters: each proposes continuations in its own way; `make_drafter` gives the one a `Speculation` names."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TypeAlias

from exactspec.budget import TABLE, Cost
from exactspec.draft_names import BESIDE, LAYER, ModelDraft, layer_draft, model_draft
from exactspec.drafters.base import Drafter
from exactspec.drafters.copy import CopyDrafter
from exactspec.drafters.copyspec import CopySpecDrafter
from exactspec.drafters.first_of import FirstOf
from exactspec.drafters.layers import OpenLayer
from exactspec.drafters.model import ModelDrafter
from exactspec.drafters.recycle import RecycleDrafter
from exactspec.drafters.store import Stores
from exactspec.drafters.union import UnionDrafter
from exactspec.drafters.worth import LEAST_GAIN
from exactspec.params import Speculation

_log = logging.getLogger(__name__)

__all__ = [
    "CopyDrafter",
    "CopySpecDrafter",
    "FirstOf",
    "ModelDrafter",
    "RecycleDrafter",
    "UnionDrafter",
    "make_drafter",
]


Models: TypeAlias = Mapping[str, ModelDrafter | OpenLayer]


def make_drafter(
    speculation: Speculation, *, stores: Stores | None = None, models: Models | None = None, cost: Cost | None = None
) -> Drafter | None:
    """A new drafter for `speculation.draft`; None where nothing is drafted. It may serve any number of requests.

    `stores`: where `speculation.store` is kept; None: nothing is shared. `models`: by the names that ``model:NAME``
    gives them ("": the target itself), and layers by theirs ("longspec": the shipped one). Raises ValueError for one
    that is not among them. `cost`: of the target's rows (None: the built-in table).

    `auto` is what `copy` and `recycle` propose, which costs next to nothing, as one tree; and beside it, where it is
    worth its time, that of the shipped layer, if there is one, and rows are cheap enough here for it to pay at all.
    """
    models, cost = models or {}, cost or TABLE
    if (asked := model_draft(speculation.draft)) is not None:
        return _with_model(asked, speculation, stores, models, cost)
    if (layer := layer_draft(speculation.draft)) is not None:
        found = models.get(layer.layer)
        if not isinstance(found, OpenLayer):
            what = f"the layer in {layer.folder}" if layer.folder else "a layer that is shipped for the model"
            raise ValueError(
                f"draft {speculation.draft!r} needs {what}, which is not open: name it when the engine is made "
                "(draft or draft_models)"
            )
        if not layer.beside:
            return found.drafter()
        return UnionDrafter((_copy(speculation, stores),), RecycleDrafter(), costly=(found.drafter(),))
    match speculation.draft:
        case "none":
            return None
        case "copyspec":
            return CopySpecDrafter(gamma=speculation.gamma, block=speculation.block)
        case "copy":
            return _copy(speculation, stores)
        case "auto":
            return UnionDrafter((_copy(speculation, stores),), RecycleDrafter(), costly=_shipped(models, cost))
        case str(draft) if draft == BESIDE:
            return UnionDrafter((_copy(speculation, stores),), RecycleDrafter())
        case "recycle":
            return RecycleDrafter()
        case other:
            raise ValueError(f"no drafter is called {other!r}")


def _shipped(models: Models, cost: Cost) -> tuple[Drafter, ...]:
    """What `auto` asks besides; a shipped layer that cannot be used is no reason not to start. One that can hardly pay
    here is not even opened."""
    found = models.get(LAYER)
    if not isinstance(found, OpenLayer):
        return ()
    try:
        return (found.drafter(),) if found.expected_gain(cost) >= LEAST_GAIN else ()
    except ValueError as error:
        _log.warning("the shipped draft layer is left out: %s", error)
        return ()


def _copy(speculation: Speculation, stores: Stores | None) -> CopyDrafter:
    store = None
    if stores is not None and speculation.store:
        store = stores.get(speculation.store, max_bytes=speculation.store_bytes)
    return CopyDrafter(min_match=speculation.min_match, store=store)


def _with_model(
    asked: ModelDraft, speculation: Speculation, stores: Stores | None, models: Models, cost: Cost
) -> Drafter:
    model = models.get(asked.model)
    if not isinstance(model, ModelDrafter):
        raise ValueError(
            f"draft {speculation.draft!r} needs the model {asked.model!r}, which is not open: "
            "name it when the engine is made (draft or draft_models)"
        )
    drafter = model.with_length(speculation.draft_length or None)
    if not asked.first:
        return drafter
    if asked.first == "auto":
        return UnionDrafter((_copy(speculation, stores),), RecycleDrafter(), costly=(*_shipped(models, cost), drafter))
    return FirstOf((CopySpecDrafter(gamma=speculation.gamma, block=speculation.block), drafter))
