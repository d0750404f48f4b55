"""The child of `llama_cpp.LlamaCppPeer`: one JSON request a line on stdin, one JSON reply a line on stdout.

Run as a program and never imported: it must not load any of exactspec, whose threads would share the cores.
llama.cpp is called through its C interface, without the Python wrapper's own copying, so that the time is its own.

Requests, by their key "do":

- decode {ids, tokens}: clear, evaluate all ids but the last, then `tokens` greedy steps of one token each;
- fill {ids}: keep these ids as a context of their own, known by their number, for `rows`;
- rows {context, counts, tokens}: behind that context, one evaluation for each count of rows, all rows with logits; the
  rows are taken out of the cache again. The first evaluation is repeated, untimed, before the others;
- prefill {ids, batch}: evaluate the ids from empty, `batch` at a time, with the logits of the last one;
- replay {ids, output, rule, most, held}: clear, evaluate all ids but the last (`held`: unless the request before did),
  then say `output`, whatever the model would choose: step by step the last token and a draft of at most `most` tokens
  are evaluated, all with logits, and the draft is accepted as far as it agrees with `output`. `rule` makes the drafts:
  "" none, or one of `RULES`.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

FILL_BATCH = 512
MOST_ROWS = 65
"""Rows with logits of the context that `replay` works on, at least: one of more rows would be another, and read the
prompt again."""


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
        self.outputs = max(outputs, 1)
        self.rows = llama.llama_batch_init(self.outputs, 0, 1)
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

    def best(self, row: int) -> int:
        """The model's choice behind row `row` of the last evaluation, which asked for its logits."""
        import numpy as np

        logits = ctypes.cast(self.llama.llama_get_logits_ith(self.handle, row), ctypes.POINTER(ctypes.c_float))
        return int(np.argmax(np.ctypeslib.as_array(logits, shape=(self.vocabulary,))))

    def time_rows(self, ids: list[int]) -> float:
        """Seconds of one evaluation of all ids with logits for each, which leaves the context as it was."""
        batch = self._fill(ids)
        start = time.perf_counter()
        self._check(self.llama.llama_decode(self.handle, batch))
        self.logits()
        taken = time.perf_counter() - start
        self.take_out(self.length)
        return taken

    def evaluate(self, ids: list[int]) -> None:
        """Evaluate ids at the end, with logits for each; `take_out` removes those that were not accepted."""
        self._check(self.llama.llama_decode(self.handle, self._fill(ids)))
        self.length += len(ids)

    def take_out(self, length: int) -> None:
        """Keep the first `length` tokens alone."""
        if not self.llama.llama_memory_seq_rm(self.memory, 0, length, -1):
            raise RuntimeError("rows cannot be taken out of the cache again")
        self.length = length

    def _fill(self, ids: list[int]) -> Any:
        batch = self.rows
        batch.n_tokens = len(ids)
        for i, token in enumerate(ids):
            batch.token[i], batch.pos[i] = token, self.length + i
            batch.n_seq_id[i], batch.seq_id[i][0], batch.logits[i] = 1, 0, True
        return batch

    def _check(self, code: int) -> None:
        if code != 0:
            raise RuntimeError(f"llama_decode returned {code}")


def lookup(most: int) -> Callable[[Any], Any]:
    """The binding's own prompt lookup: the first place where the last two tokens occur, or else the last one."""
    from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

    rule: Callable[[Any], Any] = LlamaPromptLookupDecoding(num_pred_tokens=most)
    return rule


def places(history: Any, key: int, behind: int) -> Any:
    """Where the last `key` tokens occurred before with `behind` tokens or more behind them: indices of what follows."""
    import numpy as np

    n = len(history) - key
    if n < 1:
        return np.empty(0, dtype=np.intp)
    there = np.flatnonzero(history[key - 1 : -1] == history[-1])  # where the key may start
    for i in range(key - 1):
        there = there[history[there + i] == history[n + i]]
    there = there + key
    return there[there + behind <= len(history)]


