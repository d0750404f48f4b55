"""Cases replayed through draft modes: drafts are accepted iff they agree with the case's ideal reply, or, where none is
known, with the plain answer kept in the result file. See `simulate` for what is predicted, and from what. No model
runs, but for modes with a draft layer, for which the target reads every reply (see `teacher`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict

from exactspec.bench.arms import Arm
from exactspec.bench.case import Case
from exactspec.bench.recorder import Recorder
from exactspec.bench.runner import Contest, plain_answer
from exactspec.bench.simulate import Answer, Replayed, compare
from exactspec.bench.store import Line
from exactspec.bench.teacher import teach
from exactspec.budget import Cost, CostModel
from exactspec.draft_names import layer_draft, model_draft
from exactspec.params import Speculation

GOLD, OWN = "gold", "own"


def replay_cases(
    on: Contest,
    cases: Iterable[Case],
    arms: Sequence[Arm],
    *,
    equal_rows: bool,
    recorder: Recorder,
    cost: Cost | None = None,
) -> list[Line]:
    """One line per workload, size and arm, which the recorder's file gets too.

    `equal_rows`: no arm verifies more rows in all than the first. `cost`: of the model's rows (None: the built-in
    table). Raises ValueError on an arm that cannot be replayed.
    """
    modes = replayable(arms)
    layers = [asked.layer for mode in modes.values() if (asked := layer_draft(mode.draft)) is not None]
    target = getattr(on.engine, "target", None)
    teacher, models = teach(target, layers, cost=cost, tell=recorder.progress) if layers else (None, None)
    groups: dict[tuple[str, int, str], list[Answer]] = {}
    for case in cases:
        output, told = (case.gold, GOLD) if case.gold else (plain_answer(on, case), OWN)
        workload, size = str(case.meta["workload"]), int(case.meta["size"])
        if output:
            answer = Answer(case.id, workload, case.ids, output)
            groups.setdefault((workload, size, told), []).append(answer)
    lines: list[Line] = []
    model = CostModel() if cost is None else cost
    for (workload, size, told), answers in groups.items():
        found = compare(answers, modes, equal_rows=equal_rows, cost=model, teacher=teacher, models=models)
        head = {
            "kind": "replay",
            "model": on.model,
            "workload": workload,
            "size": size,
            "replies": told,
            "answers": len(answers),
            "equal_rows": equal_rows,
            "arms": list(modes),
            "config": recorder.provenance().config,
            "cost_of_rows": {str(rows): model(rows) for rows in (1, 2, 4, 8, 16, 32)},
        }
        new = [{**head, "arm": arm, **sums.as_dict(), **_with_drafter(sums, model)} for arm, sums in found.items()]
        origin = asdict(recorder.provenance())
        recorder.out.append([{**line, "provenance": origin} for line in new])
        recorder.progress(
            f"{on.model} {workload} {size or ''}: " + ", ".join(f"{arm} tau {x.tau:.2f}" for arm, x in found.items())
        )
        lines += new
    return lines


def replayable(arms: Sequence[Arm]) -> dict[str, Speculation]:
    """The arms' modes by name. Raises ValueError on one that needs another model or another engine."""
    modes: dict[str, Speculation] = {}
    for arm in arms:
        if arm.speculation is None or model_draft(arm.speculation.draft) is not None:
            raise ValueError(f"{arm.name} cannot be replayed without its model: leave it out")
        modes[arm.name] = arm.speculation
    return modes


def _with_drafter(sums: Replayed, cost: Cost) -> Line:
    """The drafter's own seconds, and the predicted speed with them; without, where no plain step was timed."""
    one_s = cost.one_s if isinstance(cost, CostModel) else 0.0
    whole = sums.speedup_on(one_s) if one_s > 0 else sums.speedup
    return {"drafter_s": sums.propose_s + sums.commit_s, "plain_step_s": one_s, "predicted_with_drafter": whole}
