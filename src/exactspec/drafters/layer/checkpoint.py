"""The file of a draft layer: a folder with ``layer.safetensors`` (tensors) and ``card.json`` (`Card`).

Read with numpy and safetensors alone; nothing in it is executed. Matrices are [out, in], row = output channel, bfloat16
or int8; an int8 matrix has float32 scales [out] beside it, named ``NAME.scale``, ``max|w| / 127`` of the row. Norms are
float32, `head_ids` int32. The card holds the SHA-256 of the tensors' file, so the two cannot be mixed up.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from exactspec.drafters.layer.card import Card
from exactspec.drafters.layer.tensor_file import from_bfloat16, map_tensors, tensor_bytes, to_bfloat16, write_whole
from exactspec.target.base import FloatArray

WEIGHTS: Final = "layer.safetensors"
CARD: Final = "card.json"


def matrix_shapes(card: Card) -> dict[str, tuple[int, int]]:
    """[out, in] of each matrix, by name."""
    s, t = card.sizes, card.target
    w, own, cross = t.hidden_size, s.heads * s.head_dim, s.cross_heads * t.head_dim
    return {
        "feature": (w, w),
        "self_q": (own, w),
        "self_k": (s.kv_heads * s.head_dim, w),
        "self_v": (s.kv_heads * s.head_dim, w),
        "self_o": (w, own),
        "cross_q": (cross, w),
        "cross_o": (w, cross),
        "gate": (s.inner, w),
        "up": (s.inner, w),
        "down": (w, s.inner),
    }


NORMS: Final = ("self_norm", "cross_norm", "mlp_norm", "final_norm")


@dataclass(frozen=True, slots=True, eq=False)
class Layer:
    """A draft layer in memory. `matrices` and `norms`: float32 by name, see `matrix_shapes` and `NORMS`.
    `head_ids` int64 [H], ascending: the ids that the layer can propose, rows of the target's own head."""

    card: Card
    matrices: Mapping[str, FloatArray]
    norms: Mapping[str, FloatArray]
    head_ids: npt.NDArray[np.int64]


def write_layer(folder: Path, layer: Layer) -> Card:
    """Write both files, each whole or not at all, the card last; returns the card with its hash filled in."""
    precision = layer.card.precision
    arrays: dict[str, npt.NDArray[Any]] = {}
    for name in matrix_shapes(layer.card):
        matrix = np.ascontiguousarray(layer.matrices[name], dtype=np.float32)
        if precision == "int8":
            scale = np.maximum(np.abs(matrix).max(axis=1), 1e-12).astype(np.float32) / np.float32(127)
            arrays[name] = np.rint(matrix / scale[:, None]).astype(np.int8)
            arrays[f"{name}.scale"] = scale
        else:
            arrays[name] = to_bfloat16(matrix)
    for name in NORMS:
        arrays[name] = np.ascontiguousarray(layer.norms[name], dtype=np.float32)
    arrays["head_ids"] = layer.head_ids.astype(np.int32)
    data = tensor_bytes(arrays, {"format": "exactspec-longspec"})
    card = replace(layer.card, weights_sha256=hashlib.sha256(data).hexdigest())
    _checked(card, arrays)
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / WEIGHTS, data)
    write_whole(folder / CARD, card.to_json().encode())
    return card


def read_card(folder: Path) -> Card:
    """The card of the layer in a folder. Raises ValueError, one line, if there is none."""
    try:
        return Card.from_json((folder / CARD).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{folder} holds no draft layer: {error}") from None


def read_layer(folder: Path) -> Layer:
    """The layer in a folder. Whether it fits a target: `Card.check_target`.

    Raises ValueError, one line, if a file is missing, damaged, or not what the card says.
    """
    card = read_card(folder)
    try:
        data = (folder / WEIGHTS).read_bytes()
    except OSError as error:
        raise ValueError(f"{folder} holds no draft layer: {error}") from None
    if hashlib.sha256(data).hexdigest() != card.weights_sha256:
        raise ValueError(f"{folder / WEIGHTS} is damaged or belongs to another card: its SHA-256 is not the card's")
    arrays, _ = map_tensors(folder / WEIGHTS)
    _checked(card, arrays)
    matrices = {}
    for name in matrix_shapes(card):
        stored = arrays[name]
        if card.precision == "int8":
            matrices[name] = stored.astype(np.float32) * arrays[f"{name}.scale"][:, None]
        else:
            matrices[name] = from_bfloat16(stored)
    norms = {name: arrays[name].astype(np.float32) for name in NORMS}
    for name, values in {**matrices, **norms}.items():
        if not np.isfinite(values).all():
            raise ValueError(f"{folder / WEIGHTS}: {name} holds values that are not finite")
    return Layer(card, matrices, norms, arrays["head_ids"].astype(np.int64))


def _checked(card: Card, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
    """ValueError, naming the tensor, unless names, shapes and types are those of the card."""
    int8 = card.precision == "int8"
    expected: dict[str, tuple[tuple[int, ...], str]] = {}
    for name, shape in matrix_shapes(card).items():
        expected[name] = shape, "int8" if int8 else "uint16"
        if int8:
            expected[f"{name}.scale"] = shape[:1], "float32"
    expected |= dict.fromkeys(NORMS, ((card.target.hidden_size,), "float32"))
    expected["head_ids"] = (card.sizes.head,), "int32"
    if expected.keys() != arrays.keys():
        odd = ", ".join(sorted(expected.keys() ^ arrays.keys()))
        raise ValueError(f"draft layer: tensors are missing or not known: {odd}")
    for name, (size, dtype) in expected.items():
        if arrays[name].shape != size or arrays[name].dtype != np.dtype(dtype):
            raise ValueError(
                f"draft layer: {name} is {arrays[name].dtype} {arrays[name].shape}, expected {dtype} {size}"
            )
    ids = arrays["head_ids"]
    if (np.diff(ids) <= 0).any() or ids[0] < 0 or ids[-1] >= card.target.vocab_size:
        raise ValueError("draft layer: head_ids must ascend within the vocabulary")
