"""Replaying stored answers through a drafter, with no model: a drafted token is accepted iff it is the stored one.

For greedy answers that is what the target would do, so tau and the rows verified are those of a real run; times are
predicted from a cost table (`budget.CostModel`). Sampled answers may be replayed too: the target's draws are what was
stored. A log is a file of JSON lines, one answer each (docs/benchmarks.md): `prompt_ids`, `output_ids`, and optionally
`prediction_ids`, `topk_ids` with `topk_logits`, `id`, `workload`; other keys are ignored.

Drafters that go by the target's best ids (`wants_topk`) get those of the rows on the accepted path, if the log has
them, else the stored token alone. What a real target says of rejected rows is not known here: such drafters do
somewhat better in a real run. Drafters that look at what the target computes (a draft layer) can be replayed beside
that target, which reads every answer once: see `teacher`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from exactspec.bench.propose import NoCache, agreeing_path, rows_of_nothing
from exactspec.bench.teacher import Reading, Teacher
from exactspec.budget import Budget, Cost, CostModel, make_budget
from exactspec.drafters import Models, make_drafter
from exactspec.drafters.base import Context, DraftBudget, Drafter, Verified, wants_features, wants_topk
from exactspec.json_lines import append_lines, json_lines
from exactspec.params import Speculation
from exactspec.target.base import Cache, SegmentRows
from exactspec.tree import DraftTree

_TINY = (1, 2, 1, 2, 1, 2, 1, 2)

VOCABULARY = 2**31 - 1
"""Ids are not checked against a model: any int32 will do."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One line of a log. `workload`: what results are grouped by. `best`: for each output token, the ids that the
    target found likeliest there with their logits (up to a constant), best first; empty where unknown."""

    id: str
    workload: str
    prompt: tuple[int, ...]
    output: tuple[int, ...]
    prediction: tuple[int, ...] = ()
    best: tuple[tuple[tuple[int, float], ...], ...] = ()


def read_log(path: Path) -> list[Answer]:
    """The answers of a log, those with an empty prompt or output left out. Raises ValueError naming the line."""
    answers: list[Answer] = []
    for number, line in json_lines(path):
        ids = {key: line.get(key, []) for key in ("prompt_ids", "output_ids", "prediction_ids")}
        for key, value in ids.items():
            if key not in line and key != "prediction_ids":
                raise ValueError(f"{path}, line {number}, has no {key}: see docs/benchmarks.md")
            if not isinstance(value, list) or not all(type(t) is int and 0 <= t < VOCABULARY for t in value):
                raise ValueError(f"{path}, line {number}: {key} must be a list of token ids")
        if ids["prompt_ids"] and ids["output_ids"]:
            name = str(line.get("id", number))
            group = str(line.get("workload", "all"))
            best = _best(line, len(ids["output_ids"]), f"{path}, line {number}")
            prompt, output, prediction = (tuple(value) for value in ids.values())
            answers.append(Answer(name, group, prompt, output, prediction, best))
    return answers


def _best(line: Mapping[str, object], n: int, where: str) -> tuple[tuple[tuple[int, float], ...], ...]:
    """`topk_ids` and `topk_logits` of a line, one list of each for every output token; empty where there are none."""
    if "topk_ids" not in line:
        return ()
    try:
        ids, logits = np.array(line["topk_ids"]), np.array(line["topk_logits"], dtype=np.float64)
        ok = ids.dtype.kind == "i" and ids.ndim == 2 and ids.shape == logits.shape and len(ids) == n
        ok = ok and ids.min(initial=0) >= 0 and ids.max(initial=0) < VOCABULARY and bool(np.isfinite(logits).all())
    except (KeyError, TypeError, ValueError, OverflowError):
        ok = False
    if not ok:
        raise ValueError(f"{where}: topk_ids and topk_logits must be lists of equal length for each of the {n} tokens")
    return tuple(tuple(zip(a, b, strict=True)) for a, b in zip(ids.tolist(), logits.tolist(), strict=True))


def append_log(path: Path, answers: Iterable[Answer]) -> None:
    """Add answers to a log, which is made where there is none: all of them or none. Raises OSError."""
    append_lines(path, map(log_line, answers))


def log_line(answer: Answer) -> str:
    """`answer` as a line of a log, without its line end."""
    line: dict[str, object] = {"id": answer.id, "workload": answer.workload}
    line |= {"prompt_ids": list(answer.prompt), "output_ids": list(answer.output)}
    if answer.prediction:
        line["prediction_ids"] = list(answer.prediction)
    if answer.best:
        line["topk_ids"] = [[token for token, _ in row] for row in answer.best]
        line["topk_logits"] = [[round(logit, 4) for _, logit in row] for row in answer.best]
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

    def as_dict(self) -> dict[str, float]:
        """All sums and the derived figures, for JSON."""
        figures = {"tau": self.tau, "copy_share": self.copy_share, "predicted_speedup": self.speedup}
        return {name: getattr(self, name) for name in self.__slots__} | figures

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

    def speedup_on(self, plain_s: float) -> float:
        """The same with the drafter's own time, where a plain step takes `plain_s` seconds."""
        spent = self.cost + (self.propose_s + self.commit_s) / plain_s
        return self.tokens / spent if spent else 0.0


