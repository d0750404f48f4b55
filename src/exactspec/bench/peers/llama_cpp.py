"""llama.cpp as a peer, in a child process driven over pipes: plain greedy decoding of given ids, one evaluation of
several rows behind a context, and reading a prompt.

The child waits between requests, so only one of the two engines works at a time.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from exactspec.bench.peers.error import PeerError
from exactspec.bench.rounds import Measurement

__all__ = ["LlamaCppPeer", "PeerError"]

_CHILD = Path(__file__).with_name("llama_cpp_child.py")


class LlamaCppPeer:
    """A child process that holds a GGUF file open in llama.cpp. A context manager; closing ends the child.

    `threads`: for single tokens and for the prompt. `context`: tokens that `decode` makes room for. `child`: the
    program to run (tests pass their own). Raises PeerError if llama-cpp-python is missing or the file cannot be loaded.
    """

    __slots__ = ("_process", "info")

    def __init__(self, model: Path, *, threads: int, context: int = 0, child: Path = _CHILD) -> None:
        # -P: the child's folder holds this file, which must not hide the llama_cpp package.
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(child), str(model), str(threads), str(context)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            encoding="utf-8",
        )
        try:
            self.info: Mapping[str, Any] = self._receive()
        except BaseException:
            self.close()
            raise

    def decode(self, ids: Sequence[int], tokens: int) -> Measurement:
        """Prefill all ids but the last, then run `tokens` steps of one token each, from the last id on.

        That is the same work as ours: the last prompt token is the first step's root. End of sequence does not stop
        it. Raises PeerError if the child fails.
        """
        if len(ids) < 2 or tokens < 1:
            raise ValueError(f"at least 2 ids and 1 token are needed, got {len(ids)} and {tokens}")
        reply = self._ask({"do": "decode", "ids": list(ids), "tokens": tokens})
        return Measurement(
            token_ids=tuple(reply["token_ids"]),
            prefill_s=reply["prefill_s"],
            decode_s=reply["decode_s"],
            extra={"peer": dict(self.info)},
        )

    def replay(
        self, ids: Sequence[int], output: Sequence[int], *, rule: str = "", most: int = 0, held: bool = False
    ) -> Measurement:
        """Prefill all ids but the last, then say `output` with llama.cpp's forwards, whatever it would choose itself.

        `rule` "": one token a step. Else with drafts of at most `most` tokens by that rule ("lookup", "simple", "mod";
        see the child), each verified in one evaluation and accepted as far as it agrees with `output`: the steps that
        it would take if its model's choices were ours. `held`: the prompt of the request before, if it was the same, is
        not read again. `choices_agree`: share of the tokens that it would have chosen.
        Raises PeerError if the child fails.
        """
        if len(ids) < 2:
            raise ValueError(f"at least 2 ids are needed, got {len(ids)}")
        if not output:
            return Measurement(token_ids=(), prefill_s=0.0, decode_s=0.0)
        asked = {"rule": rule, "most": most, "held": held}
        reply = self._ask({"do": "replay", "ids": list(ids), "output": list(output), **asked})
        if reply["length"] != len(ids) + len(output) - 1:
            raise PeerError(f"llama.cpp holds {reply['length']} of {len(ids) + len(output) - 1} tokens")
        counts = {key: reply[key] for key in ("num_steps", "num_draft_tokens", "num_accepted_tokens")}
        return Measurement(
            token_ids=tuple(output),
            prefill_s=reply["prefill_s"],
            decode_s=reply["decode_s"],
            extra={
                **counts,
                "tau": len(output) / reply["num_steps"],
                "choices_agree": round(reply["agreed"] / len(output), 4),
                "peer": dict(self.info),
            },
        )

    def fill(self, ids: Sequence[int], *, rows: int) -> None:
        """Evaluate the ids and keep them as a context with room for `rows` rows; `time_rows` knows it by its length."""
        reply = self._ask({"do": "fill", "ids": list(ids), "rows": rows})
        if reply["length"] != len(ids):
            raise PeerError(f"llama.cpp filled {reply['length']} of {len(ids)} tokens")

    def time_rows(self, context: int, counts: Sequence[int], tokens: Sequence[int]) -> tuple[float, ...]:
        """Seconds of one evaluation of the first n tokens, logits for each, behind a filled context, for every n in
        `counts` in turn. The context stays as it is: the rows are taken out again. An untimed evaluation comes first.
        """
        if max(counts) > len(tokens) or min(counts) < 1:
            raise ValueError(f"{len(tokens)} tokens do not make rows of {', '.join(map(str, counts))}")
        reply = self._ask({"do": "rows", "context": context, "counts": list(counts), "tokens": list(tokens)})
        if reply["length"] != context:
            raise PeerError(f"llama.cpp's context of {context} tokens became {reply['length']}")
        return tuple(reply["seconds"])

    def prefill(self, ids: Sequence[int], *, batch: int) -> float:
        """Seconds of reading the ids from an empty context, `batch` at a time, to the logits of the last one."""
        return float(self._ask({"do": "prefill", "ids": list(ids), "batch": batch})["seconds"])

    def close(self) -> None:
        """End the child; safe to call twice."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):  # the child may be gone already
                    pipe.close()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        self._send(request)
        return self._receive()

    def _send(self, request: Mapping[str, Any]) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        except OSError:
            raise PeerError(self._died()) from None

    def _receive(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise PeerError(self._died())
        reply: dict[str, Any] = json.loads(line)
        if "error" in reply:
            raise PeerError(reply["error"])
        return reply

    def _died(self) -> str:
        return f"the llama.cpp process ended by itself (exit code {self._process.wait(timeout=10)})"
