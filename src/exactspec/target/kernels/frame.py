"""What one forward hands to its threads: a record of sizes and addresses, and the tables it points to.

Addresses are int64. The Python side owns every buffer and keeps it alive during the call.
"""

from __future__ import annotations

import numpy as np

# What the kernels know of a matrix, int64 each. Its first units may have four-bit weights, the others have int8 ones.
MATRIX_FIELDS = (
    "stored",  # address of the int8 units, less what those before them would take: unit u lies u units from here
    "scale",  # address of float32 scales per channel, of all units
    "wide",  # not 0: the int8 units take wide activations (see isa)
    "int8_units",
    "nibbles",  # address of the four-bit units (see nibbles)
    "nibble_units",
    "nibble_form",
)
MATRIX = {name: i for i, name in enumerate(MATRIX_FIELDS)}


def _matrix(name: str) -> tuple[str, ...]:
    return tuple(f"{name}_{field}" for field in MATRIX_FIELDS)


# One int64 row per layer: matrices; addresses of norms (0: the family has none) and biases; flags.
LAYER_FIELDS = (
    *_matrix("qkv"),
    *_matrix("o"),
    *_matrix("gate_up"),
    *_matrix("down"),
    "attn_norm",
    "qkv_bias",
    "mlp_norm",
    "q_norm",  # float32 [head_pad] in the order of a query: all heads are normed before the rotation
    "k_norm",
    "post_attn_norm",  # the attention's output is normed before it is added
    "post_mlp_norm",
    "rope_table",  # 0: cos and sin, 1: local_cos and local_sin
    "window",  # tokens that a row sees, itself included; 0: all
)
LAYER = {name: i for i, name in enumerate(LAYER_FIELDS)}

# One int64 row per segment.
SEGMENT_FIELDS = (
    "pages",  # address of int64 page addresses of its cache
    "base",  # committed tokens: physical slot of row 0
    "first_row",
    "rows",
    "paths",  # 0 for a chain; else address of int64 [rows, depth + 1]: ancestors of each row, root first, itself last
    "path_stride",  # in elements
    "first_task",  # number of its first attention task
    "blocks",  # row blocks per kv head
    "parts",  # tasks that share a block's keys, by spans
    "spans",  # capacity of the table `partials` in spans per pair
    "partials",  # where `parts` > 1: address of what each span gave, [row, head, span] records (see attend); else 0
)
SEGMENT = {name: i for i, name in enumerate(SEGMENT_FIELDS)}

# Set once per target.
MODEL_FIELDS = (
    "layers",
    "layer_table",
    "width",  # hidden size
    "width_pad",  # the same, padded to 16
    "heads",
    "kv_heads",
    "head_pad",  # head size padded to 32
    "half_pad",  # rotary pairs padded to 16
    "head_dim",  # head size
    "gate_activation",  # of the gate: 0 silu, 1 the tanh form of gelu
    "inner_pad",
    "vocab",
    "vocab_pad",
    "embed",
    "embed_scale",
    "final_norm",
    "head",
    "head_scale",
    "head_wide",
    "layer_bytes",  # of a page
    "head_bytes",
    "cache_kind",  # see float_tile
    "pairs",  # most (row, head) pairs of an attention task
    "top_k",  # capacity of the best lists
    "narrow_group",  # inputs that share a scale of activations, a byte each
    "wide_group",  # the same of wide activations
    "groups",  # capacity of the tables `scale` and `offset`, in groups a row
    "activation_stride",  # bytes of a row of activations
    "plane",  # bytes between the planes of wide ones
    "block_stride",  # bytes of a row of activations for four-bit weights
    "blocks",  # capacity of the tables `block_scale` and `block_sum`, in blocks a row
    "team",
    # What the team's next run is, where it is no forward: address of a compiled ``void (int64 frame, int64 threads,
    # int64 thread)`` that every thread calls, and that of its own frame. 0: a forward.
    "job",
    "job_frame",
)

# Set for each forward, in this order.
CALL_FIELDS = (
    "rows",
    "segments",
    "tasks",  # attention tasks of all segments
    "split",  # 1 where some segment has `parts` > 1
    "asked",  # rows that want the head
    "tokens",  # int64 [rows]
    "depths",  # int64 [rows]: logical position - base of its segment
    "row_segment",  # int64 [rows]
    "segment_table",
    "asked_rows",  # int64 [asked]
    "asked_count",  # int64 [asked]: best ids wanted (1 or top_k)
    "logits_slot",  # int64 [asked]: row of `logits`, or -1
    "logits",  # float32 [slots, vocab_pad]
    "best_value",  # float32 [threads, asked, top_k]
    "best_id",  # int64 [threads, asked, top_k]
    "cos",  # float32 [position, half_pad]
    "sin",
    "local_cos",  # of the layers that rotate by another table
    "local_sin",
    # scratch
    "x",  # float32 [rows, width_pad]
    "normed",  # float32 [rows, width_pad]; a sublayer's output until it is normed; the final norm's output at the end
    "activations",  # [rows, activation_stride], quantised: as the instruction set wants them
    "scale",  # float32 [rows, groups]: of the activations
    "offset",  # int32 [rows, groups]
    "block_activations",  # int8 [rows, block_stride], quantised by blocks of 32 for four-bit weights
    "block_scale",  # float32 [rows, blocks]
    "block_sum",  # float32 [rows, blocks]: minus the scale times the block's sum
    "queries",  # float32 [rows, heads * head_pad]
    "attended",  # float32 [rows, heads * head_pad]; before the attention: keys until they are normed
    "fresh",  # float32 [rows, 2, kv_heads, head_pad]: keys and values on their way to an int8 cache
    "inner",  # float32 [rows, inner_pad]
    "private",  # per thread
    "private_bytes",
    "tail_slots",  # capacity of the tree tail buffers in slots (multiple of 128)
)

FRAME = np.dtype(
    [(name, np.int64) for name in (*MODEL_FIELDS, *CALL_FIELDS)] + [("eps", np.float32), ("query_scale", np.float32)]
)


def private_bytes(rows: int, pairs: int, head_pad: int, tail_slots: int, block: int, chunk: int) -> int:
    """Scratch of one thread: the float32 tile of a unit, or the buffers of one attention task (attend.areas)."""
    product = rows * 32 * 4
    attention = 4 * pairs * (3 * head_pad + 2 * 16 + 2) + 4 * block * (chunk + 2 * tail_slots)
    return (max(product, attention) + 4095) // 4096 * 4096
