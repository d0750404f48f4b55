"""What is measured of a server: its rate with several clients, what it adds to the library, and second turns.

Each is a contest in rounds (`exactspec.bench.recorder`): the contestants work in turn, nothing else works meanwhile,
and a result file keeps the rounds. Lines are of kind `KIND`; `part` says which contest.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from itertools import cycle, islice
from typing import Any

from exactspec.bench.asking import Asking
from exactspec.bench.case import Case
from exactspec.bench.peers.error import PeerError
from exactspec.bench.plan import prompt_once
from exactspec.bench.recorder import Recorder
from exactspec.bench.rounds import Contestant, Measurement
from exactspec.bench.runner import WARM_UP_TOKENS, Contest, plain_answer
from exactspec.bench.serving.client import Client, Reply
from exactspec.bench.serving.dialects import LlamaServer, Ours
from exactspec.bench.serving.load import Load, load
from exactspec.bench.serving.processes import ServerProcess
from exactspec.bench.serving.steps import FullStep
from exactspec.params import Speculation

KIND = "serve"
LOAD, OVERHEAD, TURN = "load", "overhead", "turn"
PEER = "llama-server"
ONE = "1 client"
LIBRARY, SERVER = "library", "server"
STEP_ROWS = 64


def several(clients: int) -> str:
    """The arm of several clients at once."""
    return f"{clients} clients"


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """What is measured: our server's process, and a peer's, beside the library in this process, which says what is
    right. `identity`: of the library's bits, which the server's must be. `settle_s`: nothing happens for so long
    before every measurement, so that the threads of the others have come to rest."""

    on: Contest
    server: ServerProcess
    recorder: Recorder
    identity: str
    peer: ServerProcess | None = None
    settle_s: float = 0.5

    def client(self, draft: str = "") -> Client:
        return Client(port=self.server.port, dialect=Ours(draft))

    def peer_client(self) -> Client:
        assert self.peer is not None
        return Client(port=self.peer.port, dialect=LlamaServer())

    def settle(self) -> None:
        time.sleep(self.settle_s)

    def head(self, part: str, workload: str, works: Sequence[object]) -> dict[str, Any]:
        """What every line of a contest says; `work` is a hash of what is measured, `works` and the server's options."""
        about = self.server.about
        return {
            "kind": KIND,
            "part": part,
            "model": self.on.model,
            "case": f"{part}: {workload}",
            "workload": workload,
            "size": 0,
            "work": hashlib.sha256(repr((*works, sorted(about.items()))).encode()).hexdigest()[:12],
            "server": about,
        }

    def checked(self, replies: Sequence[Reply]) -> None:
        """Raises PeerError where the server's identity is not ours: its answers could not be compared."""
        for reply in replies:
            if reply.notes.get("identity") != self.identity:
                raise PeerError(
                    f"the server's identity {reply.notes.get('identity')!r} is not the library's, {self.identity!r}"
                )


def measure_load(
    at: Serving, workload: str, cases: Sequence[Case], *, clients: int, rounds: int, full_step: bool
) -> list[str]:
    """One client, and several, and several at the peer, with the same requests, which all have been read before: their
    prompts are in each server's own cache, as far as it keeps them.

    Every answer of ours is compared with the library's plain one (`wrong_replies`). `full_step`: what a step of
    `STEP_ROWS` rows for these clients allows is timed beside each round of theirs. Returns the lines' `work`.
    """
    lone = [plain_answer(at.on, case) for case in cases]
    steps = _full_step(at, cases, lone, clients) if full_step else None
    together = several(clients)
    contestants: dict[str, Contestant] = {
        ONE: partial(_ours, at, cases, lone, 1, None),
        together: partial(_ours, at, cases, lone, clients, steps),
    }
    if at.peer is not None:
        contestants[PEER] = partial(_peers, at, cases, clients)

    def warm_up() -> None:
        few = [replace(case, params=replace(case.params, max_tokens=WARM_UP_TOKENS)) for case in cases]
        load(at.client().ask, few, clients=clients)
        if at.peer is not None:
            load(at.peer_client().ask, few, clients=clients)

    head = at.head(LOAD, workload, [clients, full_step, at.peer is not None, *(case.work for case in cases)])
    at.recorder.rounds(contestants, repeats=rounds, same_tokens=False, head=head, warm_up=warm_up)
    return [head["work"]]


