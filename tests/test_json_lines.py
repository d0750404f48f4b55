"""Lines of JSON as people's editors and other programs write them."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from exactspec.bench.questions import read_questions
from exactspec.bench.simulate import read_log
from exactspec.json_lines import append_lines, json_lines


def test_a_byte_order_mark_blank_lines_and_other_line_ends(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"a": 1}\r\n\n \t\n{"b": "\xe2\x80\xa8\xc2\x85"}')
    assert list(json_lines(path)) == [(1, {"a": 1}), (4, {"b": "\u2028\x85"})]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"[1]", "line 2, is not a JSON object"),
        (b"{", "line 2, is not a JSON object"),
        (b"NaN", "line 2, is not a JSON object"),
        (b"\xff\xfe{}", "line 2, is not UTF-8 text"),
        ('{"a": 1}'.encode("utf-16"), "line 2, is not UTF-8 text"),
        (b'{"a": ' + 100_000 * b"[" + 100_000 * b"]" + b"}", "line 2, is not a JSON object"),
        (b'{"a": ' + 10_000 * b"9" + b"}", "line 2, is not a JSON object"),
    ],
    ids=["list", "cut", "number", "bytes", "utf-16", "deep", "digits"],
)
def test_what_is_none_is_named(tmp_path: Path, line: bytes, message: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"{}\n" + line + b"\n")
    with pytest.raises(ValueError, match=f"a.jsonl, {message}"):
        list(json_lines(path))


def test_logs_and_questions_are_read_so(tmp_path: Path) -> None:
    log, questions = tmp_path / "log.jsonl", tmp_path / "q.jsonl"
    log.write_text("\ufeff" + json.dumps({"prompt_ids": [1], "output_ids": [2]}) + "\n")
    assert [answer.output for answer in read_log(log)] == [(2,)]
    turns = ["one\u2028two", "again\x85"]
    questions.write_text("\ufeff" + json.dumps({"turns": turns}, ensure_ascii=False) + "\n")
    assert [question.turns for question in read_questions(questions)] == [tuple(turns)]


def test_lines_of_several_programs_do_not_mix(tmp_path: Path) -> None:
    """Lines of 200 kB, more than any buffer, by four threads with files of their own."""
    path = tmp_path / "a.jsonl"

    def add(number: int) -> None:
        for _ in range(10):
            append_lines(path, [json.dumps({"number": number, "text": str(number) * 200_000})])

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(add, range(4)))
    found = [line for _, line in json_lines(path)]
    assert sorted(line["number"] for line in found) == sorted(10 * list(range(4)))
    assert all(line["text"] == str(line["number"]) * 200_000 for line in found)


def test_a_line_without_its_end_gets_it(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"a": 1}')
    append_lines(path, ['{"b": 2}', '{"c": 3}'])
    append_lines(path, [])
    assert path.read_text() == '{"a": 1}\n{"b": 2}\n{"c": 3}\n'
