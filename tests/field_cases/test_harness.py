"""Field case 29: a harness that counts chunks for tokens, or compares arms that did not do the same work."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from scripted import IdTokenizer, hash_target

from exactspec.bench.arms import parse_arms
from exactspec.bench.case import Case
from exactspec.bench.provenance import collect
from exactspec.bench.recorder import Recorder
from exactspec.bench.report import full_table, latest, summarise
from exactspec.bench.runner import contest, run_contest
from exactspec.bench.store import ResultFile
from exactspec.bench.timing import time_stream
from exactspec.engine import Engine
from exactspec.params import SamplingParams, Speculation
from exactspec.results import Chunk, Completion, Metrics, TokenInfo

EVERY_S = 0.05
CHUNKS = 40


class FakeServer:
    """Sends `per_chunk` tokens every 50 ms for 40 chunks, then what it did in all; its clock is the only one."""

    def __init__(self, per_chunk: int) -> None:
        self.now = 0.0
        self._per_chunk = per_chunk

    def stream(self) -> Iterator[Chunk]:
        ids = list(range(CHUNKS * self._per_chunk))
        self.now += 2.0  # the prompt is read
        for at in range(0, len(ids), self._per_chunk):
            self.now += EVERY_S
            part = tuple(TokenInfo(i, "x") for i in ids[at : at + self._per_chunk])
            yield Chunk("x" * len(part), part)
        self.now += 1.0  # and it takes its time to end
        metrics = Metrics(
            prompt_tokens=5,
            completion_tokens=len(ids),
            cached_tokens=0,
            num_steps=CHUNKS,
            num_draft_tokens=0,
            num_accepted_tokens=0,
            prefill_s=2.0,
            decode_s=CHUNKS * EVERY_S,
        )
        done = Completion(
            text="", token_ids=tuple(ids), finish_reason="length", seed=0, identity="", exact=True,
            metrics=metrics, tokens=tuple(TokenInfo(i, "x") for i in ids),
        )  # fmt: skip
        yield Chunk("", (), done)


@pytest.mark.parametrize(("per_chunk", "rate"), [(1, 20), (4, 80), (16, 320)])
def test_29_tokens_are_counted_and_not_chunks(per_chunk: int, rate: float) -> None:
    server = FakeServer(per_chunk)
    done, timing = time_stream(server.stream(), clock=lambda: server.now)
    assert timing.decode_tokens_per_s == pytest.approx(rate, rel=0.05)
    assert done.metrics.decode_tokens_per_s == pytest.approx(rate, rel=0.05)
    assert timing.first_token_s == pytest.approx(2.0 + EVERY_S)  # apart from decoding
    assert timing.tokens == len("".join(chunk.text for chunk in FakeServer(per_chunk).stream()))  # recounted by text


class Stopping(Engine):
    """An engine whose `copyspec` arm stops by another rule: two tokens before the cap."""

    def stream(self, prompt: Any, params: SamplingParams | None = None, **options: Any) -> Any:
        speculation: Speculation = options["speculation"]
        assert params is not None
        if speculation.draft == "copyspec" and params.max_tokens == 24:
            params = SamplingParams(max_tokens=22, seed=params.seed)
        return super().stream(prompt, params, **options)


def test_29_arms_that_did_not_do_the_same_work_are_flagged(tmp_path: Path) -> None:
    recorder = Recorder(ResultFile(tmp_path / "r.jsonl"), lambda: collect(threads=1, argv=["x"]), lambda text: None)
    on = contest(Stopping(hash_target(order=1), IdTokenizer(97)), model="m", recorder=recorder)
    cases = [
        Case(id=name, ids=ids, params=SamplingParams(max_tokens=cap), meta={"workload": "w", "size": 3})
        for name, ids, cap in (("hits-the-cap", (3, 1, 4), 24), ("ends-before", (1, 5, 9), 23))
    ]
    run_contest(on, cases, parse_arms("plain,copy,copyspec"), repeats=2, recorder=recorder)
    lines = latest(recorder.out.lines)
    counts = {(line["case"], line["arm"]): line["completion_tokens"] for line in lines}
    assert counts["hits-the-cap", "none"] == counts["hits-the-cap", "copy"] == 24
    assert counts["hits-the-cap", "copyspec"] == 22
    flagged = {(line["case"], line["arm"]) for line in lines if line["flags"]}
    assert flagged == {("hits-the-cap", "copyspec")}
    assert all(line["ratio"] is None for line in lines if line["flags"])
    summaries = {s.arm: s for s in summarise(lines)}
    assert summaries["copyspec"].ratios is not None
    assert summaries["copy"].ratios is not None
    assert (summaries["copyspec"].flagged, summaries["copyspec"].ratios.pairs) == (2, 2)  # the other prompt counts
    assert (summaries["copy"].flagged, summaries["copy"].ratios.pairs) == (0, 4)
    assert summaries["copy"].ratios.prompts == 2  # two rounds of each
    text = full_table(lines)
    assert "m hits-the-cap, copyspec, round 1: count (22 tokens)" in text
    assert "ratio of totals" in text
    assert "mean of per-prompt ratios" in text


def test_29_the_two_readings_are_both_there_and_differ(tmp_path: Path) -> None:
    """A long prompt at 2x and a short one at 10x: by totals 2.2x, by prompts 6x."""
    line = {
        "kind": "run", "model": "m", "workload": "w", "size": 3, "config": "c", "arms": ["none", "copy"],
        "baseline": "none", "repeat": 0, "flags": [], "tokens_sha256": "", "prefill_s": 9.0, "tau": 2.0,
    }  # fmt: skip
    lines = [
        {**line, "case": case, "work": case, "arm": arm, "completion_tokens": tokens, "decode_s": seconds,
         "decode_tokens_per_s": tokens / seconds}
        for case, tokens, plain, drafted in (("long", 400, 20.0, 10.0), ("short", 20, 1.0, 0.1))
        for arm, seconds in (("none", plain), ("copy", drafted))
    ]  # fmt: skip
    (summary,) = summarise(lines)
    assert summary.ratios is not None
    assert summary.ratios.ratio_of_totals == pytest.approx(21 / 10.1)
    assert summary.ratios.mean_of_ratios == pytest.approx(6.0)
    assert "| 2.08 (" in full_table(lines)
    assert "| 6.00 (" in full_table(lines)