def measure_overhead(at: Serving, cases: Sequence[Case], drafts: Sequence[str], *, rounds: int) -> list[str]:
    """One stream through HTTP against the library's own, case by case with its draft mode, the prompt being read.

    Compared is the time per token after the first ones, as the caller of the library and the client see it.
    Returns the `work` of each case's lines.
    """
    heads = []
    for case, draft in zip(cases, drafts, strict=True):
        known = prompt_once(case)
        few = replace(case, params=replace(case.params, max_tokens=WARM_UP_TOKENS))
        client = at.client(draft)
        heads.append(at.head(OVERHEAD, f"{case.id} {draft}", [case.work, draft]))
        with closing(Asking(at.on.engine, known)) as asking:
            speculation = Speculation(draft=draft)
            at.recorder.rounds(
                {
                    LIBRARY: partial(_library, at, asking, speculation),
                    SERVER: partial(_one_stream, at, client, case),
                },
                repeats=rounds,
                same_tokens=True,
                head=heads[-1],
                warm_up=lambda: (client.ask(few), asking.measure(speculation, few.params)),  # noqa: B023 - called now
            )
    return [head["work"] for head in heads]


def _ours(
    at: Serving, cases: Sequence[Case], lone: Sequence[tuple[int, ...]], clients: int, steps: FullStep | None
) -> Measurement:
    step = {} if steps is None else steps.figures()
    at.settle()
    done = load(at.client().ask, cases, clients=clients)
    at.checked(done.replies)
    return done.measurement({**step, "wrong_replies": wrong_replies(done, lone)})


def wrong_replies(done: Load, lone: Sequence[tuple[int, ...]]) -> int:
    """How many answers are not those that they are alone."""
    return sum(reply.token_ids != ids for reply, ids in zip(done.replies, lone, strict=True))


def _peers(at: Serving, cases: Sequence[Case], clients: int) -> Measurement:
    assert at.peer is not None
    at.settle()
    return load(at.peer_client().ask, cases, clients=clients).measurement({"peer": at.peer.about})


def _full_step(at: Serving, cases: Sequence[Case], lone: Sequence[tuple[int, ...]], clients: int) -> FullStep:
    """Behind the middle of the answers of as many requests as there are clients. The rows are what follows there, from
    the beginning again where that is too short."""
    rows = STEP_ROWS // clients * clients
    contexts = [(*case.ids, *ids[: len(ids) // 2]) for case, ids in zip(cases[:clients], lone[:clients], strict=True)]
    following = [tuple(islice(cycle(ids[len(ids) // 2 :]), rows // clients)) for ids in lone[:clients]]
    # The protocol of the other benches names less of the engine than is measured here.
    target = at.on.engine.target  # type: ignore[attr-defined]
    return FullStep(target, contexts, following, rows=rows)


def _library(at: Serving, asking: Asking, speculation: Speculation) -> Measurement:
    at.settle()
    done = asking.measure(speculation)
    rate = float(done.extra["stream_tokens_per_s"])  # 0 where all tokens came at once: such a pair is flagged
    return _after_first(done.token_ids, 1 / rate if rate > 0 else 0.0, done.extra)


def _one_stream(at: Serving, client: Client, case: Case) -> Measurement:
    at.settle()
    reply = client.ask(case)
    at.checked([reply])
    return _after_first(
        reply.token_ids,
        reply.s_per_token,
        {
            "time_to_first_token_s": reply.first_token_s,
            "tau": reply.notes["tau"],
            "num_steps": reply.notes["num_steps"],
            "own_tokens_per_s": reply.notes["decode_tokens_per_s"],
        },
    )


def _after_first(ids: tuple[int, ...], s_per_token: float, extra: Any) -> Measurement:
    kept = ("time_to_first_token_s", "tau", "num_steps", "own_tokens_per_s")
    return Measurement(
        token_ids=ids,
        prefill_s=float(extra["time_to_first_token_s"]),
        decode_s=s_per_token * len(ids),
        extra={key: extra[key] for key in kept if key in extra},
    )
