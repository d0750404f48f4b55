"""A picture of forwards: time by rows over that of one row, one panel a context, ours and the peer's."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from exactspec.bench.kernels_report import Cell
from exactspec.bench.stats import Ratios

FORMATS = (".png", ".svg", ".pdf")


def plot(cells: Sequence[Cell], path: Path, *, peer: str | None) -> None:
    """Write the picture, in the format that the file's ending names. Bars are 95% intervals of the median ratio.

    Raises ValueError, one line, on another ending, no cells, or if matplotlib is missing.
    """
    if path.suffix not in FORMATS:
        raise ValueError(f"{path.name}: the picture's name must end with {', '.join(FORMATS)}")
    if not cells:
        raise ValueError("there are no cells to draw")
    try:
        from matplotlib.figure import Figure  # without pyplot: no window, no global state
        from matplotlib.ticker import LogLocator
    except ImportError:
        raise ValueError("pictures need matplotlib: pip install 'exactspec[bench]'") from None
    places = list(dict.fromkeys((cell.model, cell.context) for cell in cells))
    figure = Figure(figsize=(4.2 * len(places), 3.6), layout="constrained")
    for panel, (model, context) in zip(figure.subplots(1, len(places), squeeze=False)[0], places, strict=True):
        here = [cell for cell in cells if (cell.model, cell.context) == (model, context)]
        _line(panel, [(cell.rows, cell.ratio) for cell in here], "exactspec")
        if peer is not None:
            _line(panel, [(cell.rows, cell.peer_ratio) for cell in here if cell.peer_ratio is not None], peer)
        panel.set(title=f"{model}, context {context}", xlabel="rows of one forward", ylabel="time / that of one row")
        panel.set(xscale="log", yscale="log")
        ticks = [cell.rows for cell in here]
        panel.set_xticks(ticks, [str(n) for n in ticks])
        panel.yaxis.set_major_locator(LogLocator(subs=(1, 1.5, 2, 3, 5, 7)))
        panel.yaxis.set_major_formatter("{x:g}")
        panel.minorticks_off()
        panel.grid(visible=True, alpha=0.3)
        panel.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def _line(panel: object, points: Sequence[tuple[int, Ratios]], name: str) -> None:
    middle = [ratios.median for _, ratios in points]
    spread = [[max(0.0, r.median - r.low) for _, r in points], [max(0.0, r.high - r.median) for _, r in points]]
    panel.errorbar([n for n, _ in points], middle, yerr=spread, marker="o", capsize=2, label=name)  # type: ignore[attr-defined]
