"""The bars of the runtime itself: forwards against one row, against llama.cpp and against the machine; loading; loss.

Limits are by model, since a small model has fewer weights to hide its other work behind. The forwards of one model are
measured together, and shared by all of its bars.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any, Protocol

from exactspec.bench import kernels, kernels_report, prefill
from exactspec.bench.bar import Bar
from exactspec.bench.first_token import FirstToken
from exactspec.bench.peaks import Peaks
from exactspec.bench.perplexity import Losses, our_loss, windows
from exactspec.bench.recorder import Recorder
from exactspec.bench.store import Line
from exactspec.target.tokenizer import Tokenizer

SMALL, MIDDLE, LARGE = "smollm2-135m", "qwen2.5-coder-0.5b", "qwen2.5-coder-1.5b"

ROWS_LIMITS: Mapping[int, Mapping[str, float]] = {
    4: {SMALL: 1.1, MIDDLE: 1.1, LARGE: 1.1},
    8: {SMALL: 1.3, MIDDLE: 1.3, LARGE: 1.3},
    16: {SMALL: 1.8, MIDDLE: 1.8, LARGE: 2.2},
    32: {SMALL: 3.0, MIDDLE: 3.1, LARGE: 3.9},
}
ROWS_PEAK_SHARE = 0.75  # of the integer peak: as good as the limit on the ratio
LIMITS: Mapping[str, Mapping[str, float]] = {
    "one-row": {SMALL: 0.70, MIDDLE: 0.70, LARGE: 0.90},  # of llama.cpp's time
    "bandwidth": {MIDDLE: 90.0},  # per cent of what memory reads
    **{f"rows-{rows}": limits for rows, limits in ROWS_LIMITS.items()},
    "context-1": {MIDDLE: 1.5},  # one row at the long context, to the short one
    "context-16": {MIDDLE: 4.5},  # 16 rows to one, at the long context
    "prefill": {SMALL: 4.0, MIDDLE: 3.2, LARGE: 2.6},  # llama.cpp's time to ours
    "load": {MIDDLE: 2.0},  # seconds
    "memory": {MIDDLE: 1.25},  # times the weights, beside the cache and MEMORY_FREE
    "perplexity": {SMALL: 0.8, MIDDLE: 0.3},  # per cent above float32
}
RUNTIME_BARS = tuple(LIMITS)

SHORT, LONG = 512, 8192
PREFILL = 2048
MEMORY_FREE = 200_000_000
PEER = "llama.cpp"
REPEATS = 20
_LOADS = 3


class Peer(kernels.TimedPeer, prefill.PromptPeer, Protocol):
    """What llama.cpp is asked for; a context manager."""

    def __enter__(self) -> Peer: ...
    def __exit__(self, *error: Any) -> None: ...


class RuntimeEngine(Protocol):
    """The part of `exactspec.Engine` that is measured."""

    @property
    def target(self) -> kernels.Timed: ...
    @property
    def tokenizer(self) -> Tokenizer: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeTools:
    """What these bars are measured with. `peer`: opens llama.cpp on a model. `peaks`: readings of the machine's limits
    for a target. `first_token`: one fresh process. `text`: the fixed text of the perplexity. `float32`: losses of a
    model's windows in float32. `chunk`: prompt rows of a forward, as the engine takes them. `repeats`: rounds."""

    recorder: Recorder
    peer: Callable[[str], Peer]
    peaks: Callable[[kernels.Timed], Callable[[], Peaks]]
    first_token: Callable[[str], FirstToken]
    text: Path
    float32: Callable[[str, Sequence[Sequence[int]]], Sequence[float]]
    chunk: int
    repeats: int = REPEATS


def runtime_bars(tools: RuntimeTools, engine: RuntimeEngine, model: str, names: Sequence[str]) -> Iterator[Bar]:
    """The named bars that this model has."""
    here = [name for name in names if model in LIMITS.get(name, {})]
    with ExitStack() as stack:
        opened: list[Peer] = []

        def peer() -> Peer:
            if not opened:
                opened.append(stack.enter_context(tools.peer(model)))
            return opened[0]

        yield from _forward_bars(tools, engine.target, model, here, peer)
        if "prefill" in here:
            yield _prefill_bar(tools, engine.target, model, peer)
    if "load" in here or "memory" in here:
        yield from _loading_bars(tools, model, here)
    if "perplexity" in here:
        yield _perplexity_bar(tools, engine, model)


