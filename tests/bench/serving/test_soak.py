"""A soak says what it found: on a server that is right, and on ones that are not."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from scripted import ByteTokenizer, hash_target

from exactspec.bench.serving import soak as soaking
from exactspec.bench.serving.cases import plain_cases
from exactspec.bench.serving.processes import ServerProcess, our_server
from exactspec.bench.serving.soak import Counts, Question, SoakPlan, SoakResult, drift_percent, soak
from exactspec.engine import Engine

HERE = Path(__file__).parent
PROGRAM = (sys.executable, str(HERE / "tiny_server.py"))
OPTIONS = ("--cache-bytes", "10000000", "--context", "4000", "--log-level", "warning")


@pytest.fixture(autouse=True)
def children_find_the_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(HERE.parents[1]), os.environ.get("PYTHONPATH", "")]))


def questions() -> list[Question]:
    library = Engine(hash_target(vocab_size=260), ByteTokenizer(eos=()), draft="none")
    asked = plain_cases(ByteTokenizer(), 3, max_tokens=30)
    return soaking.questions_of(asked, lambda c: library.generate(list(c.ids), c.params).token_ids, seeds=2)


def run(model: str, seconds: float = 2.5, **plan: float) -> SoakResult:
    with our_server(model, threads=1, options=OPTIONS, program=PROGRAM) as server:
        told = SoakPlan(clients=3, seconds=seconds, sample_s=0.05, **plan)  # type: ignore[arg-type]
        return soak(server, questions(), told, progress=lambda text: None)


def test_questions_are_asked_greedy_and_sampled() -> None:
    asked = questions()
    assert len(asked) == 9
    assert len({q.case.work for q in asked}) == 9
    assert len({q.answer for q in asked[:3]}) == 3
    assert all(len(q.answer) == 30 for q in asked)


def test_a_server_that_is_right_holds() -> None:
    result = run("tiny", disconnects=0.5)
    assert result.counts.errors == []
    assert (result.counts.wrong, result.stuck) == (0, 0)
    assert result.counts.whole > 5
    assert result.counts.cut > 5
    assert 0 < result.counts.tokens < 30 * (result.counts.whole + result.counts.cut)
    assert len(result.resident) > 10
    assert 0 < result.cache[0] <= 10_000_000
    assert 0 < result.cache[1] <= 10_000_000
    assert result.told.count("\n") == 0
    calm = run("tiny", 0.5, disconnects=0.0)
    assert calm.counts.cut == 0
    assert calm.counts.tokens == 30 * calm.counts.whole


def test_wrong_answers_are_found() -> None:
    """By the clients, whole ones and cut ones, beside those that are asked before and after."""
    cut, whole = run("wrong", disconnects=1.0), run("wrong", disconnects=0.0)
    assert cut.counts.wrong > 9 + 1
    assert whole.counts.wrong > 9 + 1
    result = whole
    assert not result.holds
    assert result.told.startswith("FAILED")


def test_memory_that_grows_is_found() -> None:
    result = run("leaky", 4.0)
    assert result.memory_percent > soaking.MEMORY_PERCENT
    assert not result.holds


def test_a_server_that_ends_is_found() -> None:
    class Ends(ServerProcess):
        asked = 0

        def memory(self) -> dict[str, int]:
            self.asked += 1
            if self.asked == 5:
                self._process.kill()
                self._process.wait()
            return dict(super().memory())

    command = [*PROGRAM, "serve", "-m", "tiny", "--port", "0", *OPTIONS]
    with Ends(command) as server:
        plan = SoakPlan(clients=2, seconds=2, sample_s=0.1)
        result = soak(server, questions(), plan, progress=lambda text: None)
    assert not result.holds
    assert result.stuck == -1
    assert "the server ended by itself" in result.counts.errors


def test_what_holds() -> None:
    flat = tuple((float(i), 100) for i in range(10))
    good = SoakResult(counts=Counts(whole=1), seconds=10, resident=flat, stuck=0)
    assert good.holds
    assert good.told.startswith("held: 0.2 min, 1 whole")
    bad = [
        SoakResult(counts=Counts(), seconds=10, resident=flat, stuck=0),
        SoakResult(counts=Counts(whole=1, wrong=1), seconds=10, resident=flat, stuck=0),
        SoakResult(counts=Counts(whole=1, errors=["e"]), seconds=10, resident=flat, stuck=0),
        SoakResult(counts=Counts(whole=1), seconds=10, resident=flat, stuck=1),
        SoakResult(counts=Counts(whole=1), seconds=10, resident=(*flat[:-2], (9, 94), (9.5, 94)), stuck=0),
    ]
    assert not any(result.holds for result in bad)
    assert "first error: e" in bad[2].told
    assert drift_percent([(1, 1), (2.5, 100), (3, 102), (3.5, 104), (8, 204)], 10) == pytest.approx(100)
    assert drift_percent([], 10) == 0
    for wrong in ({"clients": 0}, {"seconds": 0.0}, {"disconnects": 1.5}, {"sample_s": 0.0}):
        with pytest.raises(ValueError, match="a soak needs"):
            SoakPlan(**wrong)  # type: ignore[arg-type]


def test_a_client_that_leaves_got_a_beginning() -> None:
    """Every way of leaving, at every point; and nothing is left running."""
    import random
    import threading

    asked = questions()
    with our_server("tiny", threads=1, options=OPTIONS, program=PROGRAM) as server:
        client = soaking._Client(server.port, asked, random.Random(0), 1.0, Counts(), threading.Lock())
        for way in ("reset", "close", "half-close"):
            for at in (0, 1, 10, 30):
                ids, whole = client._ask(asked[0].case, "", at, way)
                assert ids == asked[0].answer[: len(ids)]
                assert whole or len(ids) >= at
        assert client._ask(asked[0].case, "none", None, "") == (asked[0].answer, True)
        assert soaking._stuck(server, __import__("time").monotonic) == 0
        text = json.dumps(server.memory())
    assert json.loads(text)["resident"] > 1_000_000
