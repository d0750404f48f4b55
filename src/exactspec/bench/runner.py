"""Arms against each other on the same prompts: interleaved, compared token by token, one JSON line a run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from exactspec.bench.answers import KeptAnswers
from exactspec.bench.arms import PLAIN, Arm, parse_arm
from exactspec.bench.asking import Asking, EngineLike
from exactspec.bench.case import Case
from exactspec.bench.eta import Remaining
from exactspec.bench.recorder import Recorder
from exactspec.bench.rounds import Contestant, Measurement
from exactspec.params import SamplingParams, Speculation

WARM_UP_TOKENS = 16
NO_DRAFTS = Speculation(draft=PLAIN)


class ReplayPeer(Protocol):
    """Another engine that says given tokens; see `peers.llama_cpp.LlamaCppPeer.replay`."""

    def replay(self, ids: Sequence[int], output: Sequence[int], *, rule: str, most: int, held: bool) -> Measurement: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Contest:
    """What runs: our engine on a model, its kept answers, and the peer of peers' arms."""

    engine: EngineLike
    model: str
    answers: KeptAnswers
    peer: ReplayPeer | None = None


def contest(engine: EngineLike, *, model: str, recorder: Recorder, peer: ReplayPeer | None = None) -> Contest:
    """A contest whose answers are kept in the recorder's file."""
    identity = str(getattr(engine, "identity", ""))
    return Contest(engine=engine, model=model, answers=KeptAnswers(recorder.out, model, identity), peer=peer)


def measure(engine: EngineLike, ids: Sequence[int], params: SamplingParams, *, draft: str) -> Measurement:
    """One answer to a prompt that nobody has read before."""
    return Asking(engine, Case(id="", ids=tuple(ids), params=params)).measure(Speculation(draft=draft))


def run_arms(
    engine: EngineLike, cases: Sequence[Case], arms: Sequence[str], *, model: str, repeats: int, recorder: Recorder
) -> None:
    """`run_contest` of draft modes by name; no answers are kept."""
    if len(set(arms)) != len(arms):
        raise ValueError(f"the arms must differ, got {', '.join(arms)}")
    parsed = [parse_arm(arm) for arm in arms]
    on = contest(engine, model=model, recorder=recorder)
    run_contest(on, cases, parsed, repeats=repeats, recorder=recorder, keep=False)


def run_contest(
    on: Contest,
    cases: Iterable[Case],
    arms: Sequence[Arm],
    *,
    repeats: int,
    recorder: Recorder,
    remaining: Remaining | None = None,
    keep: bool = True,
) -> None:
    """Every case in every round by every arm; the next case is asked for when one is done.

    The first arm is the baseline, and all must emit its tokens. A peer is made to: it gets our own plain answer, which
    is generated first where no file holds it. `keep`: the plain answers go into the file too.
    """
    for case in cases:
        with closing(Asking(on.engine, case)) as asking:
            contestants = {arm.name: _contestant(on, case, arm, asking, keep) for arm in arms}
            recorder.rounds(
                contestants,
                repeats=repeats,
                same_tokens=True,
                head={
                    **case.meta,
                    "kind": "run",
                    "model": on.model,
                    "case": case.id,
                    "work": case.work,
                    "prompt_tokens": len(case.ids),
                },
                warm_up=partial(_warm_up, on, case, arms, asking),
                remaining=remaining,
            )


def plain_answer(on: Contest, case: Case) -> tuple[int, ...]:
    """The ids of our plain answer to a case: from the file, or generated now and kept."""
    with ExitStack() as stack:

        def plain() -> Measurement:
            return stack.enter_context(closing(Asking(on.engine, case))).measure(NO_DRAFTS)

        return on.answers.get(case, plain)


def _contestant(on: Contest, case: Case, arm: Arm, asking: Asking, keep: bool) -> Contestant:
    if arm.speculation is None:
        return partial(_ask_peer, on, case, arm)
    if keep and arm.speculation == NO_DRAFTS:
        return partial(_ask_plainly, on, case, asking)
    return partial(asking.measure, arm.speculation)


def _ask_plainly(on: Contest, case: Case, asking: Asking) -> Measurement:
    done = asking.measure(NO_DRAFTS)
    on.answers.keep(case, done.token_ids)
    return done


def _ask_peer(on: Contest, case: Case, arm: Arm) -> Measurement:
    answer = on.answers.find(case)
    if on.peer is None or answer is None:
        raise ValueError(f"{arm.name} needs its peer and an answer to say")
    return on.peer.replay(case.ids, answer, rule=arm.rule, most=arm.most, held=case.held > 0)


def _warm_up(on: Contest, case: Case, arms: Sequence[Arm], asking: Asking) -> None:
    """A few tokens of every arm; before that, what the peers' arms are to say."""
    few = _shortened(case.params)
    if any(arm.peer for arm in arms):
        on.answers.get(case, partial(asking.measure, NO_DRAFTS))
    for arm in arms:
        if arm.speculation is not None:
            asking.measure(arm.speculation, few)
        elif on.peer is not None:
            answer = on.answers.find(case) or ()
            on.peer.replay(case.ids, answer[:WARM_UP_TOKENS], rule=arm.rule, most=arm.most, held=case.held > 0)


def _shortened(params: SamplingParams) -> SamplingParams:
    most = WARM_UP_TOKENS if params.max_tokens is None else min(WARM_UP_TOKENS, params.max_tokens)
    return SamplingParams(max_tokens=most, stop_token_ids=params.stop_token_ids)
