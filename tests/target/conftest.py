"""Where the tests of model files find real ones."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from tiny_tokenizers import Trained, train


@pytest.fixture(scope="session")
def model_file(named_model: Callable[[str], Path]) -> Callable[[str], Path]:
    """The GGUF file of a named model: ``NAME.gguf`` in the folder EXACTSPEC_TEST_MODELS, else the user's cache."""
    folder = os.environ.get("EXACTSPEC_TEST_MODELS")

    def path(name: str) -> Path:
        if folder and (Path(folder) / f"{name}.gguf").is_file():
            return Path(folder) / f"{name}.gguf"
        return named_model(name)

    return path


@pytest.fixture(scope="session")
def trained() -> Trained:
    """Vocabulary and merges of a byte-level BPE trained on the test texts."""
    return train()
