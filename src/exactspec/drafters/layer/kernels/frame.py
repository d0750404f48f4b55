"""What one job of the draft layer hands to the threads: a record of sizes and addresses. See docs/longspec.md.

Addresses are int64. The Python side owns every buffer and keeps it alive during the call. Names that the target's
kernels read (`activations`, `groups`, ...) mean what they mean in `target.kernels.frame`.
"""

from __future__ import annotations

from typing import Final

import numpy as np

MOST_ROWS: Final = 64
"""Committed tokens that may wait to be taken in, and rows of one job."""

MOST_WIDTH: Final = 16
"""Nodes of one pass below the root."""

MOST_LEVELS: Final = 16
"""Passes of one tree, and so its depth."""

MOST_BRANCH: Final = 16
"""Children of a node."""

TREE_SLOTS: Final = 128
"""Nodes whose keys one tree can hold: those that were passed through the layer."""

NODES: Final = 1024
"""Nodes that one tree can hold."""

MOST_TOP: Final = 64
"""Chunks of the target's keys that a tree can choose."""

LEAST_PROBABILITY: Final = 1e-9
"""A score below this is no candidate at all."""

MATRICES: Final = ("feature", "qkv", "self_o", "cross_q", "cross_o", "gate_up", "down", "head")
"""Packed matrices; each has two fields, the address of its units and, as NAME_scale, that of its channels' scales."""

# Set once per layer.
LAYER_FIELDS = (
    "team",
    "width",
    "width_pad",
    "heads",
    "kv_heads",
    "head_pad",
    "half_pad",
    "own_head_bytes",  # of a page of own keys and values: one kv head
    "cross_heads",
    "cross_kv",
    "cross_pad",
    "cross_half",
    "cross_head_bytes",
    "cross_kind",  # type of the target's cache, see float_tile
    "inner_pad",
    "head_ids",  # int64 [head_count]
    "head_count",
    "embed",
    "embed_scale",
    *(field for name in MATRICES for field in (name, f"{name}_scale")),
    "self_norm",
    "cross_norm",
    "mlp_norm",
    "final_norm",
    "ring",  # slots of committed tokens' own keys; a position's slot is the remainder
    "window",
    "own_feature",  # 1: a node's feature is its parent's output, 0: the root's
    "narrow_group",
    "wide_group",
    "groups",
    "activation_stride",
    "plane",
    # scratch
    "x",  # float32 [rows, width_pad]
    "fed",  # float32 [rows, width_pad]: what features add to inputs
    "root_fed",  # float32 [width_pad]: that of the root
    "added",  # float32 [rows, width_pad]: what the sublayers gave so far
    "normed",  # float32 [rows, width_pad]
    "out",  # float32 [rows, width_pad]: outputs of a pass
    "activations",
    "scale",
    "offset",
    "queries",  # float32 [kv head, row, query head of it, pad]
    "attended",  # float32 [rows, heads, pad]
    "inner",  # float32 [rows, inner_pad]
    "partials",  # float32: what spans of an attention gave, see attend
    "best",  # float32 [threads, rows, branch]: scores of a row's best ids, in powers of two
    "best_at",  # int64 likewise: places in the trimmed head
    "peaks",  # float32 [rows, head_units]: the largest score of each unit of the head, in powers of two
    "sums",  # float32 [rows, head_units]: sum of its powers, relative to that
    "head_units",  # units of the head, padded to 16
    "private",
    "private_bytes",
    "row_token",  # int64 [rows]
    "row_position",
    "row_slot",
    "row_node",  # -1: the root
    "row_above",  # row of the parent in the pass before
    "row_depth",  # of `path` in use
    "path",  # int64 [rows, levels + 1]: slots of a row and its ancestors below the root, from TREE_SLOTS' start
    "path_before",  # the same of the pass before
    "state",  # int64 [STATE]: what thread 0 tells the others
    "masses",  # float32 [2, chunks]: attention of the root to chunks, and what of it one query head gives
    "best_chunks",  # those chosen: int64 [MOST_TOP] and float32 [MOST_TOP], see `choose_chunks`
    "node_token",  # int64 [NODES]
    "node_parent",
    "node_score",  # float32 [NODES]
)

# Set for each job.
CALL_FIELDS = (
    "pages",  # int64 addresses of the ring's pages and, last, of the tree's
    "low",  # lowest position whose own keys are known
    "take",  # rows to take in; the last one is the root if there are levels
    "take_first",  # position of the first one
    "take_tokens",  # int64 [take]
    "take_features",  # float32 [take, width_pad]
    "cos",  # float32 of own keys: row i of position `take_first` + i
    "sin",
    "cross_cos",  # of the target: from position 0
    "cross_sin",
    "cross",  # int64 [cross_count, 3]: address of a chunk of the last layer, first and end of the keys seen
    "cross_count",  # those that the job itself chooses, the last `top`, included
    "top",
    "among",  # int64 [among_count, 3]: what they are chosen from
    "among_count",
    "summaries",  # float32 [chunk, cross_kv, cross_pad]: row i is that of among's row i
    "cross_chunks",  # chunks of a span
    "levels",  # 0: only take in; else passes, the root's among them
    "widths",  # int64 [levels]: nodes passed on after each pass
    "branch",  # children of a node
    "beam",  # 1: what is not passed on is no node (the paper's tree); 0: all children are
    "most",  # nodes that are wanted
)

FRAME = np.dtype(
    [(name, np.int64) for name in (*LAYER_FIELDS, *CALL_FIELDS)]
    + [(name, np.float32) for name in ("eps", "embed_gain", "query_scale", "cross_scale", "least", "floor")]
)

# Cells of `state`.
S_ROWS, S_NODES, S_SLOTS, S_PASSES = 0, 1, 2, 3
STATE = 8
