"""How a server is asked to go on from ids, and how the ids of its answer are read from the events of its stream."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from exactspec.bench.case import Case
from exactspec.bench.peers.error import PeerError

Json = Mapping[str, Any]


class Dialect(Protocol):
    """`path`: where requests go. `body`: of the request for a case. `ids`: of the tokens that an event carries, none
    where it carries none; raises PeerError on an event that tells of an error. `notes`: what else an event tells of the
    answer, empty for most. `unseen`: of an answer's notes and the ids that its events carried, how many more tokens the
    server says it made."""

    @property
    def path(self) -> str: ...
    def body(self, case: Case) -> dict[str, Any]: ...
    def ids(self, event: Json) -> list[int]: ...
    def notes(self, event: Json) -> Json: ...
    def unseen(self, notes: Json, seen: int) -> int: ...


@dataclass(frozen=True, slots=True)
class Ours:
    """/v1/completions of our server. `draft`: of every request; "": what the server was started with."""

    draft: str = ""
    path: str = "/v1/completions"

    def body(self, case: Case) -> dict[str, Any]:
        params = case.params
        body: dict[str, Any] = {
            "prompt": list(case.ids),
            "max_tokens": params.max_tokens,
            "temperature": params.temperature,
            "seed": params.seed,
            "ignore_eos": params.ignore_eos,
            "stream": True,
            "return_token_ids": True,
        }
        if self.draft:
            body["speculative"] = {"draft": self.draft}
        return body

    def ids(self, event: Json) -> list[int]:
        _raise(event)
        return [token for choice in event["choices"] for token in choice.get("token_ids", ())]

    def notes(self, event: Json) -> Json:
        told = event.get("exactspec", {})
        return told if "identity" in told else {}

    def unseen(self, notes: Json, seen: int) -> int:
        return 0


@dataclass(frozen=True, slots=True)
class LlamaServer:
    """/completion of llama.cpp's server, greedy; its prompt cache and all else as it comes.

    Its stream does not carry the ids of tokens that leave a character unfinished; its own count has them.
    """

    path: str = "/completion"

    def body(self, case: Case) -> dict[str, Any]:
        if case.params.temperature > 0:
            raise ValueError("llama.cpp's server is asked for greedy answers alone")
        return {
            "prompt": list(case.ids),
            "n_predict": case.params.max_tokens,
            "temperature": 0.0,
            "ignore_eos": case.params.ignore_eos,
            "stream": True,
            "return_tokens": True,
        }

    def ids(self, event: Json) -> list[int]:
        _raise(event)
        return list(event.get("tokens", ()))

    def notes(self, event: Json) -> Json:
        return {"timings": event["timings"]} if event.get("stop") and "timings" in event else {}

    def unseen(self, notes: Json, seen: int) -> int:
        return max(0, int(notes.get("timings", {}).get("predicted_n", seen)) - seen)


def _raise(event: Json) -> None:
    if "error" in event:
        error = event["error"]
        raise PeerError(f"a server answered with an error: {error.get('message', error)}")
