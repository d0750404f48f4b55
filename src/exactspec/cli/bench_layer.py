"""What ``exactspec bench layer`` does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from exactspec.bench.layer import layer_table, measure_layer, random_layer
from exactspec.bench.recorder import Recorder
from exactspec.drafters.layer.checkpoint import read_layer
from exactspec.drafters.layer.runner import LayerRunner
from exactspec.drafters.layer.sight import Sight
from exactspec.target.exact import ExactTarget

KIND = "draft-layer"


def measure(
    engine: Any,
    label: str,
    folder: Path | None,
    *,
    contexts: Sequence[int],
    recent: int | None,
    top_chunks: int,
    repeats: int,
    recorder: Recorder,
) -> str:
    """Measure all contexts anew, append them as one line, and return the table. ValueError if the layer cannot be
    used with this model."""
    target = engine.target
    if not isinstance(target, ExactTarget):
        raise ValueError("a draft layer needs the exact runtime on the CPU: leave out hf: and device")
    layer = random_layer(target, name=label) if folder is None else read_layer(folder)
    runner = LayerRunner(target, layer, sight=Sight(recent, top_chunks))
    cells = measure_layer(target, runner, contexts=contexts, repeats=repeats)
    line = {
        "kind": KIND,
        "model": label,
        "identity": target.identity,
        "layer": "random weights" if folder is None else layer.card.weights_sha256,
        "layer_bytes": runner.packed.nbytes,
        "recent": recent,
        "top_chunks": top_chunks,
        "repeats": repeats,
        "provenance": asdict(recorder.provenance()),
        "cells": [asdict(cell) for cell in cells],
    }
    recorder.out.append([line])
    return layer_table(cells, runner)
