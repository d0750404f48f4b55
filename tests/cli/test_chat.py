from __future__ import annotations

import pytest

CHAT = ("chat", "-m", "echo", "--no-color")


def test_a_conversation_in_one_session(cli):
    result = cli(*CHAT, "--system", "s", lines=["hello", "again"])
    assert (result.code, result.out) == (0, "<hello>\n<again>\n")
    assert result.engine.sessions == 1
    assert result.engine.requests[1][0] == [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": "<hello>"},
        {"role": "user", "content": "again"},
    ]


def test_exit_reset_stats_help_and_unknown_commands(cli):
    result = cli(
        *CHAT, lines=["/stats", "one", "two", "/stats", "/reset", "", "three", "/what", "/help", "/exit", "four"]
    )
    assert result.out == "<one>\n<two>\n<three>\n"
    assert result.engine.sessions == 2
    assert [m["content"] for m in result.engine.requests[2][0]] == ["three"]
    assert "no answers yet" in result.err
    assert "2 answers, 10 tokens" in result.err
    assert "1 of " in result.err  # the second turn found the first one's message
    assert "unknown command /what" in result.err


def test_text_that_only_looks_like_a_command_is_a_turn(cli):
    assert cli(*CHAT, lines=["/etc/hosts is what?"]).out == "</etc/hosts is what?>\n"


def test_text_of_several_lines(cli):
    result = cli(*CHAT, lines=['"""', "def f():", "    pass", '"""', '"""one"""', '"""open'])
    contents = [request[0][-1]["content"] for request in result.engine.requests]
    assert contents == ["def f():\n    pass", "one", "open"]


def test_ctrl_c_at_the_prompt_says_how_to_leave(cli):
    result = cli(*CHAT, lines=[KeyboardInterrupt(), "hello"])
    assert result.code == 0
    assert result.out == "<hello>\n"
    assert "Ctrl-D or /exit leaves" in result.err


def test_piped_lines_are_turns(cli):
    result = cli(*CHAT, stdin="héllo\n\nzwei".encode())
    assert (result.code, result.out) == (0, "<héllo>\n<zwei>\n")
    assert result.err == "loading echo\n"


def test_a_failed_turn_is_dropped_and_the_chat_goes_on(cli):
    result = cli("chat", "-m", "tiny", lines=["too long", "too long"])
    assert result.code == 0
    assert result.err.count("the context holds 8") == 2
    assert [len(request[0]) for request in result.engine.requests] == [1, 1]


def test_a_failed_turn_ends_a_script(cli):
    result = cli("chat", "-m", "tiny", stdin=b"too long\nmore\n")
    assert result.code == 2
    assert len(result.engine.requests) == 1


def test_bad_input(cli):
    assert cli(*CHAT, stdin=b"ok\n\xff\n").code == 2
    assert "no chat template" in cli("chat", "-m", "base", lines=[]).err
    assert cli(*CHAT, "--top-p", "7", lines=[]).code == 2
    typed = cli(*CHAT, lines=["\udcff", "fine"])
    assert typed.out == "<fine>\n"
    assert "not valid UTF-8" in typed.err


@pytest.mark.parametrize("option", [("--seed", "5"), ()])
def test_sampling_options_reach_every_turn(cli, option):
    result = cli("chat", "-m", "sampled", "--max-nodes", "3", *option, lines=["a", "b"])
    assert [request[1].seed for request in result.engine.requests] == [5 if option else None] * 2
    assert [request[2].max_nodes for request in result.engine.requests] == [3, 3]
