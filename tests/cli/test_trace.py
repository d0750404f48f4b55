"""``exactspec trace`` on the real engine with a scripted target."""

from __future__ import annotations

import json

import pytest
from scripted import EOS, ByteTokenizer, hash_target, script_target

from exactspec.drafters import ModelDrafter
from exactspec.engine import Engine

PROMPT = "one two three, one two three"
ANSWER = ", one two three, <b>four</b>!"
ARGS = ("trace", "--raw", "-p", PROMPT)


def engine(**options) -> Engine:
    return Engine(script_target(len(PROMPT), [*ANSWER.encode(), EOS]), ByteTokenizer(), **options)


def test_a_table(cli):
    result = cli(*ARGS, engine=engine())
    assert result.code == 0
    lines = result.out.splitlines()
    assert lines[0].split() == ["step", "context", "rows", "accepted", "tau", "propose", "verify", "walk", "emitted"]
    assert any("copy from " in line for line in lines)
    assert "tau" in lines[-1]
    assert "\x1b" not in result.out
    assert "\x1b" in cli(*ARGS, engine=engine(), tty=True).out


def test_json(cli):
    value = json.loads(cli(*ARGS, "--json", engine=engine()).out)
    assert value["text"] == ANSWER
    assert sum(step["emitted"] for step in value["steps"]) == len(value["token_ids"])
    assert any(node["source"] == "copy" and node["accepted"] for step in value["steps"] for node in step["nodes"])


def test_a_page(cli, tmp_path):
    file = tmp_path / "t.html"
    result = cli(*ARGS, "--html", str(file), engine=engine())
    assert (result.code, result.out) == (0, "")
    assert "wrote" in result.err
    text = file.read_text("utf-8")
    assert text.startswith("<!doctype html>")
    assert "<b>four" not in text


def test_a_model_drafts(cli):
    target = hash_target(vocab_size=256)
    small = ModelDrafter(hash_target(vocab_size=256), ByteTokenizer())
    opened = Engine(target, ByteTokenizer(), draft_models={"small": small})
    result = cli(*ARGS, "--draft", "model:small", "--draft-length", "3", "--max-tokens", "20", "--json", engine=opened)
    value = json.loads(result.out)
    assert value["metrics"]["accepted_by_source"]["model"] == 15
    plain = cli(*ARGS, "--draft", "none", "--max-tokens", "20", "--json", engine=opened)
    assert json.loads(plain.out)["token_ids"] == value["token_ids"]


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("--nodes", "-1"), "--nodes must be at least 0"),
        (("--html", "x.html", "--json"), "give one of them"),
        (("--html", "/no/such/folder/x.html"), "there is no folder"),
        (("--html", "/"), "is a folder"),
        (("--draft", "model:absent"), "needs the model 'absent', which is not open"),
        (("--draft", "model:"), "draft must be one of"),
        (("--draft-length", "65"), "draft_length must be an integer in [0, 64]"),
    ],
)
def test_mistakes_are_one_line(cli, args, says):
    result = cli(*ARGS, *args, engine=engine())
    assert result.code == 2
    assert result.err.count("\n") == 1
    assert says in result.err


def test_ctrl_c_shows_the_steps_so_far(cli):
    def before(forward: int) -> None:
        if forward == 4:
            raise KeyboardInterrupt

    target = script_target(len(PROMPT), list(b"uvwxyz"), before=before)
    result = cli(*ARGS, "--draft", "none", "--json", engine=Engine(target, ByteTokenizer()))
    assert result.code == 130
    value = json.loads(result.out)
    assert (value["finish_reason"], len(value["steps"])) == ("cancelled", 2)
