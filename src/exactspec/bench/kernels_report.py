"""Lines of `exactspec.bench.kernels` to cells: medians, paired ratios with intervals, shares of the limits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from exactspec.bench.kernels import KIND
from exactspec.bench.peaks import Peaks
from exactspec.bench.report import markdown
from exactspec.bench.stats import Ratios, paired_ratios
from exactspec.bench.store import Line


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """`rows` chained rows behind `context` tokens; times are medians.

    `ratio`: time over that of one row, visit by visit (above 1 the rows take longer). `gb_per_s`: the weights' bytes
    over the time; `read_share`: of what memory gives. `products_share`: the products' multiply-adds over time and peak
    of the integer tile; `attention_share`: attention's over time and float peak. `peer_*`: the peer's own;
    `speed_up`: its time over ours. None without a peer.
    """

    model: str
    rows: int
    context: int
    milliseconds: float
    ratio: Ratios
    gb_per_s: float
    read_share: float
    products_share: float
    attention_share: float
    peer_milliseconds: float | None
    peer_ratio: Ratios | None
    speed_up: Ratios | None


def newest(lines: Iterable[Line]) -> list[Line]:
    """The forward lines of each model's newest configuration, identity, peer and rows; of a round that was measured
    twice, the last."""
    forwards = [line for line in lines if line.get("kind") == KIND]
    sets = {line["model"]: _set(line) for line in forwards}
    return list({_place(line): line for line in forwards if _set(line) == sets[line["model"]]}.values())


def _set(line: Line) -> tuple[object, ...]:
    return line["config"], line["identity"], line["peer"], tuple(line["rows"])


def _place(line: Line) -> tuple[object, ...]:
    return line["model"], line["context"], line["repeat"]


def best_peaks(lines: Sequence[Line]) -> Peaks:
    """The highest readings of the machine's limits. Raises ValueError on no lines."""
    readings = [Peaks(**line["peaks"]) for line in lines]
    if not readings:
        raise ValueError("no forwards were measured")
    best = readings[0]
    for other in readings[1:]:
        best = best.best(other)
    return best


def cells(lines: Sequence[Line]) -> list[Cell]:
    """One cell per model, context and rows of the lines, contexts in turn."""
    found: list[Cell] = []
    for model in dict.fromkeys(line["model"] for line in lines):
        of_model = [line for line in lines if line["model"] == model]
        peaks = best_peaks(of_model)
        for context in sorted({line["context"] for line in of_model}):
            here = [line for line in of_model if line["context"] == context]
            found += [_cell(model, here, i, n, peaks) for i, n in enumerate(here[0]["rows"])]
    return found


def _cell(model: str, lines: Sequence[Line], place: int, rows: int, peaks: Peaks) -> Cell:
    visits = [line["cells"][place] for line in lines]
    times = [visit["s"] for visit in visits]
    seconds = median(times)
    products, attention = lines[0]["work"][place]
    rate = lines[0]["weight_bytes"] / seconds / 1e9
    with_peer = "peer_s" in visits[0]
    peer = [visit["peer_s"] for visit in visits] if with_peer else []
    return Cell(
        model=model,
        rows=rows,
        context=lines[0]["context"],
        milliseconds=1e3 * seconds,
        ratio=paired_ratios(times, [visit["one_s"] for visit in visits]),
        gb_per_s=rate,
        read_share=rate / peaks.read_gb_per_s,
        products_share=products / seconds / 1e9 / peaks.products_per_ns,
        attention_share=attention / seconds / 1e9 / peaks.fma_per_ns,
        peer_milliseconds=1e3 * median(peer) if with_peer else None,
        peer_ratio=paired_ratios(peer, [visit["peer_one_s"] for visit in visits]) if with_peer else None,
        speed_up=paired_ratios(peer, times) if with_peer else None,
    )


def context_ratio(lines: Sequence[Line], rows: int, long: int, short: int) -> Ratios:
    """Time of the same rows behind a long context over that behind a short one, round by round.

    Raises ValueError if the lines hold no round with both.
    """
    times: dict[tuple[int, int], float] = {}
    for line in lines:
        times[line["context"], line["repeat"]] = line["cells"][line["rows"].index(rows)]["s"]
    rounds = sorted(repeat for context, repeat in times if context == long and (short, repeat) in times)
    return paired_ratios([times[long, i] for i in rounds], [times[short, i] for i in rounds])


def table(lines: Sequence[Line]) -> str:
    """All cells as a markdown table below the machine's limits."""
    blocks = []
    for model in dict.fromkeys(line["model"] for line in lines):
        of_model = [line for line in lines if line["model"] == model]
        peaks = best_peaks(of_model)
        peer = of_model[0]["peer"]
        columns = [
            "model",
            "context",
            "rows",
            "ms",
            "ratio to 1 row",
            "95%",
            "GB/s",
            "of memory",
            "of int8",
            "of float",
        ]
        columns += [f"{peer} ms", "its ratio", "its time / ours", "95%"] if peer else []
        head = (
            f"Memory reads {peaks.read_gb_per_s:.1f} GB/s; multiply-adds in 1e9/s: {peaks.products_per_ns:.0f} by the "
            f"integer tile ({peaks.tile_rows} rows), {peaks.fma_per_ns:.0f} float32; "
            f"{of_model[0]['provenance']['threads']} threads, {len({x['repeat'] for x in of_model})} rounds."
        )
        blocks.append(head + "\n\n" + markdown(columns, [_row(cell) for cell in cells(of_model)]))
    return "\n\n".join(blocks)


def _row(c: Cell) -> list[str]:
    row = [
        c.model,
        str(c.context),
        str(c.rows),
        f"{c.milliseconds:.2f}",
        f"{c.ratio.median:.2f}",
        _interval(c.ratio),
        f"{c.gb_per_s:.1f}",
        f"{c.read_share:.0%}",
        f"{c.products_share:.0%}",
        f"{c.attention_share:.0%}",
    ]
    if c.peer_milliseconds is not None and c.peer_ratio is not None and c.speed_up is not None:
        row += [f"{c.peer_milliseconds:.2f}", f"{c.peer_ratio.median:.2f}"]
        row += [f"{c.speed_up.median:.2f}", _interval(c.speed_up)]
    return row


def _interval(ratios: Ratios) -> str:
    return f"{ratios.low:.2f}-{ratios.high:.2f}"
