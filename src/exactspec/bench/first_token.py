"""A fresh process from its start to the first token: ``python -m exactspec.bench.first_token MODEL THREADS``.

Prints one JSON object when the first token is there: seconds of its own parts and what it holds in memory (bytes).
Whoever starts it holds the clock for the whole: `measure_first_token`.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from exactspec.bench.peers.error import PeerError

PROMPT_TOKENS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstToken:
    """`seconds`: from the start of the process to its first token. `open_s`, `first_s`: parts of it, opening the model
    and answering; the rest is Python's start and imports. Memory in bytes, when the token came: `resident`, of which
    `anonymous` and `mapped` (0 where the system does not tell); `weights`: what a forward of one row reads; `cache`."""

    seconds: float
    open_s: float
    first_s: float
    resident: int
    anonymous: int
    mapped: int
    weights: int
    cache: int


def measure_first_token(model: str, threads: int, *, command: Sequence[str] | None = None) -> FirstToken:
    """Start a fresh process and wait for its first token. `command`: the program (tests pass their own).

    Raises PeerError with the last line that it wrote if it fails.
    """
    words = command or [sys.executable, "-m", "exactspec.bench.first_token"]
    start = time.perf_counter()
    process = subprocess.Popen(
        [*words, model, str(threads)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
    )
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        seconds = time.perf_counter() - start
        _, errors = process.communicate()
    except BaseException:
        process.kill()
        process.wait()
        raise
    if process.returncode or not line:
        said = errors.strip().splitlines() or [f"exit code {process.returncode}"]
        raise PeerError(f"{model} did not come to its first token: {said[-1]}")
    return FirstToken(seconds=seconds, **json.loads(line))


def memory(status: Path = Path("/proc/self/status")) -> Mapping[str, int]:
    """Resident, anonymous and mapped bytes of this process; zeros where the system does not tell."""
    fields = {"VmRSS": "resident", "RssAnon": "anonymous", "RssFile": "mapped"}
    found = dict.fromkeys(fields.values(), 0)
    try:
        lines = status.read_text(encoding="utf-8").splitlines()
    except OSError:
        return found
    for line in lines:
        name, _, value = line.partition(":")
        if name in fields:
            found[fields[name]] = 1024 * int(value.split()[0])
    return found


def main(model: str, threads: int) -> None:
    from exactspec import Engine, SamplingParams
    from exactspec.target.base import Segment

    start = time.perf_counter()
    engine = Engine.from_pretrained(model, threads=threads, draft="none")
    opened = time.perf_counter()
    ids = list(range(1, PROMPT_TOKENS + 1))
    engine.generate(ids, SamplingParams(max_tokens=1, ignore_eos=True))
    end = time.perf_counter()
    held = memory()
    cache = engine.target.new_cache()
    engine.target.forward([Segment.chain(cache, ids)])
    told = {
        "open_s": opened - start,
        "first_s": end - opened,
        "weights": getattr(engine.target, "weight_bytes", 0),
        "cache": cache.nbytes,
        **held,
    }
    print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
