"""What 8-bit weights and activations cost on a real model, against transformers in float32."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from exactspec.target.base import Segment, Want
from exactspec.target.exact import ExactTarget
from exactspec.target.load import open_model

# A fixed text of prose, tables, code and JSON, read in windows.
TEXT = Path(__file__).parents[1] / "texts" / "eight_thousand.txt"
WINDOWS, WINDOW = 4, 2048


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
@pytest.mark.parametrize(("name", "bound"), [("smollm2-135m", 1.008), ("qwen2.5-coder-0.5b", 1.003)])
def test_perplexity(named_model: Callable[[str], Path], name: str, bound: float) -> None:
    torch = pytest.importorskip("torch", reason="the float32 side needs torch")
    transformers = pytest.importorskip("transformers", reason="the float32 side needs transformers")
    path = named_model(name)
    model = open_model(path)
    tokens = model.tokenizer.encode(TEXT.read_text(encoding="utf-8"))
    windows = [tokens[start : start + WINDOW] for start in range(0, WINDOWS * WINDOW, WINDOW)]
    assert all(len(window) == WINDOW for window in windows)
    target = ExactTarget(model.source, threads=2)
    float32 = transformers.AutoModelForCausalLM.from_pretrained(
        str(path.parent), gguf_file=path.name, dtype=torch.float32
    ).eval()
    ours, theirs = [], []
    for window in windows:
        (rows,) = target.forward([Segment.chain(target.new_cache(), window, Want.LOGITS)])
        ours.append(mean_loss(rows.logits, window))
        with torch.inference_mode():
            theirs.append(mean_loss(float32(torch.tensor([window])).logits[0].numpy(), window))
        print(f"{name}: {100 * np.expm1(ours[-1] - theirs[-1]):+.2f}%")
    target.close()
    ratio = float(np.exp(np.mean(ours) - np.mean(theirs)))
    print(f"{name}: {np.exp(np.mean(ours)):.3f} against {np.exp(np.mean(theirs)):.3f}: {100 * (ratio - 1):+.2f}%")
    assert 0.99 < ratio < bound
