"""What a caller gets back. Every list was cut at the first stop: text, ids, logprobs and counts agree."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from exactspec.tree import DraftTree


@dataclass(frozen=True, slots=True)
class TokenInfo:
    """One emitted token.

    `text`: its own bytes decoded with replacement (the completion's text is decoded as a whole).
    `logprob`: log-probability in the raw distribution (None unless asked). `top`: the best (id, logprob), best first.
    `source`: the drafter whose node was accepted, or "target" for the target's own token.
    `source_span`: (start, end) of the copied run this token belongs to, as indices into the history (prompt +
    output), or into the prediction's ids for source "prediction"; None where nothing was copied.
    """

    id: int
    text: str
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()
    source: str = "target"
    source_span: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One step, on request. `context`: history length before it (tokens); `rows`: rows verified (root included);
    `depth`: of the draft tree; `accepted`: nodes accepted; `emitted`: tokens added; `source`: of the deepest
    accepted node, "" if none; times in seconds. `tree`: what was verified; `path`: the accepted nodes."""

    context: int
    rows: int
    depth: int
    accepted: int
    emitted: int
    source: str
    propose_s: float
    verify_s: float
    walk_s: float
    tree: DraftTree | None = None
    path: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics:
    """Counters of one completion; names follow vLLM's and OpenAI's. Times in seconds (monotonic clock).

    `cached_tokens`: prompt tokens whose keys and values were reused. `num_steps`: verify calls, plain steps
    included. `tau` = completion_tokens / num_steps. `num_draft_tokens`: nodes verified; `num_accepted_tokens`:
    nodes accepted and emitted. `prefill_s`: the forward over the prompt without its last token, which is the root
    of the first step. `decode_s`: the steps, from the start of the first (the drafter's preparation included) to the
    last token; time that a caller spends between the chunks of a stream does not count. `drafted_by_source`,
    `accepted_by_source`: nodes by the drafter they are credited to. `drafted_by_depth`, `accepted_by_depth`: item i
    counts nodes that are the (i + 1)-th token of their step.
    """

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    num_steps: int
    num_draft_tokens: int
    num_accepted_tokens: int
    prefill_s: float
    decode_s: float
    accepted_by_source: dict[str, int] = field(default_factory=dict)
    drafted_by_source: dict[str, int] = field(default_factory=dict)
    drafted_by_depth: tuple[int, ...] = ()
    accepted_by_depth: tuple[int, ...] = ()

    @property
    def tau(self) -> float:
        return self.completion_tokens / self.num_steps if self.num_steps else 0.0

    @property
    def decode_tokens_per_s(self) -> float:
        return self.completion_tokens / self.decode_s if self.decode_s > 0 else 0.0

    def as_dict(self) -> dict[str, Any]:
        """All counters and the two derived figures, for JSON."""
        return asdict(self) | {"tau": self.tau, "decode_tokens_per_s": self.decode_tokens_per_s}


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """One answer. `finish_reason`: "stop" (EOS or stop string), "length" (max_tokens or the context end), or
    "cancelled" (the caller stopped a stream). `seed`: the one used, drawn if none was given. `identity`: what equal
    bits are promised for. `exact`: whether the target keeps that promise. `steps`: empty unless asked for."""

    text: str
    token_ids: tuple[int, ...]
    finish_reason: str
    seed: int
    identity: str
    exact: bool
    metrics: Metrics
    tokens: tuple[TokenInfo, ...]
    steps: tuple[StepRecord, ...] = ()


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of a stream: text that is final, and the tokens that were added since the last chunk.

    `text` may be empty while characters or a possible stop string are held back; joined texts equal the
    completion's text. The last chunk carries `completion`.
    """

    text: str
    tokens: tuple[TokenInfo, ...]
    completion: Completion | None = None
