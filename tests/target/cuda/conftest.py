"""Where the tests of the GPU target run: on a GPU with EXACTSPEC_TEST_DEVICE=cuda, else on the CPU in Triton's
interpreter (the tests' own conftest.py chooses it before anything imports triton)."""

from __future__ import annotations

import os

import pytest


@pytest.fixture(scope="session")
def device() -> str:
    """ "cpu" (interpreted) or what EXACTSPEC_TEST_DEVICE names; skips without torch or triton."""
    pytest.importorskip("torch", reason="the GPU target needs torch: pip install 'exactspec[gpu]'")
    pytest.importorskip("triton", reason="the GPU target needs triton, which this platform or installation lacks")
    return os.environ.get("EXACTSPEC_TEST_DEVICE", "cpu")