class Threshold:
    """A budget that verifies every node at least `least` likely: what makes two drafters comparable at equal rows."""

    __slots__ = ("_least", "_most")

    def __init__(self, least: float, most: int) -> None:
        self._least, self._most = least, most

    def nodes(self) -> int:
        return self._most

    def choose(self, tree: DraftTree, *, cost: Cost | None = None) -> DraftTree:
        return tree.prune(max_nodes=int((tree.score >= self._least).sum()))

    def allow(self, tree: DraftTree) -> DraftTree:
        return self.choose(tree)

    def record(self, *, drafted: int, accepted: int, promised: float | None = None) -> None:
        return None


def replay(
    answer: Answer,
    drafter: Drafter | None,
    budget: Budget,
    *,
    cost: Cost,
    clock: Callable[[], float] = time.perf_counter,
    teacher: Teacher | None = None,
) -> Replayed:
    """One answer, step by step as the engine takes them; `drafter` None decodes plainly. `teacher`: the target, where
    the drafter wants more of it than the answer. Raises ValueError if the answer is none of that target's."""
    output = np.array(answer.output, dtype=np.int64)
    n = len(answer.prompt)
    state = None
    reading: Reading | None = None
    if drafter is not None:
        ids, foreseen = (np.array(a, dtype=np.int64) for a in (answer.prompt, answer.prediction))
        features = None
        if teacher is not None and (wanted := wants_features(drafter)):
            reading = teacher.read((*answer.prompt, *answer.output), f"answer {answer.id}")
            features = reading.features[max(0, n - 1 - wanted) : n - 1]
        state = drafter.begin(Context(ids, foreseen, _cache(reading, n), features))
    plain_s = 0.0 if teacher is None else teacher.plain_s
    asks = wants_topk(drafter)
    at = steps = rows = copied = 0
    spent = proposing = committing = promised = 0.0
    while at < len(output):
        tree = DraftTree.empty()
        left, nodes = len(output) - at - 1, budget.nodes()
        if drafter is not None and left and nodes:
            start = clock()
            tree = drafter.propose(state, DraftBudget(nodes, left, cost, plain_s))
            proposing += clock() - start
            tree = budget.choose(tree.sanitise(VOCABULARY, max_nodes=nodes, max_depth=left))
        path = agreeing_path(tree, output[at:])
        emitted = output[at : at + len(path) + 1]
        if drafter is not None:
            made = _rows(answer, at, path, len(tree) + 1) if asks else rows_of_nothing(len(tree) + 1)
            if reading is not None:
                made = reading.rows(made, n + at, path)
            cache = _cache(reading, n + at + len(emitted))
            verified = Verified(tree, np.array(path, dtype=np.int64), emitted, made, cache)
            if teacher is not None:
                teacher.clock.advance(plain_s * cost(len(tree) + 1))
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


