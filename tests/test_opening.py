"""Opening a target together with the models that draft for it: from tiny files."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiny_files import DEFAULT_VOCABULARY, byte_vocabulary, matrices, write_gguf

from exactspec.engine import Engine
from exactspec.opening import row_seconds
from exactspec.params import SamplingParams, Speculation
from exactspec.target.home import default_home

PARAMS = SamplingParams(max_tokens=24, ignore_eos=True)


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Three files, and a home of their own; compiled kernels are those of the usual one."""
    kept = default_home() / "kernels"
    home = tmp_path / "home"
    home.mkdir()
    if kept.is_dir():
        (home / "kernels").symlink_to(kept, target_is_directory=True)
    monkeypatch.setenv("EXACTSPEC_HOME", str(home))
    other = byte_vocabulary(["t h", "Ġ th"], ["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    files = {
        "target": write_gguf(tmp_path / "target.gguf", weights=matrices(0)),
        "small": write_gguf(tmp_path / "small.gguf", weights=matrices(1)),
        "other": write_gguf(tmp_path / "other.gguf", weights=matrices(1), vocabulary=other),
    }
    assert DEFAULT_VOCABULARY["tokens"][256] != other["tokens"][256]
    return {name: str(path) for name, path in files.items()}


def test_models_that_draft_are_opened_beside_the_target(models: dict[str, str]) -> None:
    told: list[str] = []
    engine = Engine.from_pretrained(
        models["target"],
        draft=f"model:{models['small']}",
        draft_models=[models["other"], models["target"]],
        threads=1,
        context=96,
        progress=told.append,
    )
    assert any("has another vocabulary (id 256 is " in line for line in told)
    plain = engine.generate("hello", PARAMS, speculation=Speculation(draft="none"))
    assert engine.generate("hello", PARAMS).token_ids == plain.token_ids
    for name in ("small", "other", "target"):
        for length in (0, 3):
            spec = Speculation(draft=f"model:{models[name]}", draft_length=length)
            done = engine.generate("hello", PARAMS, speculation=spec)
            assert done.token_ids == plain.token_ids
            if length and name != "other":
                assert done.metrics.num_draft_tokens >= 18
    # The target's own name costs no second model, and is right every time.
    assert done.metrics.num_accepted_tokens == done.metrics.num_draft_tokens
    drafters = engine._models
    assert drafters[models["target"]].model is engine.target
    assert drafters[models["small"]].model.max_length == 96
    assert row_seconds(engine.target) > 0


def test_what_cannot_be_opened_is_said_in_one_line(models: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for draft in ("model:no-such-model", f"copyspec+model:{models['small']}x"):
        with pytest.raises(ValueError) as error:
            Engine.from_pretrained(models["target"], draft=draft, threads=1)
        assert "\n" not in str(error.value)
    with pytest.raises(ValueError, match="draft must be one of"):
        Engine.from_pretrained("never-looked-for", draft="modell:x")
    with pytest.raises(ValueError, match="dtype is for models run through transformers"):
        Engine.from_pretrained(models["target"], dtype="float32")
    # Each fits by itself; both together do not.
    from exactspec.memory import estimate
    from exactspec.target.load import open_model

    source = open_model(models["target"]).source
    need = estimate(source.config, context=source.config.max_position).total
    source.close()
    monkeypatch.setattr("exactspec.memory.available_memory", lambda: need * 3 // 2)
    Engine.from_pretrained(models["target"], threads=1)
    with pytest.raises(ValueError, match=r"the draft model does not fit into memory: .* leave the draft model out"):
        Engine.from_pretrained(models["target"], draft=f"model:{models['small']}", threads=1)
