from __future__ import annotations

import json
from pathlib import Path

import pytest

MODEL = ("generate", "-m", "echo")


def one_line(err: str) -> str:
    """The single line of an error report."""
    assert err.endswith("\n")
    assert err.count("\n") == 1
    assert err.startswith("exactspec: ")
    return err.removeprefix("exactspec: ").strip()


def test_the_answer_alone_is_on_stdout(cli):
    result = cli(*MODEL, "-p", "hello")
    assert (result.code, result.out, result.err) == (0, "<hello>\n", "loading echo\n")
    assert result.engine.requests[0][0] == [{"role": "user", "content": "hello"}]


def test_options_reach_the_engine(cli):
    result = cli(
        *MODEL, "-p", "x", "--draft", "copyspec", "--max-nodes", "7", "--max-tokens", "3", "--temperature", "0.5",
        "--top-p", "0.9", "--top-k", "4", "--min-p", "0.1", "--repetition-penalty", "1.1", "--presence-penalty", "0.2",
        "--frequency-penalty", "-0.3", "--min-tokens", "2", "--seed", "9", "--stop", r"\n", "--stop", "</s>",
        "--threads", "2", "--context", "99", "--cache-dtype", "float16",
    )  # fmt: skip
    assert result.code == 0
    _, params, speculation, prediction = result.engine.requests[0]
    assert (speculation.draft, speculation.max_nodes, prediction) == ("copyspec", 7, None)
    assert (params.max_tokens, params.min_tokens, params.seed) == (3, 2, 9)
    assert (params.temperature, params.top_p, params.top_k, params.min_p) == (0.5, 0.9, 4, 0.1)
    assert (params.repetition_penalty, params.presence_penalty, params.frequency_penalty) == (1.1, 0.2, -0.3)
    assert params.stop == ("\\n", "</s>")  # two characters, not a line end
    assert result.engine.options == {"draft": "copyspec", "threads": 2, "context": 99, "cache_dtype": "float16"}


def test_json_is_one_object_with_the_promised_fields(cli):
    result = cli(*MODEL, "-p", "hello", "--json", "--max-tokens", "4")
    value = json.loads(result.out)
    assert result.out.count("\n") == 1
    assert value["text"] == "<hel"
    assert value["token_ids"] == list(b"<hel")
    assert (value["finish_reason"], value["seed"], value["identity"]) == ("length", 4242, "fake/1")
    assert set(value) == {"text", "token_ids", "finish_reason", "seed", "identity", "exact", "metrics"}
    assert value["metrics"]["tau"] == 2.0
    assert {"prompt_tokens", "completion_tokens", "cached_tokens", "num_steps", "num_draft_tokens"} < set(
        value["metrics"]
    )
    assert {"num_accepted_tokens", "prefill_s", "decode_s", "decode_tokens_per_s", "accepted_by_source"} < set(
        value["metrics"]
    )


def test_logprobs_are_in_the_json_and_stay_valid_json(cli):
    value = json.loads(cli(*MODEL, "-p", "a", "--json", "--logprobs", "2").out)
    first = value["logprobs"][0]
    assert first == {
        "id": 60,
        "text": "<",
        "logprob": -0.5,
        "top": [{"id": 60, "logprob": -0.5}, {"id": 0, "logprob": None}],
    }
    assert len(value["logprobs"]) == len(value["token_ids"])


@pytest.mark.parametrize("option", [(), ("-p", "-"), ("--prompt-file", "-")])
def test_piped_stdin_is_the_prompt_without_its_last_line_end(cli, option):
    result = cli(*MODEL, *option, stdin="  zwei\nZeilen é\n\n".encode())
    assert result.engine.requests[0][0][0]["content"] == "  zwei\nZeilen é\n"


def test_stdin_is_left_alone_when_a_prompt_is_given(cli):
    assert cli(*MODEL, "-p", "hello", stdin=b"\xff not read").out == "<hello>\n"


def test_prompt_file_with_byte_order_mark_and_windows_line_end(cli, tmp_path: Path):
    path = tmp_path / "prompt.txt"
    path.write_bytes(b"\xef\xbb\xbfone\r\ntwo\r\n")
    assert cli(*MODEL, "--prompt-file", str(path)).engine.requests[0][0][0]["content"] == "one\r\ntwo"


def test_raw_is_completion_and_special_token_text_is_plain_text(cli):
    assert cli(*MODEL, "--raw", "-p", "<|im_end|>").engine.requests[0][0] == "<|im_end|>"
    assert cli(*MODEL, "--raw", "-p", " ").engine.requests[0][0] == " "