def _cache(reading: Reading | None, length: int) -> Cache:
    """Of a history of so many tokens."""
    return NoCache(length - 1) if reading is None else reading.until(length)


def _rows(answer: Answer, at: int, path: Sequence[int], n: int) -> SegmentRows:
    """What is known of a target's `n` rows: those of the root and of the accepted nodes `path`."""
    k = len(answer.best[0]) if answer.best else 1
    ids, logits = np.full((n, k), -1, dtype=np.int64), np.zeros((n, k), dtype=np.float32)
    for i, row in enumerate((0, *(node + 1 for node in path))):
        if at + i < len(answer.output):
            best = answer.best[at + i] if answer.best else ((answer.output[at + i], 0.0),)
            ids[row] = [token for token, _ in best]
            logits[row] = [logit for _, logit in best]
    return replace(rows_of_nothing(n), topk_ids=ids, topk_logits=logits)


def by_workload(answers: Iterable[Answer]) -> dict[str, list[Answer]]:
    """The answers by workload, in the order in which they come."""
    groups: dict[str, list[Answer]] = {}
    for answer in answers:
        groups.setdefault(answer.workload, []).append(answer)
    return groups


def replay_all(
    answers: Iterable[Answer],
    drafter: Drafter | None,
    new_budget: Callable[[], Budget],
    *,
    cost: Cost,
    teacher: Teacher | None = None,
) -> Replayed:
    """The sums over several answers, each with a budget of its own."""
    return sum((replay(answer, drafter, new_budget(), cost=cost, teacher=teacher) for answer in answers), Replayed())


def compare(
    answers: Sequence[Answer],
    modes: Mapping[str, Speculation],
    *,
    equal_rows: bool,
    cost: Cost | None = None,
    teacher: Teacher | None = None,
    models: Models | None = None,
) -> dict[str, Replayed]:
    """The sums by mode. `equal_rows`: every mode but the first verifies its likeliest nodes only, and in all no more
    rows than the first. `teacher`, `models`: the target and its layers, for modes with one. Raises ValueError on a mode
    that needs what is not there."""
    model = CostModel() if cost is None else cost
    found: dict[str, Replayed] = {}
    for mode, speculation in modes.items():
        drafter = make_drafter(speculation, models=models, cost=cost)
        if drafter is not None:  # its compiled parts are loaded at the first use, which is no answer's time
            tiny = Answer("", "", _TINY, _TINY)
            replay(tiny, drafter, make_budget(speculation, cost=model), cost=model, teacher=teacher)
        if equal_rows and found and drafter is not None:
            rows = next(iter(found.values())).rows
            found[mode] = at_equal_rows(
                answers, drafter, rows=rows, most=speculation.max_nodes, cost=model, teacher=teacher
            )
        else:
            new_budget = partial(make_budget, speculation, cost=model)
            found[mode] = replay_all(answers, drafter, new_budget, cost=model, teacher=teacher)
    if teacher is not None:
        teacher.forget()
    return found


def at_equal_rows(
    answers: Sequence[Answer],
    drafter: Drafter,
    *,
    rows: int,
    most: int,
    cost: Cost,
    teacher: Teacher | None = None,
) -> Replayed:
    """The drafter with its nodes cut at the least likelihood at which it verifies no more than `rows` rows in all."""
    low, high = 0.0, 1.0
    best: Replayed | None = None
    for _ in range(9):
        middle = (low + high) / 2
        one = replay_all(answers, drafter, partial(Threshold, middle, most), cost=cost, teacher=teacher)
        if one.rows <= rows:
            high = middle
            if best is None or one.tokens / one.steps > best.tau:
                best = one
        else:
            low = middle
    return best or replay_all(answers, None, partial(Threshold, 1.0, 0), cost=cost)
