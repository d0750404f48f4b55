"""How the attention of a forward is cut into tasks.

The unit is one kv head of one segment. It is cut into blocks of (row, head) pairs, as many as share a chunk of keys
well, and, where that leaves threads idle, into parts by spans of keys or into smaller blocks. The cut follows costs
alone; no bit depends on it (see kernels.attention).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from exactspec.target.kernels.attention import SPAN_CHUNKS
from exactspec.target.kernels.float_tile import BLOCK
from exactspec.target.kernels.pages import CHUNK
from exactspec.target.kernels.task import RECORD_HEAD

SPAN = SPAN_CHUNKS * CHUNK
STATE_FLOATS = 6144  # of a task's queries: with acc and total they leave room in a core's own cache for the keys
TASKS_PER_THREAD = 4  # where threads cannot share evenly: the smaller a task, the less one waits for the last
LEAST_COST = 1 << 17  # multiply-adds of scores: below, a part costs more than it saves
MOST_RECORDS = 1 << 22  # floats of records in a forward: many rows are cut into blocks instead


def most_pairs(head_pad: int) -> int:
    """Pairs of a task."""
    return max(BLOCK, STATE_FLOATS // head_pad // BLOCK * BLOCK)


@dataclass(frozen=True, slots=True)
class Cut:
    """One segment: `blocks` of pairs a kv head, `parts` of a block, `spans` of a row, tasks of all kv heads before it
    (`first_task`) and floats of records before it (`records`, -1 for one part)."""

    blocks: int
    parts: int
    spans: int
    first_task: int
    records: int


def cut(
    sizes: Sequence[tuple[int, int]], *, heads: int, kv_heads: int, head_pad: int, threads: int
) -> tuple[list[Cut], int, int]:
    """Tasks of segments of (rows, highest position + 1). Returns the cuts, the number of tasks, floats of records."""
    group = heads // kv_heads
    limit = most_pairs(head_pad)
    costs = [rows * group * length * head_pad for rows, length in sizes]
    share = kv_heads * sum(costs) / (threads * TASKS_PER_THREAD) + 1
    cuts, tasks, records = [], 0, 0
    for (rows, length), cost in zip(sizes, costs, strict=True):
        pairs, spans = rows * group, (length - 1) // SPAN + 1
        blocks, parts, at = -(-pairs // limit), 1, -1
        wanted = min(cost / share, cost / LEAST_COST)  # tasks of a kv head
        even = len(sizes) == 1 and kv_heads * blocks % threads == 0
        if wanted > blocks and not even:
            floats = rows * heads * spans * (RECORD_HEAD + head_pad)
            if records + floats <= MOST_RECORDS:
                parts = min(-int(-wanted // blocks), spans)
            if wanted > blocks * parts:
                blocks = max(blocks, min(-int(-wanted // parts), -(-pairs // BLOCK)))
            if parts > 1:
                at, records = records, records + floats
        cuts.append(Cut(blocks, parts, spans, tasks, at))
        tasks += kv_heads * blocks * parts
    return cuts, tasks, records
