"""A child that speaks the peer's protocol: decodes last id + 1, + 2, ...; times tell what was asked; model names
misbehave."""

from __future__ import annotations

import json
import sys


def answer(request: dict, filled: dict[int, int]) -> dict:
    if request["do"] == "fill":
        filled[len(request["ids"])] = request["rows"]
        return {"length": len(request["ids"]) - (model == "short")}
    if request["do"] == "rows":
        if request["context"] not in filled:
            return {"error": "llama.cpp failed: no such context"}
        return {"seconds": [0.5 * count for count in request["counts"]], "length": request["context"] + leak}
    if request["do"] == "prefill":
        return {"seconds": len(request["ids"]) / request["batch"]}
    if request["do"] == "replay":
        steps = len(request["output"]) if not request["rule"] else 1
        return {
            "prefill_s": 0.0 if request["held"] else 0.25,
            "decode_s": 0.5 * steps,
            "num_steps": steps,
            "num_draft_tokens": request["most"],
            "num_accepted_tokens": len(request["output"]) - steps,
            "agreed": 1,
            "length": len(request["ids"]) + len(request["output"]) - 1 + leak,
        }
    ids = [request["ids"][-1] + 1 + i for i in range(request["tokens"])]
    return {"token_ids": ids, "prefill_s": 0.25, "decode_s": 0.5 * len(ids)}


if __name__ == "__main__":
    model = sys.argv[1]
    leak = int(model == "leaks")
    if model == "missing":
        print(json.dumps({"error": "llama_cpp is not installed: install the peers"}), flush=True)
        sys.exit(0)
    print(json.dumps({"version": "fake", "argv": sys.argv[2:]}), flush=True)
    filled: dict[int, int] = {}
    for line in sys.stdin:
        if model == "dies":
            sys.exit(3)
        print(json.dumps(answer(json.loads(line), filled)), flush=True)
