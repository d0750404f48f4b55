"""``exactspec train longspec``: from a model file to a layer, and mistakes in one line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tiny_files import write_gguf

from exactspec.drafters.layer.checkpoint import read_layer
from exactspec.target.home import default_home

Run = Callable[..., Any]
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CONFIG = """
[data]
max_answer = 12
corpus = ["{folder}"]
corpus_tokens = 60
corpus_length = 30
held_out = 2
slots = 2
[layer]
head = 100
window = 16
[train]
tokens = 240
batch = 40
length = 20
evaluate_every = 3
checkpoint_every = 2
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A home of its own for packed models, with the compiled kernels of the real one."""
    own = tmp_path / "home"
    own.mkdir()
    (own / "kernels").symlink_to(default_home() / "kernels")
    monkeypatch.setenv("EXACTSPEC_HOME", str(own))


@pytest.mark.usefixtures("home")
def test_from_a_model_to_a_layer_in_three_sittings(cli: Run, tmp_path: Path) -> None:
    pytest.importorskip("accelerate", reason="training needs the extra `train`")
    model = write_gguf(tmp_path / "tiny.gguf", template=CHATML)
    texts = tmp_path / "texts"
    texts.mkdir()
    (texts / "a.txt").write_text("hello hello, all is well here " * 5)
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"turns": [f"hello {i}"]}) + "\n" for i in range(6)))
    config = tmp_path / "c.toml"
    config.write_text(CONFIG.format(folder=texts))
    out = tmp_path / "run"
    command = ("train", "longspec", "-m", str(model), "--out", str(out), "--config", str(config), "--threads", "1")
    asked = ("--self-generate", str(prompts), "4")
    result = cli(*command, *asked, "--only", "features")
    assert (result.code, result.out) == (0, "")
    assert "held out" in result.err
    assert not (out / "layer").exists()
    assert cli(*command, *asked, "--only", "layer", "--stop-after", "4").code == 0
    result = cli(*command, *asked)
    assert result.code == 0
    assert "going on after step 4 of 6" in result.err
    assert result.out.startswith(f"{out / 'layer'}: tau 1.")
    layer = read_layer(out / "layer")
    assert layer.card.target.name == "tiny.gguf"
    assert layer.card.training["documents"] == {"own": 4, "corpus": 2, "held_out": 2}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--only", "everything"), "--only is 'features' or 'layer'"),
        (("--only", "features", "--features", "x"), "leave out --only features"),
        (("--config", "MISSING"), "No such file"),
        (("--config", "BAD"), "train.steps is not known"),
    ],
)
def test_mistakes_are_one_line(cli: Run, tmp_path: Path, arguments: tuple[str, ...], message: str) -> None:
    pytest.importorskip("accelerate", reason="training needs the extra `train`")
    (tmp_path / "bad.toml").write_text("[train]\nsteps = 3\n")
    paths = {"MISSING": str(tmp_path / "none.toml"), "BAD": str(tmp_path / "bad.toml")}
    words = [paths.get(word, word) for word in arguments]
    result = cli("train", "longspec", "-m", "smollm2-135m", "--out", str(tmp_path / "run"), *words)
    assert result.code == 2
    assert message in result.err
    assert result.err.count("\n") == 1
