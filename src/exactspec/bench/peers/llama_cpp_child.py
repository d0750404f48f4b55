"""The child of `llama_cpp.LlamaCppPeer`: one JSON request a line on stdin, one JSON reply a line on stdout.

Run as a program and never imported: it must not load any of exactspec, whose threads would share the cores.
llama.cpp is called through its C interface, without the Python wrapper's own copying, so that the time is its own.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import time
from typing import Any


def main() -> None:
    # Native code may print to fd 1: keep the real one for replies alone.
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def reply(message: dict[str, Any]) -> None:
        replies.write(json.dumps(message) + "\n")
        replies.flush()

    path, threads, context = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    try:
        import llama_cpp
        import numpy as np
    except ImportError as error:
        reply({"error": f"{error}: install the peers with 'make bench' or pip install 'exactspec[peers]'"})
        return
    try:
        llama = llama_cpp.Llama(
            path, n_ctx=context, n_batch=512, n_threads=threads, n_threads_batch=threads, verbose=False
        )
    except Exception as error:
        reply({"error": f"llama.cpp cannot load {os.path.basename(path)}: {error}"})
        return
    handle = llama.ctx
    vocabulary = llama.n_vocab()

    def run(ids: list[int]) -> int:
        """Evaluate ids at the end of the context; the best next id."""
        array = (llama_cpp.llama_token * len(ids))(*ids)
        code = llama_cpp.llama_decode(handle, llama_cpp.llama_batch_get_one(array, len(ids)))
        if code != 0:
            raise RuntimeError(f"llama_decode returned {code}")
        logits = ctypes.cast(llama_cpp.llama_get_logits_ith(handle, -1), ctypes.POINTER(ctypes.c_float))
        return int(np.argmax(np.ctypeslib.as_array(logits, shape=(vocabulary,))))

    reply({"version": llama_cpp.__version__, "system": llama_cpp.llama_print_system_info().decode().strip()})
    for line in sys.stdin:
        request = json.loads(line)
        ids, tokens = request["ids"], request["tokens"]
        try:
            if len(ids) + tokens > context:
                raise RuntimeError(f"{len(ids)} + {tokens} tokens do not fit a context of {context}")
            llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(handle), True)
            start = time.perf_counter()
            for at in range(0, len(ids) - 1, 512):
                run(ids[at : min(at + 512, len(ids) - 1)])
            prefilled = time.perf_counter()
            output = []
            token = ids[-1]
            for _ in range(tokens):
                token = run([token])
                output.append(token)
            end = time.perf_counter()
            reply({"token_ids": output, "prefill_s": prefilled - start, "decode_s": end - prefilled})
        except Exception as error:
            reply({"error": f"llama.cpp failed: {error}"})


if __name__ == "__main__":
    main()
