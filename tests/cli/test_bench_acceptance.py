"""The command ``exactspec bench acceptance``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from scripted import IdTokenizer, hash_target

from exactspec.engine import Engine


def test_the_command(cli: Callable[..., Any], tmp_path: Path) -> None:
    engine = Engine(hash_target(vocab_size=300), IdTokenizer())
    out = tmp_path / "a.jsonl"
    given = ("bench", "acceptance", "--arms", "recycle,copy+recycle", "--kinds", "story", "--count", "2")
    result = cli(*given, "--max-tokens", "16", "--out", str(out), engine=engine)
    assert result.code == 0, result.err
    assert "copy+recycle" in result.out
    assert len(out.read_text().splitlines()) == 4
    for arms, what in (("model:x", "drafts with another model"), ("copy,copy", "twice"), ("carrot", "must be one of")):
        refused = cli(*given[:3], arms, "--kinds", "story", "--out", str(out), engine=engine)
        assert (refused.code, what in refused.err) == (2, True), refused.err
