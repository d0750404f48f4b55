"""JSON files of a model's folder, which may hold anything."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def read_object(path: Path) -> dict[str, Any]:
    """A JSON object. Raises FileNotFoundError, and ValueError that names the file if it holds anything else."""
    try:
        value = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise
    except RecursionError:
        raise ValueError(f"{path.name} cannot be read: it is nested too deeply") from None
    except (OSError, ValueError) as error:
        raise ValueError(f"{path.name} cannot be read: {error}") from None
    if not isinstance(value, dict):
        raise ValueError(f"{path.name} is not an object")
    return value


def indexed_files(index: Path) -> list[str]:
    """Names of the weight files that an index of shards (``model.safetensors.index.json``) lists, sorted. Raises
    FileNotFoundError and ValueError, as `read_object`."""
    shards = read_object(index).get("weight_map")
    if not isinstance(shards, dict) or not all(isinstance(name, str) for name in shards.values()):
        raise ValueError(f"{index.name} cannot be read: its weight_map should give a file for each tensor")
    return sorted(set(shards.values()))
