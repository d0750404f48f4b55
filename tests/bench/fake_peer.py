"""A child that speaks the peer's protocol: answers each request with last id + 1, + 2, ...; model names misbehave."""

from __future__ import annotations

import json
import sys

if __name__ == "__main__":
    model = sys.argv[1]
    if model == "missing":
        print(json.dumps({"error": "llama_cpp is not installed: install the peers"}), flush=True)
        sys.exit(0)
    print(json.dumps({"version": "fake", "argv": sys.argv[2:]}), flush=True)
    for line in sys.stdin:
        if model == "dies":
            sys.exit(3)
        request = json.loads(line)
        ids = [request["ids"][-1] + 1 + i for i in range(request["tokens"])]
        print(json.dumps({"token_ids": ids, "prefill_s": 0.25, "decode_s": 0.5 * len(ids)}), flush=True)