class Simple:
    """The server's rule `ngram-simple` as its documentation states it: what followed the last 12 tokens where they
    occurred last. The binding does not offer it, nor those below."""

    KEY = 12

    def __init__(self, most: int) -> None:
        self.most = most

    def __call__(self, history: Any) -> Any:
        there = places(history, self.KEY, 1)
        return history[there[-1] : there[-1] + self.most] if len(there) else history[:0]


class MapKey:
    """`ngram-map-k` with one hit, its default: the `most` tokens that followed the last 12 where they last had as many
    behind them."""

    KEY = 12

    def __init__(self, most: int) -> None:
        self.most = most

    def __call__(self, history: Any) -> Any:
        there = places(history, self.KEY, self.most)
        return history[there[-1] : there[-1] + self.most] if len(there) else history[:0]


class MapValues:
    """`ngram-map-k4v` with one hit: of the runs of `most` tokens that followed the last 12, the first four told apart,
    the most frequent, if it came at least three times as often as the others together; of its tokens as many as were
    accepted when it was drafted last."""

    KEY, VALUES, CLEARLY = 12, 4, 3

    def __init__(self, most: int) -> None:
        self.most = most
        self.accepted: dict[tuple[bytes, bytes], int] = {}
        self.drafted: tuple[tuple[bytes, bytes], int, Any] | None = None  # what for, where it begins, the tokens

    def __call__(self, history: Any) -> Any:
        if self.drafted is not None:
            what, start, draft = self.drafted
            came = history[start : start + len(draft)]
            wrong = (came != draft[: len(came)]).nonzero()[0]
            self.accepted[what] = int(wrong[0]) if len(wrong) else len(came)
            self.drafted = None
        counts: dict[bytes, int] = {}
        first: dict[bytes, int] = {}
        for at in places(history, self.KEY, self.most).tolist():
            value = history[at : at + self.most].tobytes()
            if value in counts or len(counts) < self.VALUES:
                counts[value] = counts.get(value, 0) + 1
                first.setdefault(value, at)
        if not counts:
            return history[:0]
        best = max(counts, key=lambda value: counts[value])
        if counts[best] < self.CLEARLY * (sum(counts.values()) - counts[best]):
            return history[:0]
        what = (history[-self.KEY :].tobytes(), best)
        draft = history[first[best] : first[best] + min(self.most, self.accepted.get(what, self.most))]
        self.drafted = (what, len(history), draft)
        return draft


class Cache:
    """`ngram-cache` without files: for the last 4, 3, 2 and 1 tokens how often what followed; the most frequent one
    of the longest that was seen often enough, and often enough with that one; token by token."""

    SEEN = (2, 2, 1, 1)  # least number of times, by length from 1 on
    PERCENT = (66, 50, 50, 50)  # least share of the most frequent one

    def __init__(self, most: int) -> None:
        self.most, self.seen = most, 0
        self.following: dict[tuple[int, ...], dict[int, int]] = {}

    def __call__(self, history: Any) -> list[int]:
        longest = len(self.SEEN)
        tokens = history[max(0, self.seen - longest) :].tolist()
        for end in range(max(self.seen, 1), len(history)):
            at = end - len(history) + len(tokens)
            for length in range(1, min(longest, end) + 1):
                counts = self.following.setdefault(tuple(tokens[at - length : at]), {})
                counts[tokens[at]] = counts.get(tokens[at], 0) + 1
        self.seen = len(history)
        window, draft = tokens[-longest:], list[int]()
        while len(draft) < self.most and (token := self._next(window)) is not None:
            draft.append(token)
            window = [*window, token][-longest:]
        return draft

    def _next(self, window: list[int]) -> int | None:
        for length in range(len(window), 0, -1):
            counts = self.following.get(tuple(window[-length:]))
            if not counts:
                continue
            total, best = sum(counts.values()), max(counts, key=lambda token: counts[token])
            if total >= self.SEEN[length - 1] and 100 * counts[best] >= self.PERCENT[length - 1] * total:
                return best
        return None


