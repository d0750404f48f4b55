"""Drafters: each proposes continuations in its own way; `make_drafter` gives the one a `Speculation` names."""

from __future__ import annotations

from exactspec.drafters.base import Drafter
from exactspec.drafters.copy import CopyDrafter
from exactspec.drafters.copyspec import CopySpecDrafter
from exactspec.drafters.store import Stores
from exactspec.params import Speculation

__all__ = ["CopyDrafter", "CopySpecDrafter", "make_drafter"]


def make_drafter(speculation: Speculation, *, stores: Stores | None = None) -> Drafter | None:
    """A new drafter for `speculation.draft`; None where nothing is drafted. It may serve any number of requests.

    `stores`: where `speculation.store` is kept; None: nothing is shared.

    `auto` drafts as `copy` does; they differ in the budget (`exactspec.budget.make_budget`).
    """
    match speculation.draft:
        case "none":
            return None
        case "copyspec":
            return CopySpecDrafter(gamma=speculation.gamma, block=speculation.block)
        case "copy" | "auto":
            store = None
            if stores is not None and speculation.store:
                store = stores.get(speculation.store, max_bytes=speculation.store_bytes)
            return CopyDrafter(min_match=speculation.min_match, store=store)
        case other:
            raise ValueError(f"no drafter is called {other!r}")
