"""Recipes: the same bytes for the same seed, whole units, the size asked for, and what they are meant to do."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest
from bench.piece_tokenizer import PieceTokenizer

from exactspec.bench.copyshare import copy_share
from exactspec.bench.recipes import false_friend, no_copy
from exactspec.bench.recipes.base import fit_units
from exactspec.bench.recipes.materials import Materials
from exactspec.bench.workloads import RECIPES, build, prompt_ids, workload_cases

TOKENIZER = PieceTokenizer()


@pytest.mark.parametrize("recipe", sorted(RECIPES))
@pytest.mark.parametrize("size", [512, 2048])
def test_same_seed_same_bytes_and_the_size_asked_for(recipe: str, size: int) -> None:
    one = build(recipe, tokenizer=TOKENIZER, size=size, seed=3)
    assert build(recipe, tokenizer=TOKENIZER, size=size, seed=3).json_line() == one.json_line()
    assert build(recipe, tokenizer=TOKENIZER, size=size, seed=4).json_line() != one.json_line()
    length = len(TOKENIZER.chat(one.messages))
    assert length == one.meta.prompt_tokens == len(prompt_ids(TOKENIZER, one.messages))
    assert abs(length - size) <= 0.05 * size
    record = json.loads(one.json_line())
    assert list(record) == sorted(record)
    assert set(record["meta"]) >= {"files", "units", "copy_share", "longest_run"}


def test_same_bytes_in_another_process() -> None:
    """String hashing differs between processes: no set's order may reach a prompt."""
    program = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from bench.test_workloads import TOKENIZER, RECIPES, build\n"
        "for r in sorted(RECIPES): print(build(r, tokenizer=TOKENIZER, size=512, seed=1).json_line())\n"
    )
    tests = __file__.rsplit("/", 2)[0]
    done = subprocess.run([sys.executable, "-c", program, tests], capture_output=True, text=True, check=True)
    here = [build(r, tokenizer=TOKENIZER, size=512, seed=1).json_line() for r in sorted(RECIPES)]
    assert done.stdout.splitlines() == here


def test_no_copy_never_repeats_a_pair_of_words() -> None:
    workload = build("no_copy", tokenizer=TOKENIZER, size=1024, seed=0)
    words = workload.messages[0]["content"].split("\n\n")[1].split()
    gold = workload.gold.replace(".", "").lower().split()
    everything = words + gold
    assert len(set(everything)) == len(everything)
    assert workload.meta.units == len(words)
    assert len(gold) > 100


def test_false_friend_follows_and_then_leaves() -> None:
    workload = build("false_friend", tokenizer=TOKENIZER, size=2048, seed=0)
    table = workload.messages[0]["content"].split("\n\n")[1].splitlines()
    names = [line.split()[0] for line in table]
    assert len(set(names)) < len(names) / 2  # each name comes with several ports
    for before, after in zip(table, workload.gold.splitlines(), strict=False):
        assert before.split()[0] == after.split()[0]
        assert before.split()[1] != after.split()[1]
    assert workload.meta.longest_run <= 16
    assert workload.meta.copy_share > 0.2


def test_recipes_fall_back_where_system_files_are_missing(tmp_path: Path) -> None:
    missing = Materials(system=tmp_path)
    names, files = false_friend.service_names(missing)
    assert files == ("sys.stdlib_module_names",)
    assert len(names) > 10
    words, files = no_copy.vocabulary(missing)
    assert "mimetypes" in files
    assert len(words) > 2000


def test_mistakes_are_told() -> None:
    with pytest.raises(ValueError, match=r"one of .*code_edit, .*no_copy"):
        build("copyist", tokenizer=TOKENIZER, size=512, seed=0)
    for size in (-5, 0, 10, 10_000_000):
        with pytest.raises(ValueError, match=f"size must be from 256 to 131072 tokens, got {size}"):
            build("no_copy", tokenizer=TOKENIZER, size=size, seed=0)
    with pytest.raises(ValueError, match="another size"):
        build("agent", tokenizer=TOKENIZER, size=300, seed=0)


def test_case_caps_the_answer() -> None:
    workload = build("code_edit", tokenizer=TOKENIZER, size=512, seed=0)
    (case,) = workload_cases(TOKENIZER, workload, max_tokens=100)
    assert case.params.max_tokens == 100
    assert list(case.ids) == TOKENIZER.chat(workload.messages)
    assert case.meta["copy_share"] == workload.meta.copy_share
    assert 64 <= workload.turns[0].max_tokens <= 1024


def test_every_turn_of_a_conversation_is_a_case() -> None:
    made = [build("revise", tokenizer=TOKENIZER, size=2048, seed=seed) for seed in range(4)]
    assert max(len(workload.turns) for workload in made) > 2
    for workload in made:
        cases = workload_cases(TOKENIZER, workload, max_tokens=100)
        assert len({case.id for case in cases}) == len(cases) == len(workload.turns)
        assert workload.turns[-1].before == len(workload.messages)
        for turn, case in zip(workload.turns, cases, strict=True):
            assert workload.messages[turn.before - 1]["role"] == "user"
            assert list(case.ids) == TOKENIZER.chat(workload.messages[: turn.before])
            assert turn.gold_tokens == len(TOKENIZER.encode(turn.gold))
        for turn in workload.turns[:-1]:
            assert workload.messages[turn.before] == {"role": "assistant", "content": turn.gold}
        assert workload.meta.gold_tokens == sum(turn.gold_tokens for turn in workload.turns)


def test_fit_units_finds_the_nearest() -> None:
    for size in range(60, 200, 7):
        found = fit_units(1000, size, lambda n: 20 + 3 * n)
        assert found is not None
        assert abs(20 + 3 * found - size) <= 1.5
    assert fit_units(10, 500, lambda n: 20 + 3 * n) is None
    assert fit_units(10, 100, lambda n: 70 * n) is None


def _brute_force(prompt: list[int], output: list[int]) -> tuple[float, int]:
    everything = prompt + output
    covered: set[int] = set()
    longest = 0
    for start in range(len(prompt), len(everything)):
        for end in range(start + 4, len(everything) + 1):
            run = everything[start:end]
            if any(everything[at : at + len(run)] == run for at in range(start)):
                covered.update(range(start, end))
                longest = max(longest, len(run))
    return len(covered) / len(output), longest


def test_copy_share_agrees_with_brute_force() -> None:
    rng = random.Random(7)
    for _ in range(60):
        symbols = rng.choice((2, 3, 8))
        prompt = [rng.randrange(symbols) for _ in range(rng.randrange(0, 25))]
        output = [rng.randrange(symbols) for _ in range(rng.randrange(1, 25))]
        share = copy_share(prompt, output)
        assert (share.copy_share, share.longest_run) == pytest.approx(_brute_force(prompt, output))
    assert copy_share([1, 2, 3, 4], []).copy_share == 0.0
