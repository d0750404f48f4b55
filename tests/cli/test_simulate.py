"""``exactspec simulate`` and the logs it reads."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from scripted import IdTokenizer, hash_target
from tiny_drafts import SOURCE, TOKENIZER
from tiny_layer import random_layer, tiny_card

from exactspec.budget import CostModel
from exactspec.drafters.layer.checkpoint import write_layer
from exactspec.engine import Engine
from exactspec.target.exact import ExactTarget

Run = Callable[..., Any]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "log.jsonl"
    text = [(7 * i * i + i) % 97 for i in range(150)]
    lines = [{"workload": name, "prompt_ids": text, "output_ids": text} for name in ("a", "b")]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_a_table_by_workload_and_mode(cli: Run, log: Path) -> None:
    result = cli("simulate", str(log), "--draft", "none,copy")
    assert result.code == 0
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in result.out.splitlines()[2:]]
    assert [row[:2] for row in rows] == [["a", "none"], ["a", "copy"], ["b", "none"], ["b", "copy"]]
    assert rows[0][3] == "1.00"
    assert float(rows[1][3]) > 5


def test_json(cli: Run, log: Path) -> None:
    found = json.loads(cli("simulate", str(log), "--draft", "copyspec,copy", "--equal-rows", "--json").out)
    assert found["a"]["copy"]["tokens"] == 150
    assert found["a"]["copy"]["rows"] <= found["a"]["copyspec"]["rows"]
    assert found["a"]["copy"]["tau"] >= found["a"]["copyspec"]["tau"]


def test_rows_cost_what_they_do_for_a_model(cli: Run, log: Path) -> None:
    def engine(cost: CostModel | None) -> Engine:
        return Engine(hash_target(), IdTokenizer(), cost=cost)

    dear = CostModel(rows=(1, 2), cost=(1.0, 2.0), one_s=1000.0)
    slow_drafter = CostModel(one_s=1e-7)
    found = [
        json.loads(cli("simulate", str(log), "--draft", "copyspec", "--json", *more, engine=engine(cost)).out)["a"]
        for more, cost in (((), None), (("--cost-of", "x"), dear), (("--cost-of", "x"), slow_drafter))
    ]
    speeds = [one["copyspec"]["predicted_speedup"] for one in found]
    assert speeds[0] > 2
    assert speeds[1] < 1  # ten rows in a step
    assert speeds[2] < 0.1  # the drafter's own time
    refused = cli("simulate", str(log), "--cost-of", "x", engine=engine(None))
    assert (refused.code, "are not measured" in refused.err) == (2, True)


def test_modes_with_a_layer_are_replayed_beside_the_model(cli: Run, tmp_path: Path) -> None:
    target = ExactTarget(SOURCE, threads=1, context=512)
    engine = Engine(target, TOKENIZER, cost=CostModel(one_s=0.01))
    write_layer(tmp_path / "layer", random_layer(tiny_card(SOURCE, precision="int8", window=64)))
    layer = f"longspec:{tmp_path / 'layer'}"
    log, long = tmp_path / "log.jsonl", tmp_path / "long.jsonl"
    ids = [(7 * i * i + i) % 250 for i in range(80)]
    log.write_text(json.dumps({"prompt_ids": ids, "output_ids": ids[:60]}) + "\n")
    long.write_text(json.dumps({"prompt_ids": ids * 8, "output_ids": ids}) + "\n")
    found = json.loads(cli("simulate", str(log), "-m", "x", "--draft", f"none,{layer}", "--json", engine=engine).out)
    assert (found["all"]["none"]["rows"], found["all"][layer]["tokens"]) == (60, 60)
    assert found["all"][layer]["rows"] > 60
    assert found["all"][layer]["propose_s"] > 0
    for words, message in (
        (
            (str(log), "--draft", layer),
            "with -m, or count what is accepted on prompts of its own with 'exactspec bench",
        ),
        ((str(log), "--draft", "longspec", "-m", "x"), "no draft layer is shipped for these weights"),
        ((str(long), "--draft", layer, "-m", "x"), "has 720 tokens, the model's context is 512"),
    ):
        refused = cli("simulate", *words, engine=engine)
        assert (refused.code, message in refused.err.splitlines()[-1]) == (2, True), refused.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("missing.jsonl",), "is no file"),
        (("LOG", "--draft", "copy,magic"), "'magic' is none of"),
        (("LOG", "--draft", "copy,copy"), "names one twice"),
        (("LOG", "--max-nodes", "0"), "max_nodes must be"),
    ],
)
def test_mistakes_are_one_line(cli: Run, log: Path, arguments: tuple[str, ...], message: str) -> None:
    result = cli("simulate", *(str(log) if word == "LOG" else word for word in arguments))
    assert result.code == 2
    assert message in result.err
    assert result.err.count("\n") == 1


def test_generate_writes_a_log_that_simulate_reads(cli: Run, tmp_path: Path) -> None:
    path = tmp_path / "new.jsonl"
    foreseen = tmp_path / "foreseen.txt"
    foreseen.write_text("xyz")
    assert cli("generate", "-m", "echo", "-p", "hello", "--log", str(path)).code == 0
    assert cli("generate", "-m", "echo", "-p", "ho", "--log", str(path), "--prediction-file", str(foreseen)).code == 0
    first, second = (json.loads(line) for line in path.read_text().splitlines())
    assert bytes(first["output_ids"]) == b"<hello>"
    assert b"hello" in bytes(first["prompt_ids"])
    assert "prediction_ids" not in first
    assert bytes(second["prediction_ids"]) == b"xyz"
    assert "generate" in cli("simulate", str(path)).out


def test_with_logprobs_the_log_holds_the_best_ids(cli: Run, tmp_path: Path) -> None:
    path = tmp_path / "new.jsonl"
    engine = Engine(hash_target(vocab_size=300), IdTokenizer(), draft="none")
    asked = ("generate", "-m", "x", "-p", "hello", "--raw", "--max-tokens", "9", "--log", str(path))
    assert cli(*asked, "--logprobs", "3", engine=engine).code == 0
    line = json.loads(path.read_text())
    assert [row[0] for row in line["topk_ids"]] == line["output_ids"]
    assert all(len(row) == 3 and row == sorted(row, reverse=True) for row in line["topk_logits"])
    assert "generate" in cli("simulate", str(path), "--draft", "recycle").out


def test_bench_gold_refuses_to_overwrite(cli: Run, log: Path) -> None:
    result = cli("bench", "gold", "--out", str(log))
    assert result.code == 2
    assert "is there already" in result.err
    result = cli("bench", "gold", "--out", str(log.parent / "none" / "gold.jsonl"))
    assert (result.code, "there is no folder" in result.err) == (2, True)


def test_bench_gold_leaves_no_half_of_a_log(cli: Run, tmp_path: Path) -> None:
    path = tmp_path / "gold.jsonl"
    words = ("--workloads", "no_copy,agent", "--sizes", "300", "--seeds", "1")
    result = cli("bench", "gold", "--out", str(path), *words)
    assert result.code == 2
    assert "agent: no materials give a prompt of 300 tokens" in result.err
    assert not path.exists()


def test_bench_gold_writes_every_turn(cli: Run, tmp_path: Path) -> None:
    path = tmp_path / "gold.jsonl"
    words = ("--workloads", "json_reemit,revise", "--sizes", "3000", "--seeds", "3")
    assert cli("bench", "gold", "--out", str(path), *words).code == 0
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert {line["workload"] for line in lines} == {"json_reemit-3000", "revise-3000"}
    assert len({line["id"] for line in lines}) == len(lines)
    several = [(one, next_) for one, next_ in pairwise(lines) if one["id"].split(".")[0] == next_["id"].split(".")[0]]
    assert several
    for one, next_ in several:  # each reply is in the history of the next
        assert bytes(one["output_ids"]) in bytes(i for i in next_["prompt_ids"] if i < 256)
    assert cli("bench", "gold", "--out", str(tmp_path / "other"), "--workloads", "copyist").code == 2
