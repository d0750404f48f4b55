"""Reading a prompt: tokens a second, ours in the engine's chunks, a peer's with its best batch, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from time import perf_counter
from typing import Any, Protocol

import numpy as np

from exactspec.bench.provenance import Provenance
from exactspec.bench.report import markdown
from exactspec.bench.stats import Ratios, paired_ratios
from exactspec.bench.store import Line, ResultFile
from exactspec.target.base import IntArray, Segment, Target, Want

KIND = "prefill"
PEER_BATCHES = (512, 2048)  # rows that the peer evaluates at once: its default, and more
_SEED = 0


class PromptPeer(Protocol):
    """Another engine on the same file, see `exactspec.bench.peers.llama_cpp.LlamaCppPeer`."""

    def prefill(self, ids: Sequence[int], *, batch: int) -> float: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """As in `exactspec.bench.kernels`."""

    out: ResultFile
    provenance: Callable[[], Provenance]
    progress: Callable[[str], None]
    peer: tuple[str, Callable[[], PromptPeer]] | None = None
    clock: Callable[[], float] = perf_counter


def measure(target: Target, model: str, *, tokens: int, chunk: int, repeats: int, tools: Tools) -> list[Line]:
    """Read `tokens` random ids `repeats` times, by ours and the peer in turn; all lines of these figures.

    Both begin empty and end with the best id, or the logits, behind the last token. The peer's batch is the fastest
    of `PEER_BATCHES`, tried once before. Rounds that the file holds are not measured again.
    Raises ValueError if the prompt does not fit the target's context, or on counts below 1.
    """
    if min(tokens, chunk, repeats) < 1:
        raise ValueError(f"tokens, chunk and repeats must be at least 1, got {tokens}, {chunk} and {repeats}")
    if tokens > target.max_length:
        raise ValueError(f"{tokens} tokens do not fit the model's context of {target.max_length}")
    same: dict[str, Any] = {
        "kind": KIND,
        "model": model,
        "identity": target.identity,
        "peer": None if tools.peer is None else tools.peer[0],
        "tokens": tokens,
        "chunk": chunk,
        "config": tools.provenance().config,
    }
    missing = [i for i in range(repeats) if not any(_agrees(line, {**same, "repeat": i}) for line in tools.out.lines)]
    if not missing:
        tools.progress(f"{model}: prefill measured before")
    else:
        ids = np.random.default_rng(_SEED).integers(0, target.vocab_size, tokens)
        _rounds(target, ids, chunk, missing, repeats, tools, same)
    return [line for line in tools.out.lines if _agrees(line, same) and line["repeat"] < repeats]


def _rounds(
    target: Target,
    ids: IntArray,
    chunk: int,
    missing: Sequence[int],
    repeats: int,
    tools: Tools,
    same: dict[str, Any],
) -> None:
    read_prompt(target, ids[: 2 * chunk], chunk, tools.clock)  # compiles, grows buffers: not measured
    peer, batch = None, None
    if tools.peer is not None:
        peer = tools.peer[1]()
        trials = {size: peer.prefill(ids.tolist(), batch=size) for size in PEER_BATCHES}
        batch = min(trials, key=lambda size: trials[size])
    began = tools.clock()
    for done, repeat in enumerate(missing, 1):
        line = {**same, "repeat": repeat, "batch": batch, "s": 0.0}
        for engine in ("ours", "peer") if repeat % 2 == 0 else ("peer", "ours"):
            if engine == "ours":
                line["s"] = read_prompt(target, ids, chunk, tools.clock)
            elif peer is not None and batch is not None:
                line["peer_s"] = peer.prefill(ids.tolist(), batch=batch)
        tools.out.append([{**line, "provenance": asdict(tools.provenance())}])
        left = (tools.clock() - began) / done * (len(missing) - done)
        told = f"{len(ids) / line['s']:.0f} tokens/s" + (
            f", {same['peer']} {len(ids) / line['peer_s']:.0f}" if "peer_s" in line else ""
        )
        tools.progress(f"{same['model']} prefill {len(ids)} round {repeat + 1}/{repeats}: {told}; {left:.0f} s left")


def read_prompt(target: Target, ids: IntArray, chunk: int, clock: Callable[[], float]) -> float:
    """Seconds of reading the ids into a new cache, `chunk` rows a forward, the best id behind the last one included."""
    start = clock()
    cache = target.new_cache()
    for at in range(0, len(ids), chunk):
        block = ids[at : at + chunk]
        last = at + chunk >= len(ids)
        target.forward([Segment.chain(cache, block, Want.ARGMAX if last else Want.NONE, last_only=True)])
        cache.keep(range(len(block)))
    return clock() - start


def _agrees(line: Line, same: dict[str, Any]) -> bool:
    return all(line.get(key) == value for key, value in same.items())


def newest(lines: Sequence[Line]) -> list[Line]:
    """The prefill lines of each model's newest figures; of a round that was measured twice, the last."""
    read = [line for line in lines if line.get("kind") == KIND]
    sets = {line["model"]: _set(line) for line in read}
    return list({(x["model"], x["repeat"]): x for x in read if _set(x) == sets[x["model"]]}.values())


def _set(line: Line) -> tuple[object, ...]:
    return tuple(line[key] for key in ("config", "identity", "peer", "tokens", "chunk"))


def speed_up(lines: Sequence[Line]) -> Ratios:
    """The peer's time over ours, round by round. Raises ValueError if there was none."""
    pairs = [(line["peer_s"], line["s"]) for line in lines if "peer_s" in line]
    return paired_ratios([peer for peer, _ in pairs], [ours for _, ours in pairs])


def table(lines: Sequence[Line]) -> str:
    """Tokens a second (of the median time), by model."""
    rows = []
    for model in dict.fromkeys(line["model"] for line in lines):
        here = [line for line in lines if line["model"] == model]
        tokens = here[0]["tokens"]
        row = [model, str(tokens), str(here[0]["chunk"]), f"{tokens / median(x['s'] for x in here):.0f}"]
        if here[0]["peer"]:
            ratios = speed_up(here)
            row += [here[0]["peer"], str(here[0]["batch"]), f"{tokens / median(x['peer_s'] for x in here):.0f}"]
            row += [f"{ratios.median:.2f}", f"{ratios.low:.2f}-{ratios.high:.2f}"]
        else:
            row += ["-"] * 5
        rows.append(row)
    columns = ("model", "prompt", "chunk", "tok/s", "peer", "its batch", "its tok/s", "its time / ours", "95%")
    return markdown(columns, rows)
