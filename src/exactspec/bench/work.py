"""How much a forward has to compute: multiply-adds (one product, one sum) of a model's products and attention.

Counted is the useful work of the unpadded model, as in a model-FLOPs utilisation (arXiv 2204.02311, appendix B).
"""

from __future__ import annotations

from exactspec.target.weights import ModelConfig


def product_work(config: ModelConfig, rows: int) -> int:
    """Of all matrix products of `rows` rows, each of which asks for the head.

    >>> product_work(config, 2) == 2 * product_work(config, 1)      # doctest: +SKIP
    True
    """
    c = config
    attended = c.num_heads * c.head_dim
    layer = c.hidden_size * (2 * attended + 2 * c.num_kv_heads * c.head_dim + 3 * c.intermediate_size)
    return rows * (c.num_layers * layer + c.vocab_size * c.hidden_size)


def attention_work(config: ModelConfig, rows: int, context: int) -> int:
    """Of queries with keys and weights with values: `rows` chained rows behind `context` tokens, each of which sees
    itself and all before it, or as many as its layer's window allows."""
    windows = getattr(config, "layer_windows", None) or (0,) * config.num_layers
    keys = 0
    for window in windows:
        keys += sum(min(context + i + 1, window or context + rows) for i in range(rows))
    return 2 * config.num_heads * config.head_dim * keys
