"""The commands on the real engine: with a scripted target, and (marked) with a real model."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time

import pytest
from scripted import EOS, ByteTokenizer, hash_target, script_target

from exactspec.cli.render import COPIED, RESET
from exactspec.engine import Engine

PROMPT = "one two three, one two three"


def engine(answer: str, *, prompt: str = PROMPT, stop_at: int = 0, **options) -> Engine:
    """Continues `prompt` with `answer` and EOS. Ctrl-C comes in forward number `stop_at`."""

    def before(forward: int) -> None:
        if forward == stop_at:
            raise KeyboardInterrupt

    target = script_target(len(prompt.encode()), [*answer.encode(), EOS], before=before)
    return Engine(target, ByteTokenizer(), **options)


RAW = ("generate", "--raw", "-p", PROMPT)


def test_copied_tokens_are_found_and_coloured(cli):
    answer = ", one two three, one two three!"
    result = cli(*RAW, engine=engine(answer), tty=True)
    assert result.code == 0
    assert result.out.replace(COPIED, "").replace(RESET, "") == answer + "\n"
    assert COPIED in result.out
    share = int(result.err.partition("% copied")[0].rpartition(" ")[2])
    assert 50 < share < 100


def test_every_draft_gives_the_same_answer(cli):
    answer = ", one two three. ジャケット, one two three."
    outs = {
        draft: cli(*RAW, "--draft", draft, engine=engine(answer)).out for draft in ("none", "copyspec", "copy", "auto")
    }
    assert set(outs.values()) == {answer + "\n"}


def test_compare_with_sampling(cli):
    sampled = Engine(hash_target(vocab_size=300), ByteTokenizer())
    result = cli(
        "generate", "--raw", "-p", "abcabcabc", "--compare", "--json", "--temperature", "1", "--top-p", "0.9",
        "--max-tokens", "60", engine=sampled,
    )  # fmt: skip
    compare = json.loads(result.out)["compare"]
    assert (result.code, compare["equal"], compare["pairs"]) == (0, True, 3)
    assert compare["plain"]["num_draft_tokens"] == 0


def test_stop_text_and_logprobs(cli):
    result = cli(*RAW, "--stop", "three", "--json", "--logprobs", "1", engine=engine(", one two three"))
    value = json.loads(result.out)
    assert (value["text"], value["finish_reason"]) == (", one two ", "stop")
    assert len(value["logprobs"]) == len(value["token_ids"]) == value["metrics"]["completion_tokens"]


@pytest.mark.parametrize("json_output", [False, True])
def test_ctrl_c_inside_a_step_keeps_the_text(cli, json_output):
    options = ("--json",) if json_output else ()
    result = cli(*RAW, "--draft", "none", *options, engine=engine("uvwxyz", stop_at=5))
    assert result.code == 130
    if json_output:
        value = json.loads(result.out)
        assert (value["text"], value["finish_reason"]) == ("uvw", "cancelled")
        assert value["token_ids"] == list(b"uvw")
    else:
        assert result.out == "uvw\n"


def test_ctrl_c_inside_the_prefill_gives_an_empty_answer(cli):
    result = cli(*RAW, "--json", engine=engine("uvwxyz", stop_at=1))
    assert result.code == 130
    assert (json.loads(result.out)["text"], json.loads(result.out)["finish_reason"]) == ("", "cancelled")
    assert cli(*RAW, engine=engine("uvwxyz", stop_at=1)).out == ""


def test_a_prompt_that_is_too_long_is_one_line(cli):
    small = Engine(hash_target(vocab_size=300, max_length=8), ByteTokenizer())
    result = cli("generate", "--raw", "-p", "much too long", engine=small)
    assert result.code == 2
    assert result.err.count("\n") == 1
    assert "the prompt has 13 tokens but the context holds 8" in result.err


def test_chat_reuses_the_conversation_and_goes_on_after_ctrl_c(cli):
    calls = iter(range(1000))

    def before(forward: int) -> None:
        if next(calls) == 20:
            raise KeyboardInterrupt

    target = hash_target(vocab_size=300, before=before)
    talking = Engine(target, ByteTokenizer())
    result = cli(
        "chat",
        "--max-tokens",
        "24",
        "--draft",
        "none",
        "--no-color",
        lines=["hello", "again", "/stats"],
        engine=talking,
    )
    assert result.code == 0
    assert "cancelled" in result.err
    stats = result.err.splitlines()[-2]
    assert stats.startswith("2 answers, ")
    reused = int(stats.partition(" prompt tokens reused")[0].rpartition(", ")[2].split()[0])
    assert reused > 20  # at least the first user turn


def test_a_long_prompt_says_how_far_it_is_and_takes_that_away(cli):
    long = Engine(hash_target(vocab_size=300), ByteTokenizer(), prefill_chunk=8)
    result = cli("generate", "--raw", "-p", "x" * 20, "--max-tokens", "1", engine=long, tty=True, err_tty=True)
    assert "\r\x1b[Kreading the prompt: 8 of 20 tokens" in result.err
    assert "\r\x1b[K[1 token" in result.err
    quiet = cli("generate", "--raw", "-p", "x" * 20, "--max-tokens", "1", engine=long)
    assert "reading" not in quiet.err


def real(*argv: str) -> list[str]:
    return [sys.executable, "-m", "exactspec.cli.main", *argv]


@pytest.mark.model
def test_real_model_answers_and_compares(named_model):
    path = str(named_model("smollm2-135m"))
    text = "one two three four five six, one two three four five six, one two three"
    done = subprocess.run(
        real("generate", "-m", path, "--raw", "--max-tokens", "64", "--compare", "--pairs", "1", "--json"),
        input=text.encode(), capture_output=True, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    value = json.loads(done.stdout)
    assert value["compare"]["equal"] is True
    assert value["metrics"]["num_accepted_tokens"] > 0
    assert value["exact"] is True


@pytest.mark.model
@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
def test_real_model_is_stopped_by_ctrl_c(named_model):
    path = str(named_model("smollm2-135m"))
    process = subprocess.Popen(
        real("generate", "-m", path, "-p", "Count from 1 to 500.", "--min-tokens", "3000", "--draft", "none"),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.read(1)
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert len(out) > 1
    assert b"Traceback" not in err
