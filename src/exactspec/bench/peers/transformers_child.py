"""The child of `exactspec.bench.perplexity.float32_losses`: windows of ids as JSON on stdin, their losses on stdout.

Run as a program and never imported: torch's threads and memory stay in a process of its own.
"""

from __future__ import annotations

import json
import os
import sys

_ROWS = 128  # rows whose logits exist at a time


def main() -> None:
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    folder, name = os.path.split(sys.argv[1])
    try:
        import torch
        import transformers
    except ImportError as error:
        print(
            json.dumps({"error": f"{error}: install the float32 side with pip install 'exactspec[hf]'"}), file=replies
        )
        return
    try:
        torch.set_num_threads(int(sys.argv[2]))
        model = transformers.AutoModelForCausalLM.from_pretrained(folder, gguf_file=name, dtype=torch.float32)
        model.train(False)
        losses = []
        with torch.inference_mode():
            for ids in json.load(sys.stdin):
                hidden = model.model(torch.tensor([ids])).last_hidden_state[0]
                following = torch.tensor(ids[1:])
                total = 0.0
                for at in range(0, len(ids) - 1, _ROWS):
                    part = following[at : at + _ROWS]
                    logits = model.lm_head(hidden[at : at + len(part)]).double()
                    total += torch.nn.functional.cross_entropy(logits, part, reduction="sum").item()
                losses.append(total / (len(ids) - 1))
        print(json.dumps({"losses": losses}), file=replies, flush=True)
    except Exception as error:
        print(json.dumps({"error": f"transformers failed: {error}"}), file=replies, flush=True)


if __name__ == "__main__":
    main()