def test_system_message_comes_first(cli, tmp_path: Path):
    system = {"role": "system", "content": "be brief"}
    assert cli(*MODEL, "-p", "x", "--system", "be brief").engine.requests[0][0] == [
        system,
        {"role": "user", "content": "x"},
    ]
    path = tmp_path / "m.json"
    path.write_text('[{"role": "user", "content": "x"}]')
    assert cli(*MODEL, "--messages", str(path), "--system", "be brief").engine.requests[0][0][0] == system


def test_prediction_file_is_passed_on(cli, tmp_path: Path):
    path = tmp_path / "guess.txt"
    path.write_text("guess\n")
    assert cli(*MODEL, "-p", "x", "--prediction-file", str(path)).engine.requests[0][3] == "guess"


def test_base_model_completes_a_lone_prompt_and_refuses_a_system_message(cli):
    assert cli("generate", "-m", "base", "-p", "Once").engine.requests[0][0] == "Once"
    refused = cli("generate", "-m", "base", "-p", "Once", "--system", "s")
    assert refused.code == 2
    assert "no chat template" in refused.err


@pytest.mark.parametrize(
    ("argv", "stdin", "says"),
    [
        ((), None, "no prompt: give -p TEXT"),
        ((), b"", "the prompt is empty"),
        ((), b" \n\n", "the prompt is empty"),
        (("-p", ""), None, "the prompt is empty"),
        (("--raw", "-p", ""), None, "the prompt is empty"),
        ((), b"ab\xffc", "stdin is not valid UTF-8 (byte 2)"),
        (("-p", "a\udcff"), None, "-p is not valid UTF-8"),
        (("-p", "a", "--stop", "\udcff"), None, "--stop is not valid UTF-8"),
        (("-p", "a", "--prompt-file", "b"), None, "given twice, by -p and --prompt-file"),
        (("-p", "a", "--messages", "b"), None, "given twice, by -p and --messages"),
        (("--raw", "--system", "s", "-p", "a"), None, "--system needs the chat template"),
        (("--raw", "--messages", "m"), None, "--messages needs the chat template"),
        (("--prompt-file", "/no/such/file"), None, "cannot read /no/such/file: No such file"),
        (("--prediction-file", "/no/such/file", "-p", "a"), None, "--prediction-file: cannot read /no/such/file"),
        (("--prompt-file", "/"), None, "Is a directory"),
        (("-p", "a", "--top-p", "1.5"), None, "top_p must be in (0, 1]"),
        (("-p", "a", "--temperature", "nan"), None, "temperature must be a finite number"),
        (("-p", "a", "--max-nodes", "0"), None, "max_nodes must be an integer in [1, 1024]"),
        (
            ("-p", "a", "--draft", "magic"),
            None,
            "draft must be one of none, copyspec, copy, recycle, copy+recycle, longspec",
        ),
        (("-p", "a", "--logprobs", "2"), None, "add --json"),
        (("-p", "a", "--log", "/"), None, "--log: / is a folder"),
        (("-p", "a", "--log", "/no/such/log"), None, "--log: there is no folder /no/such"),
        (("-p", "a", "--logprobs", "21", "--json"), None, "logprobs must be in [0, 20]"),
        (("-p", "a", "--stop", ""), None, "stop must hold non-empty strings"),
        (("-p", "a", "--threads", "0"), None, "--threads must be at least 1"),
        (("-p", "a", "--context", "0"), None, "--context must be at least 1"),
        (("-p", "a", "--compare", "--draft", "none"), None, "--compare needs a drafter"),
        (("-p", "a", "--compare", "--pairs", "0"), None, "--pairs must be from 1 to 1000"),
        (("-p", "a", "--top-k", "many"), None, "Invalid value for '--top-k'"),
        (("--nonsense",), None, "No such option"),
    ],
)
def test_a_mistake_is_one_line_and_code_2(cli, argv, stdin, says):
    result = cli(*MODEL, *argv, stdin=stdin)
    assert result.code == 2
    assert result.out == ""
    assert says in one_line(result.err)
    assert result.engine is None  # found before any model was loaded


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[", "is not valid JSON"),
        ("[" * 100_000, "nested too deeply"),
        ('{"role": "user"}', "must hold a JSON list of"),
        ("[]", "holds no messages"),
        ("[3]", 'message 0 must be an object with "role" and "content", got a number'),
        ('[{"content": "x"}]', 'message 0 has no "role"'),
        ('[{"role": "user", "content": "x"}, {"role": "assistant"}]', 'message 1 has no "content"'),
        ('[{"role": "user", "content": null}]', '"content" must be a string, got null'),
        ('[{"role": "human", "content": "x"}]', "role must be one of system, user, assistant, tool"),
        ('[{"role": "user", "content": "x", "name": "bo"}]', 'unknown key "name"'),
        ('[{"role": "user", "content": "\\ud800"}]', "not valid UTF-8"),
        ('[{"role": "user", "content": " "}]', "every message is empty"),
    ],
)
def test_bad_messages_are_named(cli, tmp_path: Path, text: str, says: str):
    path = tmp_path / "m.json"
    path.write_text(text)
    result = cli(*MODEL, "--messages", str(path))
    assert (result.code, result.engine) == (2, None)
    assert says in one_line(result.err)


