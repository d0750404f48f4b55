"""What ``exactspec bench kernels --device cuda`` does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from exactspec.bench.gpu import gpu_table, measure_gpu
from exactspec.bench.recorder import Recorder

KIND = "gpu-forward"


def measure_on_gpu(
    engine: Any, label: str, *, rows: Sequence[int], contexts: Sequence[int], repeats: int, recorder: Recorder
) -> str:
    """Measure all cells anew, append them as one line, and return the table."""
    cells = measure_gpu(engine.target, rows=rows, contexts=contexts, repeats=repeats)
    line = {
        "kind": KIND,
        "model": label,
        "identity": engine.target.identity,
        "repeats": repeats,
        "provenance": asdict(recorder.provenance()),
        "cells": [asdict(cell) for cell in cells],
    }
    recorder.out.append([line])
    return gpu_table(cells)
