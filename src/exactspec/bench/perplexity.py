"""What 8 bits cost: the mean loss of a fixed text, ours against the same file in float32 by transformers.

The text is cut into windows that each begin from an empty cache. The float32 side runs in a process of its own and
needs the `hf` extra.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from exactspec.bench.peers.error import PeerError
from exactspec.target.base import FloatArray, Segment, Target, Want

WINDOW = 2048
_ROWS = 128
_CHILD = Path(__file__).with_name("peers") / "transformers_child.py"


@dataclass(frozen=True, slots=True)
class Losses:
    """Mean negative log-likelihood of the next token, in nats, window by window, on both sides."""

    ours: tuple[float, ...]
    float32: tuple[float, ...]

    @property
    def percent(self) -> float:
        """By how much our perplexity is above the float32 one, over all windows."""
        return 100 * math.expm1(float(np.mean(self.ours)) - float(np.mean(self.float32)))

    @property
    def by_window(self) -> tuple[float, ...]:
        return tuple(100 * math.expm1(a - b) for a, b in zip(self.ours, self.float32, strict=True))


def windows(ids: Sequence[int], *, size: int = WINDOW) -> list[list[int]]:
    """Windows of `size` tokens; what is left at the end is dropped. Raises ValueError if there is not one."""
    found = [list(ids[at : at + size]) for at in range(0, len(ids) - size + 1, size)]
    if not found:
        raise ValueError(f"a text of {len(ids)} tokens holds no window of {size}")
    return found


def our_loss(target: Target, ids: Sequence[int]) -> float:
    """Mean loss of the ids from the second one on."""
    cache, total = target.new_cache(), 0.0
    for at in range(0, len(ids) - 1, _ROWS):
        block = np.asarray(ids[at : min(at + _ROWS, len(ids) - 1)])
        (rows,) = target.forward([Segment.chain(cache, block, Want.LOGITS)])
        total += loss_sum(rows.logits[: len(block)], ids[at + 1 : at + 1 + len(block)])
        cache.keep(range(len(block)))
    return total / (len(ids) - 1)


def loss_sum(logits: FloatArray, following: Sequence[int]) -> float:
    """Sum over rows of log(sum(exp(logits))) - logit of the token that follows. logits [n, vocab]."""
    rows = logits.astype(np.float64)
    peak = rows.max(axis=1)
    log_sum = np.log(np.exp(rows - peak[:, None]).sum(axis=1)) + peak
    return float((log_sum - rows[np.arange(len(rows)), np.asarray(following)]).sum())


def float32_losses(path: Path, parts: Sequence[Sequence[int]], *, threads: int, child: Path = _CHILD) -> list[float]:
    """Mean losses of the windows by transformers in float32, from the same file, in a child process.

    Raises PeerError, one line, if it cannot be run.
    """
    done = subprocess.run(
        [sys.executable, "-P", str(child), str(path), str(threads)],
        input=json.dumps([list(part) for part in parts]),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        encoding="utf-8",
        check=False,
    )
    lines = done.stdout.strip().splitlines()
    reply = json.loads(lines[-1]) if lines else {"error": f"the float32 process ended with {done.returncode}"}
    if "error" in reply:
        raise PeerError(reply["error"])
    return [float(x) for x in reply["losses"]]
