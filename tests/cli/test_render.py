from __future__ import annotations

import re

import pytest

from exactspec.cli.render import COPIED, PREDICTED, RESET, Painter, use_color, visible
from exactspec.results import Chunk, TokenInfo

EMOJI = "🧭 naïve — ジャケット 한국어 👩‍🔧"


def plain(text: str) -> str:
    return re.sub(r"\x1b\[\d+m", "", text)


def test_copied_tokens_are_coloured_on_a_terminal(cli):
    result = cli("generate", "-m", "echo", "-p", "abc", tty=True)
    assert result.out == f"<a{COPIED}b{RESET}{COPIED}c{RESET}>\n" or result.out == f"<a{COPIED}bc{RESET}>\n"
    assert re.search(r"\[5 tokens, [\d.]+ tok/s, tau 1.67, 40% copied, prefill 0.01 s", result.err)


def test_predicted_tokens_have_their_own_colour(cli, tmp_path):
    path = tmp_path / "p"
    path.write_text("guess")
    out = cli("generate", "-m", "echo", "-p", "abc", "--prediction-file", str(path), tty=True).out
    assert PREDICTED in out
    assert COPIED not in out


def test_no_colour_and_no_summary_off_a_terminal(cli):
    result = cli("generate", "-m", "echo", "-p", "abc")
    assert (result.out, result.err) == ("<abc>\n", "loading echo\n")


@pytest.mark.parametrize(
    ("env", "no_color", "tty", "expected"),
    [
        ({}, False, True, True),
        ({}, False, False, False),
        ({}, True, True, False),
        ({"NO_COLOR": "1"}, False, True, False),
        ({"NO_COLOR": ""}, False, True, True),
        ({"FORCE_COLOR": "1"}, False, False, True),
        ({"FORCE_COLOR": "0"}, False, True, False),
        ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, False, True, False),
        ({"FORCE_COLOR": "1"}, True, True, False),
        ({"TERM": "dumb"}, False, True, False),
    ],
)
def test_when_colour_is_used(cli, env, no_color, tty, expected):
    argv = ["generate", "-m", "echo", "-p", "abc", *(["--no-color"] if no_color else [])]
    assert (COPIED in cli(*argv, tty=tty, env=env).out) is expected


@pytest.mark.parametrize("tty", [True, False])
def test_characters_of_several_tokens_stay_whole(cli, tty):
    out = cli("generate", "-m", "emoji", "-p", "x", tty=tty).out
    assert plain(out) == EMOJI + "\n"
    assert (COPIED in out) is tty


def test_a_terminal_that_lacks_characters_gets_replacements(cli):
    out = cli("generate", "-m", "emoji", "-p", "x", encoding="ascii").out
    assert out.startswith("? na?ve ?")


def test_control_characters_of_an_answer_do_not_reach_a_terminal(cli):
    shown = cli("generate", "-m", "escape", "-p", "x", "--no-color", tty=True).out
    assert shown == "a␛[31mb␇c\ufffdd\n"
    assert cli("generate", "-m", "escape", "-p", "x").out == "a\x1b[31mb\x07c\u009bd\n"
    assert [visible(c) for c in "\n\t\ré"] == ["\n", "\t", "\r", "é"]


def painter(words: dict[int, bytes]) -> Painter:
    return Painter(lambda token: words[token], color=True, escape=True)


def copied(token: int) -> TokenInfo:
    return TokenInfo(token, "", source="copy", source_span=(0, 1))


def test_text_that_lags_behind_its_tokens_keeps_their_colours():
    p = painter({1: b"one", 2: b" two", 3: b" three"})
    assert p.paint(Chunk("", (TokenInfo(1, ""), copied(2)))) == ""
    assert p.paint(Chunk("one tw", ())) == f"one{COPIED} tw{RESET}"
    assert p.paint(Chunk("o three", (TokenInfo(3, ""),))) == f"{COPIED}o{RESET} three"


def test_a_leading_space_that_the_text_lacks_does_not_shift_colours():
    p = painter({1: b" one", 2: b" two"})
    assert p.paint(Chunk("one two", (TokenInfo(1, ""), copied(2)))) == f"one{COPIED} two{RESET}"


def test_the_text_shown_is_the_chunks_own_whatever_the_tokens_say():
    p = painter({1: b"xyz"})
    assert p.paint(Chunk("quite other", (copied(1),))) == "quite other"


def test_use_color_of_a_closed_stream_is_false(tmp_path):
    with open(tmp_path / "f", "w") as stream:
        pass
    assert use_color(stream, {}, no_color=False) is False
