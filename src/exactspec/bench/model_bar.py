"""The bar of a smaller model that drafts together with copying, on questions' second turns: against that model alone at
its best fixed length, which is the published protocol (arXiv 2502.08923), and against copying alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from exactspec.bench.bar import Bar
from exactspec.bench.questions import SECOND
from exactspec.bench.recorder import Recorder
from exactspec.bench.report import summarise
from exactspec.bench.runner import Contest
from exactspec.bench.runtime_bars import LARGE, MIDDLE
from exactspec.bench.speed_bars import Effort, asked_questions, measured_lines
from exactspec.bench.speed_up import speed_up_bar

NAME = "model-draft"
MODEL, DRAFTER = LARGE, MIDDLE
ALONE = tuple(f"model:{DRAFTER}@draft_length={length}" for length in (3, 5, 8))
COPYING = "copy"
TOGETHER = (f"auto+model:{DRAFTER}", f"copyspec+model:{DRAFTER}@draft_length=5")
ARMS = (COPYING, *ALONE, *TOGETHER)
OVER_MODEL, OVER_COPY = 1.49, 1.0
LIMITS: Mapping[str, Mapping[str, float]] = {NAME: {MODEL: OVER_MODEL}}


def model_bars(on: Contest, *, effort: Effort, recorder: Recorder) -> Iterator[Bar]:
    """Two bars, over all tokens. The engine must have `DRAFTER` among its draft models."""
    cases, prompts = asked_questions(on, SECOND, effort, per_category=1, max_tokens=128)
    lines = measured_lines(on, cases, ARMS, prompts=prompts, rounds=effort.rounds or 1, recorder=recorder)
    speeds = {s.arm: s.ratios.ratio_of_totals for s in summarise(lines) if s.ratios is not None}
    together = max(TOGETHER, key=lambda arm: speeds.get(arm, 0.0))
    alone = max(ALONE, key=lambda arm: speeds.get(arm, 0.0))
    for baseline, limit in ((alone, OVER_MODEL), (COPYING, OVER_COPY)):
        yield speed_up_bar(
            f"{NAME}, {together} against {baseline}: {on.model}",
            lines,
            arm=together,
            baseline=baseline,
            limit=limit,
            reading="totals",
        )
