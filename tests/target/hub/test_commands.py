"""``exactspec pull`` and ``exactspec models``: what they print and how they fail."""

from __future__ import annotations

import io
import json

import numpy as np
import pytest
from tiny_weights import RandomWeights

from exactspec.cli.main import main
from exactspec.cli.services import Services
from exactspec.drafters.layer.shipped import cards
from exactspec.target.named import NAMED_MODELS
from exactspec.target.packed_store import ModelKey, PackedStore


@pytest.fixture
def run(monkeypatch, tmp_path):
    monkeypatch.setenv("EXACTSPEC_HOME", str(tmp_path / "a home"))

    def call(*argv: str) -> tuple[int, str, str]:
        services = Services(stdin=io.BytesIO(), stdout=io.StringIO(), stderr=io.StringIO())
        code = main(argv, services=services)
        return code, services.stdout.getvalue(), services.stderr.getvalue()

    return call


@pytest.fixture
def stored(make_store, index, tmp_path):
    return make_store(index).pull("tiny")


def test_models_without_anything_stored(run, tmp_path):
    code, out, _ = run("models")
    assert code == 0
    lines = out.splitlines()
    rows = lines[1:-1]
    assert [line.split()[0] for line in rows if "can be pulled" in line] == list(NAMED_MODELS)
    layers = [line.split()[0] for line in rows if "draft layer" in line]
    assert layers == [card.target.name for card in cards().values()]
    assert len(rows) == len(NAMED_MODELS) + len(layers)
    assert "cannot be run" not in out
    assert lines[-1] == f"0 MB in {tmp_path / 'a home'}"


def test_models_lists_and_deletes(run, stored):
    code, out, _ = run("models", "--json")
    (use,) = json.loads(out)["models"]
    assert (code, use["name"], use["complete"], use["path"]) == (0, "tiny", True, str(stored.path.parent))
    assert "tiny" in run("models")[1]
    code, out, err = run("models", "--delete", "tiny")
    assert (code, out) == (0, "")
    assert err.startswith("deleted tiny: ")
    assert not stored.path.exists()
    code, out, err = run("models", "--delete", "tiny")
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert "stored: none" in err


def test_pull_of_an_unknown_name(run):
    code, out, err = run("pull", "nix")
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert "smollm2-135m, qwen2.5-coder-0.5b" in err
    assert "Traceback" not in err


def test_packed_weights_are_listed_and_deleted_with_their_model(run, stored, tmp_path):
    home = stored.path.parents[2]
    store = PackedStore(home)
    for sha256, origin in (("a" * 64, str(stored.path)), ("b" * 64, "/elsewhere/other.gguf")):
        config = RandomWeights().config
        store.build(ModelKey(sha256), origin=origin, config=config, parts=[("x", np.zeros(9))], vocabulary=None)
    (home / "packed" / ".partial-0-0").mkdir()
    lines = [line.split() for line in run("models")[1].splitlines()]
    assert ["tiny", "0", "MB", "packed"] in lines
    assert ["/elsewhere/other.gguf", "0", "MB", "packed"] in lines
    assert [".partial-0-0", "0", "MB", "packed,", "unfinished"] in lines
    kept = json.loads(run("models", "--json")[1])["packed"]
    assert {one["origin"]: one["current"] for one in kept} == {
        "": False, str(stored.path): True, "/elsewhere/other.gguf": True
    }  # fmt: skip
    assert run("models", "--delete", "tiny")[0] == 0
    assert [use.origin for use in store.list()] == ["", "/elsewhere/other.gguf"]
    code, out, err = run("models", "--delete-packed")
    assert (code, out) == (0, "")
    assert err.startswith("deleted all packed weights: ")
    assert store.list() == ()
