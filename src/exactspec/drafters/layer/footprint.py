"""How much memory a draft layer takes, by its card alone: arithmetic, to be told without loading anything."""

from __future__ import annotations

from typing import Final

from exactspec.drafters.layer.card import Card
from exactspec.drafters.layer.kernels.frame import MOST_ROWS

CHUNK: Final = 128
UNIT: Final = 32


def _padded(n: int, step: int) -> int:
    return -(-n // step) * step


def ring_slots(card: Card) -> int:
    """Slots for own keys of committed tokens: the window in whole chunks, and one chunk more."""
    return _padded(card.window, CHUNK) + CHUNK


def state_bytes(card: Card, *, summarised: int = 0) -> int:
    """Of one request: own keys and values of the ring and of a tree's chunk, bfloat16; ids by position; features and
    ids of the tokens waiting; summaries of `summarised` chunks of the target's keys (the longest context's where top
    chunks are chosen, else none). No term depends on the context at hand."""
    head = 2 * _padded(card.sizes.head_dim // 2, 16)
    ring = ring_slots(card)
    chunks = ring // CHUNK + 1
    pages = chunks * (CHUNK * card.sizes.kv_heads * 2 * head * 2 + 8)
    summaries = summarised * 4 * card.target.num_kv_heads * 2 * _padded(card.target.head_dim // 2, 16)
    return pages + 8 * ring + MOST_ROWS * (8 + 4 * _padded(card.target.hidden_size, 16)) + summaries


def weight_bytes(card: Card) -> int:
    """Of the layer and its trimmed head, which all requests share: int8, scales, norms, ids."""
    s, t = card.sizes, card.target
    width, into = _padded(t.hidden_size, UNIT), _padded(t.hidden_size, 16)
    own, cross = (2 * _padded(size // 2, 16) for size in (s.head_dim, t.head_dim))
    inner = _padded(s.inner, 16)
    matrices = (
        (width, into),  # feature
        ((s.heads + 2 * s.kv_heads) * own, into),
        (width, s.heads * own),
        (s.cross_heads * cross, into),
        (width, s.cross_heads * cross),
        (2 * inner, into),  # gate and up
        (width, inner),
        (_padded(s.head, UNIT), into),
    )
    return sum(out * (inputs + 4) for out, inputs in matrices) + 4 * 4 * into + 8 * s.head


def told(card: Card) -> str:
    """For people.

    >>> told(card)  # doctest: +SKIP
    '9.4 MB, and 0.74 MB a request at 1k, 4k and 8k tokens of context'
    """
    text = (
        f"{weight_bytes(card) / 1e6:.1f} MB, and {state_bytes(card) / 1e6:.2f} MB a request "
        "at 1k, 4k and 8k tokens of context"
    )
    if card.top_chunks:
        more = state_bytes(card, summarised=1024 // CHUNK) - state_bytes(card)
        text += f"; {more / 1e3:.1f} kB more for each 1,024 tokens of the longest"
    return text
