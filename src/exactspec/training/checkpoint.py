"""Checkpoints of a run: parameters, the optimiser's moments, and how far it has come. safetensors and JSON, no pickle.

A checkpoint is a folder ``state-STEP``, written under another name and renamed when it is whole; then older ones are
deleted. So a process that is killed at any point leaves the last whole one.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from exactspec.drafters.layer.tensor_file import map_tensors, tensor_bytes, write_whole

_TENSORS, _FACTS = "tensors.safetensors", "facts.json"
_NAME: Final = "state-{:08d}"
_MOMENTS: Final = ("exp_avg", "exp_avg_sq")


def save_state(
    folder: Path,
    step: int,
    layer: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    facts: Mapping[str, Any],
) -> None:
    """`facts`: what JSON can hold. Two checkpoints are kept."""
    named = dict(layer.named_parameters())
    arrays: dict[str, np.ndarray] = {}
    counts = {}
    for name, parameter in named.items():
        arrays[f"parameter.{name}"] = parameter.detach().cpu().numpy()
        state = optimizer.state.get(parameter, {})
        for moment in _MOMENTS:
            if moment in state:
                arrays[f"{moment}.{name}"] = state[moment].cpu().numpy()
        if "step" in state:
            counts[name] = float(state["step"])
    part = folder / (_NAME.format(step) + ".part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    write_whole(part / _TENSORS, tensor_bytes(arrays, {"format": "exactspec-training"}))
    write_whole(part / _FACTS, json.dumps({"step": step, "counts": counts, **facts}).encode())
    whole = folder / _NAME.format(step)
    shutil.rmtree(whole, ignore_errors=True)
    os.replace(part, whole)
    for old in _states(folder)[:-2]:
        shutil.rmtree(old, ignore_errors=True)


def load_state(folder: Path, layer: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any] | None:
    """Load the last whole checkpoint into layer and optimiser; its facts, or None where there is none.
    ValueError if it is of a layer of other sizes."""
    states = _states(folder)
    if not states:
        return None
    arrays, _ = map_tensors(states[-1] / _TENSORS)
    facts: dict[str, Any] = json.loads((states[-1] / _FACTS).read_text(encoding="utf-8"))
    named = dict(layer.named_parameters())
    for name, parameter in named.items():
        stored = arrays.get(f"parameter.{name}")
        if stored is None or stored.shape != tuple(parameter.shape):
            raise ValueError(f"{states[-1]} is of a layer of other sizes: take another --out, or delete it")
        with torch.no_grad():
            parameter.copy_(torch.from_numpy(stored.copy()))
        if name in facts["counts"]:
            optimizer.state[parameter] = {
                "step": torch.tensor(facts["counts"][name]),
                **{m: torch.from_numpy(arrays[f"{m}.{name}"].copy()).to(parameter.device) for m in _MOMENTS},
            }
    return facts


def _states(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("state-*") if path.suffix != ".part")
