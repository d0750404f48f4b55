"""What 8-bit weights and activations cost on a real model, against transformers in float32."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from exactspec.target.base import Segment, Want
from exactspec.target.exact import ExactTarget
from exactspec.target.load import open_model

# A fixed text of prose, a table and Python; its first 1,800 tokens count.
TEXT = Path(__file__).parents[1] / "texts" / "mixed.txt"


def mean_loss(logits: np.ndarray, tokens: list[int]) -> float:
    """Mean negative log-likelihood of each next token, in nats. logits [n, vocab]."""
    total = 0.0
    for start in range(0, len(tokens) - 1, 64):  # in blocks: the float64 copy of all rows would be gigabytes
        rows = logits[start : min(start + 64, len(tokens) - 1)].astype(np.float64)
        peak = rows.max(axis=1, keepdims=True)
        log_sum = np.log(np.exp(rows - peak).sum(axis=1)) + peak[:, 0]
        total += float((log_sum - rows[np.arange(len(rows)), tokens[start + 1 : start + 1 + len(rows)]]).sum())
    return total / (len(tokens) - 1)


@pytest.mark.model
def test_perplexity_of_smollm2(named_model: Callable[[str], Path]) -> None:
    torch = pytest.importorskip("torch", reason="the float32 side needs torch")
    transformers = pytest.importorskip("transformers", reason="the float32 side needs transformers")
    path = named_model("smollm2-135m")
    model = open_model(path)
    tokens = model.tokenizer.encode(TEXT.read_text(encoding="utf-8"))[:1800]
    assert len(tokens) == 1800
    target = ExactTarget(model.source, threads=2)
    (rows,) = target.forward([Segment.chain(target.new_cache(), tokens, Want.LOGITS)])
    ours = mean_loss(rows.logits, tokens)
    float32 = transformers.AutoModelForCausalLM.from_pretrained(
        str(path.parent), gguf_file=path.name, dtype=torch.float32
    ).eval()
    with torch.inference_mode():
        theirs = mean_loss(float32(torch.tensor([tokens])).logits[0].numpy(), tokens)
    ratio = float(np.exp(ours - theirs))
    print(f"perplexity {np.exp(ours):.3f} against {np.exp(theirs):.3f} in float32: {100 * (ratio - 1):+.2f}%")
    assert 0.98 < ratio < 1.02
