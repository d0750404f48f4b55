"""What drafters get accepted with the same number of nodes at every step, whatever these cost: tau, by kind of prompt.

No clock is read, so a busy machine gives the same figures. Every drafter is asked at every step and all it proposes is
verified, up to the nodes allowed: that is the comparison "at equal verified rows" which published tables of acceptance
make. What is fastest is another question: see `bench run`.

Prompts: those that training keeps out (`held_out_prompts`), or the first turns of a question file. `in_front` puts text
of the Python library before a question which has nothing to do with it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from exactspec.bench.case import Case
from exactspec.bench.questions import Question
from exactspec.bench.recipes.materials import Materials
from exactspec.bench.report import markdown
from exactspec.bench.store import Line
from exactspec.bench.workloads import prompt_ids
from exactspec.budget import FixedBudget
from exactspec.drafters.base import Drafter, wants_features
from exactspec.drafting import Drafting
from exactspec.params import SamplingParams, Speculation
from exactspec.request import Request
from exactspec.target.base import Cache, Target
from exactspec.target.tokenizer import Tokenizer
from exactspec.training.prompts import RECIPES, make_prompt, prompt_material

KIND: Final = "acceptance"
KINDS: Final = tuple(RECIPES)
TRAINED: Final = (4, 10_000)
"""Seeds from 0 on, and prompts of each, that training runs may ask: templates filled by chance may come out alike."""
_SEED = 1_000_003  # of the held-out prompts; training draws its own from other library files
_PREFILL_ROWS = 256
_FRONT = "Here is some source code, for later:\n\n{text}\n\nNow something else. {question}"


@dataclass(frozen=True, slots=True)
class Tally:
    """One answer. `tokens` emitted in `steps` target forwards, `nodes` drafted tokens verified in all; `accepted` of
    depth 1, 2, ...; `token_ids`: the answer."""

    tokens: int
    steps: int
    nodes: int
    accepted: tuple[int, ...]
    token_ids: tuple[int, ...]


def held_out_prompts(kinds: Sequence[str], count: int, materials: Materials | None = None) -> list[Question]:
    """`count` prompts of each kind of `KINDS`, first turns, which training runs do not ask: of library files that are
    held out, and without what the seeds of `TRAINED` come to. Raises ValueError on an unknown kind."""
    for kind in kinds:
        if kind not in KINDS:
            raise ValueError(f"no prompt is of kind {kind!r}: there are {', '.join(KINDS)}")
    material = prompt_material(held_out=True, materials=materials)
    theirs = prompt_material(held_out=False, materials=materials)
    trained = {make_prompt(seed, i, theirs).turns[0] for seed in range(TRAINED[0]) for i in range(TRAINED[1])}
    found: dict[str, dict[str, Question]] = {kind: {} for kind in kinds}
    index = 0
    while any(len(some) < count for some in found.values()):
        if index > 10_000 * count:
            raise ValueError(f"there are fewer than {count} different prompts of a kind: ask for fewer")
        prompt = make_prompt(_SEED, index, material)
        some = found.get(prompt.kind)
        if some is not None and len(some) < count and prompt.turns[0] not in trained and prompt.turns[0] not in some:
            some[prompt.turns[0]] = Question("held-out", f"{prompt.kind}-{len(some)}", prompt.kind, prompt.turns[:1])
        index += 1
    return [question for some in found.values() for question in some.values()]


def acceptance_case(
    tokenizer: Tokenizer, question: Question, *, max_tokens: int, temperature: float = 0.0, in_front: str = ""
) -> Case:
    """A question's first turn, with a text before it where one is given."""
    text = question.turns[0] if not in_front else _FRONT.format(text=in_front, question=question.turns[0])
    return Case(
        id=f"{question.file}/{question.id}",
        ids=tuple(prompt_ids(tokenizer, [{"role": "user", "content": text}])),
        params=SamplingParams(max_tokens=max_tokens, temperature=temperature, seed=question.seed),
        meta={"workload": question.category},
    )


def text_of(tokenizer: Tokenizer, tokens: int, materials: Materials | None = None) -> str:
    """Whole lines of the Python library of at most so many tokens. Raises ValueError if there is less."""
    lines: list[str] = []
    left = tokens
    for _, text in (materials or Materials()).library_texts(smallest=4_000):
        for line in text.splitlines():
            left -= len(tokenizer.encode(line + "\n"))
            if left < 0:
                return "\n".join(lines)
            lines.append(line)
    raise ValueError(f"the Python library here holds fewer than {tokens} tokens: install a full Python")


class ReadBefore:
    """The prompt that was read last: what the next one has in common with it is taken from its cache. Not the end,
    whose hidden states a drafter is to get."""

    __slots__ = ("_cache", "_ids")

    def __init__(self) -> None:
        self._ids: tuple[int, ...] = ()
        self._cache: Cache | None = None

    def start(self, target: Target, ids: tuple[int, ...], drafter: Drafter | None) -> Cache:
        """A cache of the common part."""
        if self._cache is None:
            return target.new_cache()
        most = len(ids) - 1 - (wants_features(drafter) if drafter else 0)
        common = next((i for i, (a, b) in enumerate(zip(self._ids, ids, strict=False)) if a != b), len(ids))
        cache = self._cache.fork()
        cache.truncate(max(0, min(common, most, cache.length)))
        return cache

    def keep(self, ids: tuple[int, ...], cache: Cache) -> None:
        """`cache` holds all of the prompt `ids` but its last token."""
        self._ids, self._cache = ids, cache.fork()


