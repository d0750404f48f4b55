"""llama.cpp as a peer: its plain greedy decoding of given token ids, in a child process driven over pipes.

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

from exactspec.bench.rounds import Measurement

_CHILD = Path(__file__).with_name("llama_cpp_child.py")


class PeerError(RuntimeError):
    """The peer cannot be run, or failed; one line that says what to do."""


class LlamaCppPeer:
    """A child process that holds a GGUF file open in llama.cpp. A context manager; closing ends the child.

    `threads`: for single tokens and for the prompt. `context`: tokens the child makes room for. `child`: the program
    to run (tests pass their own). Raises PeerError if llama-cpp-python is missing or the file cannot be loaded.
    """

    __slots__ = ("_process", "info")

    def __init__(self, model: Path, *, threads: int, context: int, child: Path = _CHILD) -> None:
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
        self._send({"ids": list(ids), "tokens": tokens})
        reply = self._receive()
        return Measurement(
            token_ids=tuple(reply["token_ids"]),
            prefill_s=reply["prefill_s"],
            decode_s=reply["decode_s"],
            extra={"peer": dict(self.info)},
        )

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
