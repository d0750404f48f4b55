"""Tree attention for models of transformers: which keys a row sees, and an attention function that copies no keys.

A row sees the committed tokens and its own ancestors. The mask says so, for every layer that has another window
(bool, True where seen). transformers hands masks of four dimensions to the layers as they are.

The attention function is entered into transformers' table of attention functions (`AttentionInterface`) under the name
`GROUPED`. The heads of one group share their keys: few rows are laid out as more rows of one head, many rows see the
keys through a view. (transformers' own function repeats keys and values for every head once there is a mask: at 4,096
keys and 9 rows several times slower.)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.nn.functional import scaled_dot_product_attention

from exactspec.target.segments import Layout

GROUPED = "exactspec_grouped"

_FEW = 16
"""Rows up to which the heads of a group become rows of one head."""

_UNKNOWN = ("softcap", "s_aux", "sinks", "position_bias")
"""Arguments that change the arithmetic; a model that gives one is left to its own attention."""


def tree_mask(layout: Layout[Any], window: int | None) -> npt.NDArray[np.bool_] | None:
    """Which keys each row sees: bool [rows, keys], or None where every row sees every key.

    Keys are the positions from ``max(0, length - window + 1)`` (0 without a window) to ``length``, then the rows. Row i
    has the position ``length + depth``; a window of w shows it the w positions that end with its own.

    A root with two children, two tokens committed: rows ``[1 1 | 1 0 0]``, ``[1 1 | 1 1 0]``, ``[1 1 | 1 0 1]``.
    """
    n, length = len(layout.tokens), layout.cache.length
    if n == 1:
        return None
    start = 0 if window is None else max(0, length - window + 1)
    mask = np.ones((n, length - start + n), dtype=np.bool_)
    rows = mask[:, length - start :]
    if layout.paths is None:
        rows[:] = np.tri(n, dtype=np.bool_)
    else:
        rows[:] = False
        depth = np.array(layout.depths)
        inside = np.arange(layout.paths.shape[1]) <= depth[:, None]
        rows[np.nonzero(inside)[0], layout.paths[inside]] = True
    if window is not None and length + layout.depth >= window:
        position = length + np.array(layout.depths)
        keys = np.concatenate((np.arange(start, length), position))
        mask &= keys > position[:, None] - window
    return mask


def masks_for(
    layout: Layout[Any], windows: Mapping[str, int | None], *, additive: bool, dtype: Any, device: Any
) -> Any:
    """What to give a model as `attention_mask`: one mask, or a dict by kind of layer where windows differ.

    `windows`: kind of layer -> window. `additive`: masks of 0 and the lowest number instead of bool, and one even
    where all is seen (for the models' own attention, which would make its own mask from None).
    """
    made: dict[str, Any] = {}
    for kind, window in windows.items():
        seen = tree_mask(layout, window)
        if seen is None:
            if not additive:
                continue
            start = 0 if window is None else max(0, layout.cache.length - window + 1)
            seen = np.ones((1, layout.cache.length - start + 1), dtype=np.bool_)
        mask = torch.from_numpy(seen).to(device)[None, None]
        if additive:
            mask = torch.zeros(mask.shape, dtype=dtype, device=device).masked_fill_(~mask, torch.finfo(dtype).min)
        made[kind] = mask
    if not made:
        return None
    return made if len(windows) > 1 else next(iter(made.values()))


def grouped_attention(
    module: Any,
    query: Any,
    key: Any,
    value: Any,
    attention_mask: Any,
    dropout: float = 0.0,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[Any, None]:
    """Attention of one request. `query` [1, heads, n, d], `key` [1, kv_heads, keys, d], `value` [1, kv_heads, keys, e];
    `attention_mask` bool [1, 1, n, keys] or None: all is seen. Returns [1, n, heads, e]; head h has the keys of head
    ``h // (heads / kv_heads)``. Raises ValueError on an argument that it would have to ignore."""
    if unknown := [name for name in _UNKNOWN if kwargs.get(name) is not None]:
        raise ValueError(f"attention with {unknown[0]} is left to the model")
    _, heads, n, width = query.shape
    groups, keys = key.shape[1], key.shape[2]
    size = heads // groups
    mask = attention_mask
    if size == 1:
        out = scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scaling)
    elif n <= _FEW:
        if mask is not None:
            mask = mask.expand(1, size, n, keys).reshape(1, 1, size * n, keys)
        rows = query.reshape(1, groups, size * n, width)
        out = scaled_dot_product_attention(rows, key, value, attn_mask=mask, scale=scaling)
    else:
        shared = (groups, size, keys, -1)
        out = scaled_dot_product_attention(
            query.reshape(groups, size, n, width),
            key[0][:, None].expand(shared),
            value[0][:, None].expand(shared),
            attn_mask=mask,
            scale=scaling,
        )
    return out.reshape(1, heads, n, value.shape[3]).transpose(1, 2).contiguous(), None
