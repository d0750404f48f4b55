"""The acceptance rule: the target's own choices, followed down the draft. Pure: no model, no cache, no clock.

The target's sample is always what is emitted; a draft only decides how many samples one forward yields. That is
why the walk is exact at any temperature, with any penalty, and for any draft (unlike rejection sampling, which
keeps the distribution but not the tokens).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from exactspec.target.base import FloatArray, SegmentRows
from exactspec.tree import ROOT, DraftTree

if TYPE_CHECKING:
    from exactspec.sampling import Sampled


class Chooser(Protocol):
    """Draws one token from a row and takes it into its running history (`sampling.Sampler`)."""

    def sample(self, *, argmax: int, logits: FloatArray | None) -> Sampled: ...


class Ender(Protocol):
    """Sees every token once, in order; True when the answer ends with it (`stopping.Stopper`)."""

    def push(self, token: int) -> bool: ...


@dataclass(frozen=True, slots=True)
class Walked:
    """What one step emits.

    `choices` [e]: the target's choices, in order; nothing after the first stop. `path` [a]: accepted nodes from the
    root down; choice i was drafted by node ``path[i]`` where i < a. e is a + 1, or a if the stop fell on a node.
    """

    choices: tuple[Sampled, ...]
    path: tuple[int, ...]
    stopped: bool


def walk(tree: DraftTree, rows: SegmentRows, sampler: Chooser, stopper: Ender) -> Walked:
    """Sample from row 0; while a child of the current node holds the sampled token, go to it and sample there.

    `rows`: the target's rows of the verify segment, row 0 the root, row i + 1 node i. The sampler and the stopper
    are advanced by exactly the tokens returned: the walk is one path, so nothing is ever taken back.
    """
    child: dict[tuple[int, int], int] = {}
    if len(tree):
        for i, edge in enumerate(zip(tree.parents.tolist(), tree.tokens.tolist(), strict=True)):
            child.setdefault(edge, i)
    argmax: list[int] = rows.argmax.tolist()
    has_logits = rows.logits_index.tolist()
    choices: list[Sampled] = []
    path: list[int] = []
    node: int | None = ROOT
    stopped = False
    while node is not None and not stopped:
        row = node + 1
        choice = sampler.sample(argmax=argmax[row], logits=rows.row_logits(row) if has_logits[row] >= 0 else None)
        choices.append(choice)
        node = child.get((node, choice.token))
        if node is not None:
            path.append(node)
        stopped = stopper.push(choice.token)
    return Walked(tuple(choices), tuple(path), stopped)


@dataclass(frozen=True, slots=True)
class Credit:
    """Where an emitted token came from; the fields of `TokenInfo` of the same names."""

    source: str = "target"
    source_span: tuple[int, int] | None = None


def credits(tree: DraftTree, walked: Walked) -> list[Credit]:
    """One credit per choice. A copied run goes on while source and origin follow one another within the step.

    Nodes copied from 7, 8 and then 30 give the spans (7, 9), (7, 9), (30, 31).
    """
    names = [tree.sources[int(tree.source[node])] for node in walked.path]
    origins = [int(tree.origin[node]) for node in walked.path]
    found: list[Credit] = []
    start = 0
    for i in range(1, len(names) + 1):
        runs_on = i < len(names) and names[i] == names[start] and 0 <= origins[i - 1] == origins[i] - 1
        if not runs_on:
            span = (origins[start], origins[i - 1] + 1) if origins[start] >= 0 else None
            found += [Credit(names[start], span)] * (i - start)
            start = i
    return found + [Credit()] * (len(walked.choices) - len(found))
