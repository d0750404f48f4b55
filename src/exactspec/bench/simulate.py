"""Replaying stored answers through a drafter, with no model: a drafted token is accepted iff it is the stored one.

For greedy answers that is what the target would do, so tau and the rows verified are those of a real run; times are
predicted from a cost table (`budget.CostModel`). Sampled answers may be replayed too: the target's draws are what was
stored. A log is a file of JSON lines, one answer each (docs/formats.md): `prompt_ids`, `output_ids`, and optionally
`prediction_ids`, `id`, `workload`; other keys are ignored.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from exactspec.bench.propose import NoCache, agreeing_path, rows_of_nothing
from exactspec.budget import Budget, Cost
from exactspec.drafters.base import Context, DraftBudget, Drafter, Verified
from exactspec.tree import DraftTree

VOCABULARY = 2**31 - 1
"""Ids are not checked against a model: any int32 will do."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One line of a log. `workload`: what results are grouped by."""

    id: str
    workload: str
    prompt: tuple[int, ...]
    output: tuple[int, ...]
    prediction: tuple[int, ...] = ()


def read_log(path: Path) -> list[Answer]:
    """The answers of a log, those with an empty prompt or output left out. Raises ValueError naming the line."""
    answers: list[Answer] = []
    with path.open(encoding="utf-8") as file:
        for number, raw in enumerate(file, 1):
            if not raw.strip():
                continue
            try:
                line = json.loads(raw)
            except ValueError:
                line = None
            if not isinstance(line, dict):
                raise ValueError(f"{path}, line {number}, is not a JSON object")
            ids = {key: line.get(key, []) for key in ("prompt_ids", "output_ids", "prediction_ids")}
            for key, value in ids.items():
                if key not in line and key != "prediction_ids":
                    raise ValueError(f"{path}, line {number}, has no {key}: see docs/formats.md")
                if not isinstance(value, list) or not all(type(t) is int and 0 <= t < VOCABULARY for t in value):
                    raise ValueError(f"{path}, line {number}: {key} must be a list of token ids")
            if ids["prompt_ids"] and ids["output_ids"]:
                name = str(line.get("id", number))
                group = str(line.get("workload", "all"))
                answers.append(Answer(name, group, *(tuple(v) for v in ids.values())))
    return answers


def log_line(answer: Answer) -> str:
    """`answer` as a line of a log, without its line end."""
    line: dict[str, object] = {"id": answer.id, "workload": answer.workload}
    line |= {"prompt_ids": list(answer.prompt), "output_ids": list(answer.output)}
    if answer.prediction:
        line["prediction_ids"] = list(answer.prediction)
    return json.dumps(line)


@dataclass(frozen=True, slots=True)
class Replayed:
    """Sums over answers. `rows`: verified, roots included. `copied`: tokens accepted from drafts. `cost`: time of all
    forwards, in plain steps. `propose_s`, `commit_s`: the drafter's own time. `promised`: sum of the scores of the
    nodes verified, to hold against `copied` (each accepted node is one that was promised)."""

    tokens: int = 0
    steps: int = 0
    rows: int = 0
    copied: int = 0
    cost: float = 0.0
    propose_s: float = 0.0
    commit_s: float = 0.0
    promised: float = 0.0

    def __add__(self, other: Replayed) -> Replayed:
        return Replayed(*(getattr(self, name) + getattr(other, name) for name in self.__slots__))

    @property
    def tau(self) -> float:
        return self.tokens / self.steps if self.steps else 0.0

    @property
    def copy_share(self) -> float:
        return self.copied / self.tokens if self.tokens else 0.0

    @property
    def speedup(self) -> float:
        """Predicted decode speed against plain decoding, one step a token; the drafter's own time left out."""
        return self.tokens / self.cost if self.cost else 0.0


class Threshold:
    """A budget that verifies every node at least `least` likely: what makes two drafters comparable at equal rows."""

    __slots__ = ("_least", "_most")

    def __init__(self, least: float, most: int) -> None:
        self._least, self._most = least, most

    def nodes(self) -> int:
        return self._most

    def choose(self, tree: DraftTree) -> DraftTree:
        return tree.prune(max_nodes=int((tree.score >= self._least).sum()))

    def record(self, *, drafted: int, accepted: int) -> None:
        return None


def replay(
    answer: Answer,
    drafter: Drafter | None,
    budget: Budget,
    *,
    cost: Cost,
    clock: Callable[[], float] = time.perf_counter,
) -> Replayed:
    """One answer, step by step as the engine takes them; `drafter` None decodes plainly."""
    output = np.array(answer.output, dtype=np.int64)
    n = len(answer.prompt)
    state = None
    if drafter is not None:
        ids, foreseen = (np.array(a, dtype=np.int64) for a in (answer.prompt, answer.prediction))
        state = drafter.begin(Context(ids, foreseen, NoCache(n - 1)))
    at = steps = rows = copied = 0
    spent = proposing = committing = promised = 0.0
    while at < len(output):
        tree = DraftTree.empty()
        left, nodes = len(output) - at - 1, budget.nodes()
        if drafter is not None and left and nodes:
            start = clock()
            tree = drafter.propose(state, DraftBudget(nodes, left))
            proposing += clock() - start
            tree = budget.choose(tree.sanitise(VOCABULARY, max_nodes=nodes, max_depth=left))
        path = agreeing_path(tree, output[at:])
        emitted = output[at : at + len(path) + 1]
        if drafter is not None:
            made = rows_of_nothing(len(tree) + 1)
            verified = Verified(tree, np.array(path, dtype=np.int64), emitted, made, NoCache(n + at + len(path)))
            start = clock()
            drafter.commit(state, verified)
            committing += clock() - start
        budget.record(drafted=len(tree), accepted=len(path))
        at += len(emitted)
        steps += 1
        rows += len(tree) + 1
        copied += len(path)
        spent += cost(len(tree) + 1)
        promised += float(tree.score.sum())
    if drafter is not None:
        drafter.close(state)
    return Replayed(at, steps, rows, copied, spent, proposing, committing, promised)


def replay_all(
    answers: Iterable[Answer], drafter: Drafter | None, new_budget: Callable[[], Budget], *, cost: Cost
) -> dict[str, Replayed]:
    """Sums by workload, in the order in which they come."""
    sums: dict[str, Replayed] = {}
    for answer in answers:
        one = replay(answer, drafter, new_budget(), cost=cost)
        sums[answer.workload] = sums.get(answer.workload, Replayed()) + one
    return sums


def at_equal_rows(answers: Sequence[Answer], drafter: Drafter, *, rows: int, most: int, cost: Cost) -> Replayed:
    """The drafter with its nodes cut at the least likelihood at which it verifies no more than `rows` rows in all."""
    low, high = 0.0, 1.0
    best: Replayed | None = None
    for _ in range(9):
        middle = (low + high) / 2
        one = sum((replay(a, drafter, Threshold(middle, most), cost=cost) for a in answers), Replayed())
        if one.rows <= rows:
            high = middle
            if best is None or one.rows >= best.rows:
                best = one
        else:
            low = middle
    return best or sum((replay(a, None, Threshold(1.0, 0), cost=cost) for a in answers), Replayed())
