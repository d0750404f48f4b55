"""Question files, and what the second turn's history holds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from scripted import CLOSE, EOS, ByteTokenizer

from exactspec.bench.questions import answer_text, choose, first_case, read_questions, second_case
from exactspec.prompts import common_prefix


def write(path: Path, *lines: object) -> Path:
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return path


def question(number: int, category: str = "math", turns: tuple[str, ...] = ("one?", "again!")) -> dict[str, object]:
    return {"question_id": number, "category": category, "turns": list(turns), "reference": ["ignored"]}


def test_reading_and_choosing(tmp_path: Path) -> None:
    path = write(tmp_path / "mt.jsonl", question(1), question(2, "coding"), "", question(3), question(4, "coding"))
    found = read_questions(path)
    assert [(q.file, q.id, q.category, q.turns) for q in found[:2]] == [
        ("mt", "1", "math", ("one?", "again!")),
        ("mt", "2", "coding", ("one?", "again!")),
    ]
    assert [q.id for q in choose(found, categories=["coding"])] == ["2", "4"]
    assert [q.id for q in choose(found, per_category=1)] == ["1", "2"]
    assert len({q.seed for q in found}) == 4
    with pytest.raises(ValueError, match="'art': there are coding, math"):
        choose(found, categories=["art"])


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["{"], "line 1"),
        ([question(1), [1]], "line 2"),
        ([question(1), {"question_id": 2}], "line 2"),
        ([{"turns": "one"}], "line 1"),
        ([{"turns": [""]}], "line 1"),
        ([{"turns": []}], "line 1"),
        ([], "no questions"),
        ([question(1), question(1)], "two questions"),
    ],
)
def test_bad_files_are_one_line(tmp_path: Path, lines: list[object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_questions(write(tmp_path / "q.jsonl", *lines))


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    path = tmp_path / "q.jsonl"
    path.write_bytes(b'{"turns": ["\xff"]}\n')
    with pytest.raises(ValueError, match="not UTF-8"):
        read_questions(path)


def test_second_turn_keeps_the_ids_that_were_generated(tmp_path: Path) -> None:
    """The template would spell the answer with merges; what was generated stays, and a session holds all of it."""
    tokenizer = ByteTokenizer(merges=[b"ab", b"abc"])
    (q,) = read_questions(write(tmp_path / "q.jsonl", question(7)))
    first = first_case(tokenizer, q, max_tokens=9)
    assert list(first.ids) == tokenizer.chat([{"role": "user", "content": "one?"}])
    answer = [*b"xabc", EOS]
    second = second_case(tokenizer, q, answer, max_tokens=9)
    history = [*first.ids, *b"xabc", CLOSE]
    assert list(second.ids[: len(history)]) == history
    assert (second.held, second.drafter_held) == (len(history) - 1, True)
    templated = tokenizer.chat(
        [
            {"role": "user", "content": "one?"},
            {"role": "assistant", "content": "xabc"},
            {"role": "user", "content": "again!"},
        ]
    )
    assert second.ids[-20:] == tuple(templated[-20:])
    assert len(templated) < len(second.ids)
    assert second.meta == {
        "workload": "q second",
        "size": 0,
        "seed": q.seed,
        "question": "7",
        "category": "math",
        "turn": "second",
    }
    anew = second_case(tokenizer, q, answer, max_tokens=9, reuse=False)
    assert (anew.ids, anew.held) == (second.ids, 0)
    assert anew.work != second.work
    assert anew.asked == second.asked


def test_other_answers_give_another_second_turn(tmp_path: Path) -> None:
    tokenizer = ByteTokenizer()
    (q,) = read_questions(write(tmp_path / "q.jsonl", question(7)))
    a, b = (second_case(tokenizer, q, [*answer], max_tokens=9) for answer in (b"yes", b"no"))
    assert common_prefix(a.ids, b.ids) < a.held
    assert a.asked != b.asked
    sampled = second_case(tokenizer, q, [*b"yes"], max_tokens=9, temperature=0.8)
    assert sampled.ids == a.ids
    assert (sampled.params.temperature, sampled.params.seed, sampled.meta["workload"]) == (
        0.8,
        q.seed,
        "q second T=0.8",
    )
    assert sampled.asked != a.asked


def test_text_of_an_answer() -> None:
    tokenizer = ByteTokenizer()
    assert answer_text(tokenizer, [*"hé".encode(), EOS]) == "hé"
    assert answer_text(tokenizer, [*"hé".encode()[:-1]]) == "h"  # cut inside a character


def test_single_turns_have_no_second(tmp_path: Path) -> None:
    (q,) = read_questions(write(tmp_path / "q.jsonl", question(1, turns=("one?",))))
    with pytest.raises(ValueError, match="no second turn"):
        second_case(ByteTokenizer(), q, [65], max_tokens=4)