def _forward_bars(
    tools: RuntimeTools, target: kernels.Timed, model: str, names: Sequence[str], peer: Callable[[], Peer]
) -> Iterator[Bar]:
    counts = [rows for rows in ROWS_LIMITS if f"rows-{rows}" in names]
    long = [name for name in ("context-1", "context-16") if name in names]
    if not counts and not long and not {"one-row", "bandwidth"} & set(names):
        return
    plan = kernels.Plan(
        model=model,
        rows=(1, *sorted({*counts, *([16] if "context-16" in names else [])})),
        contexts=(SHORT, LONG) if long else (SHORT,),
        repeats=tools.repeats,
    )
    recorder = tools.recorder
    lines = kernels.measure(
        target,
        plan,
        kernels.Tools(
            out=recorder.out,
            provenance=recorder.provenance,
            progress=recorder.progress,
            peaks=tools.peaks(target),
            peer=(PEER, peer) if "one-row" in names else None,
        ),
    )
    cells = {(cell.context, cell.rows): cell for cell in kernels_report.cells(lines)}
    one = cells[SHORT, 1]
    if "one-row" in names:
        assert one.speed_up is not None
        assert one.peer_milliseconds is not None
        yield Bar(
            name=f"one row against llama.cpp's: {model}",
            value=1 / one.speed_up.median,
            limit=LIMITS["one-row"][model],
            unit="x",
            sense="at most",
            detail=f"{one.milliseconds:.2f} ms to {one.peer_milliseconds:.2f} ms behind {SHORT} tokens; 95% "
            f"{1 / one.speed_up.high:.3f}-{1 / one.speed_up.low:.3f}; {one.speed_up.pairs} pairs",
        )
    if "bandwidth" in names:
        read = kernels_report.best_peaks(lines).read_gb_per_s
        yield Bar(
            name=f"share of the memory's bandwidth, one row: {model}",
            value=100 * one.read_share,
            limit=LIMITS["bandwidth"][model],
            unit="%",
            detail=f"{one.gb_per_s:.1f} of {read:.1f} GB/s; {one.milliseconds:.2f} ms behind {SHORT} tokens",
        )
    for rows in counts:
        yield _rows_bar(cells[SHORT, rows], f"{rows} rows to one", LIMITS[f"rows-{rows}"][model], peak=True)
    if "context-1" in names:
        ratios = kernels_report.context_ratio(lines, 1, LONG, SHORT)
        yield Bar(
            name=f"one row, context {LONG} to {SHORT}: {model}",
            value=ratios.median,
            limit=LIMITS["context-1"][model],
            unit="x",
            sense="at most",
            detail=f"{cells[LONG, 1].milliseconds:.2f} ms to {one.milliseconds:.2f} ms; 95% "
            f"{ratios.low:.3f}-{ratios.high:.3f}; {ratios.pairs} pairs",
        )
    if "context-16" in names:
        limit = LIMITS["context-16"][model]
        yield _rows_bar(cells[LONG, 16], f"16 rows to one, context {LONG}", limit, peak=False)


def _rows_bar(cell: kernels_report.Cell, name: str, limit: float, *, peak: bool) -> Bar:
    ratio = cell.ratio
    return Bar(
        name=f"{name}: {cell.model}",
        value=ratio.median,
        limit=limit,
        unit="x",
        sense="at most",
        otherwise=peak and cell.products_share >= ROWS_PEAK_SHARE,
        detail=f"{cell.milliseconds:.2f} ms; 95% {ratio.low:.3f}-{ratio.high:.3f}; {ratio.pairs} pairs; products at "
        f"{cell.products_share:.0%} of the integer peak"
        + (f" ({ROWS_PEAK_SHARE:.0%} is as good as the limit)" if peak else ""),
    )


