"""The child of `llama_cpp.LlamaCppPeer`: one JSON request a line on stdin, one JSON reply a line on stdout.

Run as a program and never imported: it must not load any of exactspec, whose threads would share the cores.
llama.cpp is called through its C interface, without the Python wrapper's own copying, so that the time is its own.

Requests, by their key "do":

- decode {ids, tokens}: clear, evaluate all ids but the last, then `tokens` greedy steps of one token each;
- fill {ids}: keep these ids as a context of their own, known by their number, for `rows`;
- rows {context, counts, tokens}: behind that context, one evaluation for each count of rows, all rows with logits; the
  rows are taken out of the cache again. The first evaluation is repeated, untimed, before the others;
- prefill {ids, batch}: evaluate the ids from empty, `batch` at a time, with the logits of the last one.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import time
from typing import Any

FILL_BATCH = 512


class Context:
    """One llama.cpp context: `size` tokens, at most `batch` in one evaluation, of which `outputs` with logits."""

    def __init__(self, llama: Any, model: Any, size: int, batch: int, outputs: int, threads: int) -> None:
        self.llama, self.size, self.batch = llama, size, batch
        self.vocabulary = llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(model))
        params = llama.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch = size, batch, batch
        params.n_threads = params.n_threads_batch = threads
        if hasattr(params, "n_outputs_max_per_seq"):
            params.n_outputs_max_per_seq = outputs
        self.handle = llama.llama_init_from_model(model, params)
        if not self.handle:
            raise RuntimeError(f"no context of {size} tokens")
        self.memory = llama.llama_get_memory(self.handle)
        self.rows = llama.llama_batch_init(max(outputs, 1), 0, 1)
        self.length = 0

    def clear(self) -> None:
        self.llama.llama_memory_clear(self.memory, True)
        self.length = 0

    def feed(self, ids: list[int]) -> None:
        """Evaluate ids at the end, batch by batch; the last one of each batch has logits."""
        for at in range(0, len(ids), self.batch):
            part = ids[at : at + self.batch]
            array = (self.llama.llama_token * len(part))(*part)
            self._check(self.llama.llama_decode(self.handle, self.llama.llama_batch_get_one(array, len(part))))
            self.length += len(part)
        self.logits()

    def logits(self) -> Any:
        """Of the last row evaluated; waits until they are there."""
        return ctypes.cast(self.llama.llama_get_logits_ith(self.handle, -1), ctypes.POINTER(ctypes.c_float))

    def time_rows(self, ids: list[int]) -> float:
        """Seconds of one evaluation of all ids with logits for each, which leaves the context as it was."""
        batch = self.rows
        batch.n_tokens = len(ids)
        for i, token in enumerate(ids):
            batch.token[i], batch.pos[i] = token, self.length + i
            batch.n_seq_id[i], batch.seq_id[i][0], batch.logits[i] = 1, 0, True
        start = time.perf_counter()
        self._check(self.llama.llama_decode(self.handle, batch))
        self.logits()
        taken = time.perf_counter() - start
        if not self.llama.llama_memory_seq_rm(self.memory, 0, self.length, -1):
            raise RuntimeError("rows cannot be taken out of the cache again")
        return taken

    def _check(self, code: int) -> None:
        if code != 0:
            raise RuntimeError(f"llama_decode returned {code}")


class Peer:
    """What the requests work on: the model, a context for decoding, filled ones by length, one for prompts."""

    def __init__(self, llama: Any, model: Any, threads: int, size: int) -> None:
        self.llama, self.model, self.threads, self.size = llama, model, threads, size
        self.decoding: Context | None = None
        self.filled: dict[int, Context] = {}
        self.prompts: dict[int, Context] = {}

    def context(self, size: int, batch: int, outputs: int = 1) -> Context:
        return Context(self.llama, self.model, size, batch, outputs, self.threads)

    def decode(self, ids: list[int], tokens: int) -> dict[str, Any]:
        if len(ids) + tokens > self.size:
            raise RuntimeError(f"{len(ids)} + {tokens} tokens do not fit a context of {self.size}")
        import numpy as np

        if self.decoding is None:
            self.decoding = self.context(self.size, FILL_BATCH)
        context = self.decoding
        context.clear()
        start = time.perf_counter()
        context.feed(ids[:-1])
        prefilled = time.perf_counter()
        output = []
        token = ids[-1]
        for _ in range(tokens):
            context.feed([token])
            token = int(np.argmax(np.ctypeslib.as_array(context.logits(), shape=(context.vocabulary,))))
            output.append(token)
        end = time.perf_counter()
        return {"token_ids": output, "prefill_s": prefilled - start, "decode_s": end - prefilled}

    def fill(self, ids: list[int], rows: int) -> dict[str, Any]:
        context = self.context(len(ids) + rows, max(FILL_BATCH, rows), rows)
        context.feed(ids)
        self.filled[len(ids)] = context
        return {"length": context.length}

    def time_rows(self, length: int, counts: list[int], tokens: list[int]) -> dict[str, Any]:
        context = self.filled[length]
        context.time_rows(tokens[: counts[0]])
        seconds = [context.time_rows(tokens[:count]) for count in counts]
        return {"seconds": seconds, "length": context.length}

    def prefill(self, ids: list[int], batch: int) -> dict[str, Any]:
        context = self.prompts.get(batch)
        if context is None or context.size < len(ids):
            context = self.prompts[batch] = self.context(len(ids) + 1, batch)
        context.clear()
        start = time.perf_counter()
        context.feed(ids)
        return {"seconds": time.perf_counter() - start}

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        what = request["do"]
        if what == "decode":
            return self.decode(request["ids"], request["tokens"])
        if what == "fill":
            return self.fill(request["ids"], request["rows"])
        if what == "rows":
            return self.time_rows(request["context"], request["counts"], request["tokens"])
        if what == "prefill":
            return self.prefill(request["ids"], request["batch"])
        raise RuntimeError(f"unknown request {what!r}")


def main() -> None:
    # Native code may print to fd 1: keep the real one for replies alone.
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def reply(message: dict[str, Any]) -> None:
        replies.write(json.dumps(message) + "\n")
        replies.flush()

    path, threads, size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    try:
        import llama_cpp
    except ImportError as error:
        reply({"error": f"{error}: install the peers with 'make bench' or pip install 'exactspec[peers]'"})
        return
    llama_cpp.llama_backend_init()
    model = llama_cpp.llama_model_load_from_file(path.encode(), llama_cpp.llama_model_default_params())
    if not model:
        reply({"error": f"llama.cpp cannot load {os.path.basename(path)}"})
        return
    peer = Peer(llama_cpp, model, threads, size)
    reply({"version": llama_cpp.__version__, "system": llama_cpp.llama_print_system_info().decode().strip()})
    for line in sys.stdin:
        try:
            reply(peer.answer(json.loads(line)))
        except Exception as error:
            reply({"error": f"llama.cpp failed: {error}"})


if __name__ == "__main__":
    main()