def tally(
    target: Target,
    tokenizer: Tokenizer,
    case: Case,
    drafter: Drafter | None,
    *,
    nodes: int,
    before: ReadBefore | None = None,
) -> Tally:
    """The answer with at most `nodes` nodes verified at every step. `before`: what was read already. Raises
    RuntimeError if the drafter failed in it: the answer goes on without drafts, and its figures would be another
    drafter's."""
    before = before or ReadBefore()
    speculation = Speculation(draft="auto", max_nodes=max(1, nodes))
    drafting = Drafting(
        drafter, speculation, vocab_size=target.vocab_size, budget=lambda: FixedBudget(nodes if drafter else 0)
    )
    request = Request(
        target,
        tokenizer,
        prompt=case.ids,
        params=case.params,
        seed=case.params.seed or 0,
        cache=before.start(target, case.ids, drafter),
        drafting=drafting,
    )
    while request.prompt_left:
        request.prefill(_PREFILL_ROWS)
    before.keep(case.ids, request.cache)
    while request.finish_reason is None:
        request.step()
    if drafter is not None and not drafting.alive:
        raise RuntimeError(f"drafter {drafter.name} failed in {case.id}: see the log")
    completion = request.completion()
    request.release()
    metrics = completion.metrics
    return Tally(
        metrics.completion_tokens,
        metrics.num_steps,
        metrics.num_draft_tokens,
        metrics.accepted_by_depth,
        completion.token_ids,
    )


def acceptance_lines(
    target: Target,
    tokenizer: Tokenizer,
    cases: Iterable[Case],
    arms: Mapping[str, Drafter | None],
    *,
    nodes: int,
    head: Line,
    known: Sequence[Line],
    append: Callable[[Line], None],
    tell: Callable[[str], None],
) -> list[Line]:
    """Every case by every arm; what `known` lines hold already is not run again. `head`: what every line says.

    Raises ValueError where an arm's answer is not that of another: drafts must not change one.
    """
    found: list[Line] = []
    before = ReadBefore()
    for case in cases:
        answers: dict[str, str] = {}
        for name, drafter in arms.items():
            line = {**head, "kind": KIND, "case": case.id, "work": case.work, "arm": name, "nodes": nodes, **case.meta}
            old = next((known_line for known_line in known if line.items() <= known_line.items()), None)
            if old is None:
                got = tally(target, tokenizer, case, drafter, nodes=nodes, before=before)
                old = {
                    **line,
                    "prompt_tokens": len(case.ids),
                    "completion_tokens": got.tokens,
                    "num_steps": got.steps,
                    "num_draft_tokens": got.nodes,
                    "accepted_by_depth": list(got.accepted),
                    "tokens_sha256": hashlib.sha256(" ".join(map(str, got.token_ids)).encode()).hexdigest()[:16],
                }
                append(old)
            found.append(old)
            answers[name] = old["tokens_sha256"]
        if len(set(answers.values())) > 1:
            raise ValueError(f"{case.id}: the arms' answers differ, which must never be: {answers}")
        tell(f"{case.id}: " + ", ".join(f"{line['arm']} {tau([line]):.2f}" for line in found[-len(arms) :]))
    return found


def acceptance_table(lines: Sequence[Line]) -> str:
    """For people: tau by kind of prompt and over all, each arm to the first, and rows verified a step."""
    kinds = list(dict.fromkeys(str(line["workload"]) for line in lines))
    arms = list(dict.fromkeys(str(line["arm"]) for line in lines))
    rows = []
    for kind in [*kinds, "all"]:
        here = [line for line in lines if kind in ("all", line["workload"])]
        first = tau([line for line in here if line["arm"] == arms[0]])
        for arm in arms:
            its = [line for line in here if line["arm"] == arm]
            steps = sum(line["num_steps"] for line in its)
            verified = 1 + sum(line["num_draft_tokens"] for line in its) / max(1, steps)
            depths = _by_depth(its)
            rows.append(
                (
                    kind,
                    arm,
                    str(len(its)),
                    str(sum(line["completion_tokens"] for line in its)),
                    f"{tau(its):.3f}",
                    f"{tau(its) / first:.3f}" if first else "-",
                    f"{verified:.1f}",
                    " ".join(f"{share:.2f}" for share in depths[:6]),
                )
            )
    head = ("prompts", "arm", "answers", "tokens", "tau", f"to {arms[0]}", "rows a step", "steps accepting 1, 2, ...")
    return markdown(head, rows)


def tau(lines: Sequence[Line]) -> float:
    """Tokens emitted a step, over all answers; 0 where there are none."""
    steps = sum(line["num_steps"] for line in lines)
    return sum(line["completion_tokens"] for line in lines) / steps if steps else 0.0


def _by_depth(lines: Sequence[Line]) -> list[float]:
    """The share of steps in which a node of depth 1, 2, ... was accepted."""
    steps = max(1, sum(line["num_steps"] for line in lines))
    deepest = max((len(line["accepted_by_depth"]) for line in lines), default=0)
    return [
        sum(line["accepted_by_depth"][d] for line in lines if len(line["accepted_by_depth"]) > d) / steps
        for d in range(deepest)
    ]
