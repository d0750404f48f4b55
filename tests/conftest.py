"""Fixtures that all tests share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from exactspec.target.hub import ModelStore
from exactspec.target.named import ModelError


@pytest.fixture(scope="session")
def named_model() -> Callable[[str], Path]:
    """The file of a named model, pulled once into the user's cache; skips where it cannot be had.

    For tests marked `model`:

        @pytest.mark.model
        def test_real(named_model):
            engine = Engine.from_pretrained(str(named_model("smollm2-135m")))
    """
    failed: dict[str, str] = {}

    def path(name: str) -> Path:
        if name not in failed:
            try:
                return ModelStore().resolve(name).path
            except ModelError as error:
                failed[name] = str(error)
        pytest.skip(f"{name} cannot be had here: {failed[name]}")

    return path