def _prefill_bar(tools: RuntimeTools, target: kernels.Timed, model: str, peer: Callable[[], Peer]) -> Bar:
    recorder = tools.recorder
    lines = prefill.measure(
        target,
        model,
        tokens=PREFILL,
        chunk=tools.chunk,
        repeats=tools.repeats,
        tools=prefill.Tools(
            out=recorder.out, provenance=recorder.provenance, progress=recorder.progress, peer=(PEER, peer)
        ),
    )
    ratios = prefill.speed_up(lines)
    ours, theirs = (PREFILL / median(line[key] for line in lines) for key in ("s", "peer_s"))
    return Bar(
        name=f"reading {PREFILL} tokens against llama.cpp: {model}",
        value=ratios.median,
        limit=LIMITS["prefill"][model],
        unit="x",
        detail=f"{theirs:.0f} (batch {lines[0]['batch']}) to {ours:.0f} tok/s; 95% {ratios.low:.3f}-{ratios.high:.3f}; "
        f"{ratios.pairs} pairs",
    )


def _loading_bars(tools: RuntimeTools, model: str, names: Sequence[str]) -> Iterator[Bar]:
    """Fresh processes, of which the first is not counted: it may compile, pack, and read the file from disk."""
    runs = [tools.first_token(model) for _ in range(1 + _LOADS)][1:]
    run = sorted(runs, key=lambda x: x.seconds)[_LOADS // 2]
    tools.recorder.out.append(
        [
            {"kind": "first_token", "model": model, **asdict(x), "provenance": asdict(tools.recorder.provenance())}
            for x in runs
        ]
    )
    if "load" in names:
        yield Bar(
            name=f"second load to the first token: {model}",
            value=run.seconds,
            limit=LIMITS["load"][model],
            unit="s",
            sense="at most",
            detail=f"median of {_LOADS} fresh processes: opening {run.open_s:.2f} s, answering {run.first_s:.2f} s",
        )
    if "memory" in names:
        limit = LIMITS["memory"][model] * run.weights + run.cache + MEMORY_FREE
        yield Bar(
            name=f"resident memory at the first token: {model}",
            value=max(x.resident for x in runs) / 1e6,
            limit=limit / 1e6,
            unit="MB",
            sense="at most",
            detail=f"anonymous {run.anonymous / 1e6:.0f}, mapped {run.mapped / 1e6:.0f}; weights "
            f"{run.weights / 1e6:.0f}, cache {run.cache / 1e6:.0f} MB",
        )


def _perplexity_bar(tools: RuntimeTools, engine: RuntimeEngine, model: str) -> Bar:
    text = tools.text.read_text(encoding="utf-8")
    parts = windows(engine.tokenizer.encode(text))
    losses = _losses(tools, engine, model, parts, hashlib.sha256(text.encode()).hexdigest()[:16])
    each = ", ".join(f"{x:+.2f}%" for x in losses.by_window)
    return Bar(
        name=f"perplexity above float32: {model}",
        value=losses.percent,
        limit=LIMITS["perplexity"][model],
        unit="%",
        sense="at most",
        detail=f"{sum(map(len, parts))} tokens of {tools.text.name} in windows of {len(parts[0])}: {each}",
    )


def _losses(
    tools: RuntimeTools, engine: RuntimeEngine, model: str, parts: Sequence[Sequence[int]], text: str
) -> Losses:
    same = {
        "kind": "perplexity",
        "model": model,
        "identity": engine.target.identity,
        "text": text,
        "config": tools.recorder.provenance().config,
    }
    line: Line | None = next(
        (x for x in tools.recorder.out.lines if all(x.get(key) == value for key, value in same.items())), None
    )
    if line is None:
        ours = [our_loss(engine.target, part) for part in parts]
        tools.recorder.progress(f"{model}: our losses {', '.join(f'{x:.4f}' for x in ours)}; float32 comes")
        line = {**same, "ours": ours, "float32": list(tools.float32(model, parts))}
        tools.recorder.out.append([{**line, "provenance": asdict(tools.recorder.provenance())}])
    return Losses(tuple(line["ours"]), tuple(line["float32"]))
