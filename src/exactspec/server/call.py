"""One HTTP request, ready to be run: what to submit, and how to show what comes back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from exactspec.params import SamplingParams, Speculation
from exactspec.results import Chunk, Completion

Json: TypeAlias = dict[str, Any]


class Choice(Protocol):
    """How one choice is shown. Each method returns the objects that go into ``choices``, without their index."""

    def begin(self) -> list[Json]:
        """Before the first chunk of a stream."""
        ...

    def chunk(self, chunk: Chunk) -> list[Json]:
        """For a chunk of a stream, the last one's text and tokens included; none where there is nothing to show."""
        ...

    def blank(self) -> list[Json]:
        """One object with nothing to show, for what is put beside it."""
        ...

    def end(self, completion: Completion, reason: str) -> list[Json]:
        """The end of a stream; the last object carries the finish reason."""
        ...

    def whole(self, completion: Completion, reason: str) -> Json:
        """The reply of a request that does not stream."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """`prompts` [p]: ids of each. `params`: of choice 0; choice j of a prompt differs in `SamplingParams.choice`.
    Answer i is choice ``i % n`` of prompt ``i // n``.

    `kind`, `chunk_kind`: values of ``object``; `prefix`: of the reply's id. `prompt_param`: the field that a prompt
    that is too long is blamed on; `constraint_param`: that of a constraint which cannot be used. `prediction`: ids.
    `token_ids`: each choice carries the ids of its tokens. `show`: makes a fresh `Choice` for answer i.
    """

    prompts: Sequence[list[int]]
    n: int
    params: SamplingParams
    speculation: Speculation | None
    prediction: Sequence[int] | None
    templated: bool
    stream: bool
    include_usage: bool
    trace: bool
    token_ids: bool
    kind: str
    chunk_kind: str
    prefix: str
    prompt_param: str
    constraint_param: str | None
    show: Callable[[int], Choice]

    def __len__(self) -> int:
        return len(self.prompts) * self.n