class Mod:
    """`ngram-mod`: for every 24 tokens the one that followed them last, looked up again and again."""

    KEY = 24

    def __init__(self, most: int) -> None:
        self.most, self.seen = most, 0
        self.following: dict[bytes, int] = {}

    def __call__(self, history: Any) -> list[int]:
        import numpy as np

        for end in range(max(self.seen, self.KEY), len(history)):
            self.following[history[end - self.KEY : end].tobytes()] = int(history[end])
        self.seen = len(history)
        window, draft = history[-self.KEY :].copy(), list[int]()
        while len(draft) < self.most and (token := self.following.get(window.tobytes())) is not None:
            draft.append(token)
            window = np.append(window[1:], np.intc(token))
        return draft


RULES: dict[str, Callable[[int], Callable[[Any], Any]]] = {
    "lookup": lookup,
    "simple": Simple,
    "map-k": MapKey,
    "map-k4v": MapValues,
    "cache": Cache,
    "mod": Mod,
}


class Peer:
    """What the requests work on: the model, a context for decoding, filled ones by length, one for prompts."""

    def __init__(self, llama: Any, model: Any, threads: int, size: int) -> None:
        self.llama, self.model, self.threads, self.size = llama, model, threads, size
        self.decoding: Context | None = None
        self.replaying: Context | None = None
        self.replayed: list[int] = []  # the prompt whose ids but the last it holds
        self.filled: dict[int, Context] = {}
        self.prompts: dict[int, Context] = {}

    def context(self, size: int, batch: int, outputs: int = 1) -> Context:
        return Context(self.llama, self.model, size, batch, outputs, self.threads)

    def decode(self, ids: list[int], tokens: int) -> dict[str, Any]:
        if len(ids) + tokens > self.size:
            raise RuntimeError(f"{len(ids)} + {tokens} tokens do not fit a context of {self.size}")
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
            token = context.best(-1)
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

    def replay(self, ids: list[int], output: list[int], rule: str, most: int, held: bool) -> dict[str, Any]:
        import numpy as np

        context = self.replaying
        needed = len(ids) + len(output)
        if context is None or context.size < needed or context.outputs < most + 1:
            outputs = max(most + 1, MOST_ROWS)
            size = -(-max(needed, 0 if context is None else context.size) // 256) * 256
            if context is not None:
                self.llama.llama_free(context.handle)
            context = self.replaying = self.context(size, FILL_BATCH, outputs)
            self.replayed = []
        drafter = RULES[rule](most) if rule else None
        history = np.array([*ids, *output], dtype=np.intc)
        start = time.perf_counter()
        if held and self.replayed == ids:
            context.take_out(len(ids) - 1)
        else:
            context.clear()
            context.feed(ids[:-1])
        self.replayed = list(ids)
        prefilled = time.perf_counter()
        at = steps = drafted = accepted = agreed = 0
        while at < len(output):
            draft: list[int] = []
            if drafter is not None:
                found = drafter(history[: len(ids) + at])
                draft = [int(token) for token in found[: len(output) - at - 1]]
            before = context.length
            context.evaluate([int(history[len(ids) + at - 1]), *draft])
            said = 0
            while True:  # a row's choice is looked at as in decoding, and then replaced by what is to be said
                agreed += context.best(said) == output[at + said]
                said += 1
                if said > len(draft) or draft[said - 1] != output[at + said - 1]:
                    break
            if said <= len(draft):
                context.take_out(before + said)
            at += said
            steps, drafted, accepted = steps + 1, drafted + len(draft), accepted + said - 1
        end = time.perf_counter()
        counts = {"num_steps": steps, "num_draft_tokens": drafted, "num_accepted_tokens": accepted, "agreed": agreed}
        return {"prefill_s": prefilled - start, "decode_s": end - prefilled, "length": context.length, **counts}

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
        if what == "replay":
            return self.replay(request["ids"], request["output"], request["rule"], request["most"], request["held"])
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
