"""Fixtures that all tests share."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from exactspec.target.hub import ModelStore
from exactspec.target.named import DEFAULT_MODEL, ModelError

if os.environ.get("EXACTSPEC_TEST_DEVICE", "cpu") == "cpu":
    # Triton looks once, when it is imported: the kernels of target/cuda run in its interpreter.
    os.environ["TRITON_INTERPRET"] = "1"


@pytest.fixture(scope="session")
def named_model() -> Callable[[str], Path]:
    """The file of a named model; skips, with the reason, where it cannot be had.

    The default model (98 MB) is pulled once into the user's cache. The others take gigabytes: they are used where
    they are already there (``exactspec pull NAME``).

    For tests marked `model`:

        @pytest.mark.model
        def test_real(named_model):
            engine = Engine.from_pretrained(str(named_model("smollm2-135m")))
    """
    failed: dict[str, str] = {}

    def path(name: str) -> Path:
        if name not in failed:
            store = ModelStore()
            if name != DEFAULT_MODEL and name not in {use.name for use in store.list() if use.complete}:
                failed[name] = f"not in the cache; 'exactspec pull {name}' gets it"
            else:
                try:
                    return store.resolve(name).path
                except ModelError as error:
                    failed[name] = str(error)
        pytest.skip(f"{name} cannot be had here: {failed[name]}")

    return path