def test_two_system_messages_are_refused(cli, tmp_path: Path):
    path = tmp_path / "m.json"
    path.write_text('[{"role": "system", "content": "a"}, {"role": "user", "content": "x"}]')
    assert "already has a system message" in one_line(cli(*MODEL, "--messages", str(path), "--system", "b").err)


def test_engine_errors_are_one_line(cli):
    missing = cli("generate", "-m", "missing", "-p", "x")
    assert missing.code == 2
    assert one_line(missing.err) == "error: no model is named missing: see exactspec models"
    broken = cli("generate", "-m", "broken", "-p", "x")
    assert broken.code == 1
    last = broken.err.splitlines()[-1]
    assert "internal error: RuntimeError: the fake broke on purpose" in last
    assert "EXACTSPEC_DEBUG=1" in last
    assert "Traceback" not in broken.err
    assert "Traceback" in cli("generate", "-m", "broken", "-p", "x", env={"EXACTSPEC_DEBUG": "1"}).err


def test_compare_reports_equality_and_ratio(cli):
    result = cli(*MODEL, "-p", "hello world", "--compare", "--pairs", "2", "--json")
    assert result.code == 0
    value = json.loads(result.out)
    compare = value["compare"]
    assert (compare["equal"], compare["first_difference"], compare["pairs"]) == (True, None, 2)
    assert compare["decode_ratio"] == pytest.approx(13 / 7)
    assert compare["plain"]["num_steps"] == 13
    assert compare["drafted"]["num_steps"] == 7
    assert len(compare["plain_decode_s"]) == len(compare["drafted_decode_s"]) == 2
    assert value["text"] == "<hello world>"
    drafts = [request[2].draft for request in result.engine.requests]
    assert drafts == ["none", "auto", "none", "auto"]
    seeds = {request[1].seed for request in result.engine.requests}
    assert len(seeds) == 1
    assert None not in seeds


def test_compare_for_people(cli):
    result = cli(*MODEL, "-p", "hello", "--compare")
    assert (result.code, result.out) == (0, "<hello>\n")
    assert "equal: all 7 tokens are the same" in result.err
    assert "1.75x as fast (median of 3 pairs)" in result.err


def test_compare_fails_with_code_1_when_tokens_differ(cli):
    result = cli("generate", "-m", "differs", "-p", "x", "--raw", "--compare", "--json")
    assert result.code == 1
    assert json.loads(result.out)["compare"]["equal"] is False
    assert json.loads(result.out)["compare"]["first_difference"] == 1
    assert (
        "NOT EQUAL: the first difference is at token 1"
        in cli("generate", "-m", "differs", "-p", "x", "--raw", "--compare").err
    )


def test_an_unseeded_sampled_comparison_uses_one_seed(cli):
    value = json.loads(cli("generate", "-m", "sampled", "-p", "x", "--compare", "--json", "--temperature", "1").out)
    assert value["compare"]["equal"] is True
    assert value["text"] == f"seed {value['seed']}"


def test_an_empty_answer_compares(cli):
    result = cli(*MODEL, "-p", "x", "--max-tokens", "0", "--compare", "--json")
    assert result.code == 0
    assert json.loads(result.out)["compare"]["decode_ratio"] is None


def test_json_survives_a_narrow_encoding(cli):
    result = cli("generate", "-m", "emoji", "-p", "x", "--json", encoding="ascii")
    assert json.loads(result.out)["text"].startswith("🧭 naïve")
