"""Counts of a reply: OpenAI's ``usage``, and what drafting did, as ``exactspec``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from exactspec.results import Completion
from exactspec.server.call import Call, Json


def usage(call: Call, done: Sequence[Completion]) -> Json:
    """Each prompt counts once, whatever `n`. Accepted prediction tokens are those that were copied from it; the
    rest of the prediction counts as rejected, as OpenAI counts."""
    firsts = done[:: call.n]
    prompt = sum(c.metrics.prompt_tokens for c in firsts)
    completion = sum(c.metrics.completion_tokens for c in done)
    accepted = sum(c.metrics.accepted_by_source.get("prediction", 0) for c in done)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": sum(c.metrics.cached_tokens for c in firsts), "audio_tokens": 0},
        "completion_tokens_details": {
            "reasoning_tokens": 0,
            "audio_tokens": 0,
            "accepted_prediction_tokens": accepted,
            "rejected_prediction_tokens": max(0, len(call.prediction or ()) * len(done) - accepted),
        },
    }


def drafting(done: Sequence[Completion]) -> Json:
    """All answers of the request together; `tau` is tokens per step."""
    first = done[0]
    steps = sum(c.metrics.num_steps for c in done)
    tokens = sum(c.metrics.completion_tokens for c in done)
    decode_s = sum(c.metrics.decode_s for c in done)
    accepted: Counter[str] = Counter()
    drafted: Counter[str] = Counter()
    for c in done:
        accepted.update(c.metrics.accepted_by_source)
        drafted.update(c.metrics.drafted_by_source)
    return {
        "identity": first.identity,
        "exact": first.exact,
        "seed": first.seed,
        "num_steps": steps,
        "num_draft_tokens": sum(drafted.values()),
        "num_accepted_tokens": sum(accepted.values()),
        "tau": tokens / steps if steps else 0.0,
        "drafted_by_source": dict(drafted),
        "accepted_by_source": dict(accepted),
        "prefill_s": sum(c.metrics.prefill_s for c in done),
        "decode_s": decode_s,
        "decode_tokens_per_s": tokens / decode_s if decode_s > 0 else 0.0,
    }
