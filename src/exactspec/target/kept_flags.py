"""A calibration's result, kept on disk: the same question is not measured twice on a machine.

One small JSON file a question, under the cache folder. A file that is damaged, or of another question, counts as
absent.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from exactspec.target import calibrate
from exactspec.target.cpu import CpuInfo
from exactspec.target.home import default_home
from exactspec.target.json_file import read_object
from exactspec.target.kernels.compile import kernel_key
from exactspec.target.precision import KINDS, Wide
from exactspec.target.small_files import try_write

Tell = Callable[[str], None]


def calibration_key(weights: str, cpu: CpuInfo, cache_dtype: str) -> str:
    """All that a calibration depends on, in hex. `weights`: SHA-256 of the weights file."""
    digest = hashlib.sha256(Path(calibrate.__file__).read_bytes())
    for part in (weights, kernel_key(cpu), cpu.instruction_set, cache_dtype):
        digest.update(part.encode() + b"\0")
    return digest.hexdigest()


def kept_flags(
    key: str, num_layers: int, make: Callable[[], Wide], *, home: Path | None = None, progress: Tell | None = None
) -> Wide:
    """The flags kept under `key`, else ``make()``, which `progress` is told and which is then kept; without a word if
    that cannot be written."""
    path = (home or default_home()) / "calibrated" / f"{key[:32]}.json"
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
        return _decode(read_object(path), key, num_layers)
    if progress is not None:
        damaged = os.path.lexists(path)  # a file is only ever seen whole
        again = "again, because what was kept is damaged" if damaged else "once"
        progress(f"measuring which products need finer activations, {again}")
    wide = make()
    try_write(path, _encode(key, wide))
    return wide


def _encode(key: str, wide: Wide) -> str:
    layers = ["".join("01"[flag] for flag in layer) for layer in wide.layers]
    return json.dumps({"key": key, "layers": layers, "head": wide.head, "digest": wide.digest})


def _decode(found: Mapping[str, Any], key: str, num_layers: int) -> Wide:
    layers = tuple(tuple("01".index(flag) == 1 for flag in layer) for layer in found["layers"])
    wide = Wide(layers, bool(found["head"]))
    shape = len(layers) == num_layers and all(len(layer) == len(KINDS) for layer in layers)
    if found["key"] != key or found["digest"] != wide.digest or not shape:
        raise ValueError("not the answer to this question")
    return wide
