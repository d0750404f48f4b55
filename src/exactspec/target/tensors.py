"""Tensors of a model: canonical names, names in files, shapes, and the check that a file holds these and no others."""

from __future__ import annotations

from collections.abc import Mapping

from exactspec.target.weights import ModelConfig

_LAYER_GGUF = {
    "attn_norm": "attn_norm.weight",
    "mlp_norm": "ffn_norm.weight",
    "q": "attn_q.weight",
    "k": "attn_k.weight",
    "v": "attn_v.weight",
    "o": "attn_output.weight",
    "gate": "ffn_gate.weight",
    "up": "ffn_up.weight",
    "down": "ffn_down.weight",
    "q_bias": "attn_q.bias",
    "k_bias": "attn_k.bias",
    "v_bias": "attn_v.bias",
    "q_norm": "attn_q_norm.weight",
    "k_norm": "attn_k_norm.weight",
    "post_attn_norm": "post_attention_norm.weight",
    "post_mlp_norm": "post_ffw_norm.weight",
}
_LAYER_HF = {
    "attn_norm": "input_layernorm.weight",
    "mlp_norm": "post_attention_layernorm.weight",
    "q": "self_attn.q_proj.weight",
    "k": "self_attn.k_proj.weight",
    "v": "self_attn.v_proj.weight",
    "o": "self_attn.o_proj.weight",
    "gate": "mlp.gate_proj.weight",
    "up": "mlp.up_proj.weight",
    "down": "mlp.down_proj.weight",
    "q_bias": "self_attn.q_proj.bias",
    "k_bias": "self_attn.k_proj.bias",
    "v_bias": "self_attn.v_proj.bias",
    "q_norm": "self_attn.q_norm.weight",
    "k_norm": "self_attn.k_norm.weight",
}
# Families with post norms give the first name above to another norm.
_LAYER_HF_POST = {
    "mlp_norm": "pre_feedforward_layernorm.weight",
    "post_attn_norm": "post_attention_layernorm.weight",
    "post_mlp_norm": "post_feedforward_layernorm.weight",
}
_TOP_GGUF = {"embed": "token_embd.weight", "norm": "output_norm.weight", "head": "output.weight"}
_TOP_HF = {"embed": "model.embed_tokens.weight", "norm": "model.norm.weight", "head": "lm_head.weight"}


def gguf_name(name: str) -> str:
    """Canonical name to the GGUF's: ``layers.3.q`` -> ``blk.3.attn_q.weight``."""
    if name in _TOP_GGUF:
        return _TOP_GGUF[name]
    _, layer, part = name.split(".")
    return f"blk.{layer}.{_LAYER_GGUF[part]}"


def hf_name(name: str, *, post_norms: bool = False) -> str:
    """Canonical name to that of transformers: ``layers.3.q`` -> ``model.layers.3.self_attn.q_proj.weight``.
    `post_norms`: of the model."""
    if name in _TOP_HF:
        return _TOP_HF[name]
    _, layer, part = name.split(".")
    parts = _LAYER_HF | _LAYER_HF_POST if post_norms else _LAYER_HF
    return f"model.layers.{layer}.{parts[part]}"


def tensor_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Canonical name -> shape of every tensor that a model of these sizes has."""
    c = config
    q, kv = c.num_heads * c.head_dim, c.num_kv_heads * c.head_dim
    shapes: dict[str, tuple[int, ...]] = {"embed": (c.vocab_size, c.hidden_size), "norm": (c.hidden_size,)}
    if not c.tied_head:
        shapes["head"] = (c.vocab_size, c.hidden_size)
    layer: dict[str, tuple[int, ...]] = {
        "attn_norm": (c.hidden_size,),
        "mlp_norm": (c.hidden_size,),
        "q": (q, c.hidden_size),
        "k": (kv, c.hidden_size),
        "v": (kv, c.hidden_size),
        "o": (c.hidden_size, q),
        "gate": (c.intermediate_size, c.hidden_size),
        "up": (c.intermediate_size, c.hidden_size),
        "down": (c.hidden_size, c.intermediate_size),
    }
    if c.attention_bias:
        layer |= {"q_bias": (q,), "k_bias": (kv,), "v_bias": (kv,)}
    if c.qk_norm:
        layer |= {"q_norm": (c.head_dim,), "k_norm": (c.head_dim,)}
    if c.post_norms:
        layer |= {"post_attn_norm": (c.hidden_size,), "post_mlp_norm": (c.hidden_size,)}
    for i in range(c.num_layers):
        shapes |= {f"layers.{i}.{part}": shape for part, shape in layer.items()}
    return shapes


def check_tensors(config: ModelConfig, found: Mapping[str, tuple[int, ...]], named: Mapping[str, str]) -> None:
    """Hold the tensors of a file (file name -> shape) against the configuration.

    `named`: canonical name -> file name. ValueError, naming the tensor: missing, of another shape, or not part of
    such a model (a layer kind that would be left out in silence).
    """
    for name, shape in tensor_shapes(config).items():
        file_name = named[name]
        if file_name not in found:
            raise ValueError(f"tensor {file_name} is missing")
        if found[file_name] != shape:
            raise ValueError(f"tensor {file_name} has shape {found[file_name]}, the configuration says {shape}")
    if extra := sorted(set(found) - {named[name] for name in tensor_shapes(config)}):
        raise ValueError(
            f"tensor {extra[0]} does not belong to a plain {config.family} model"
            + (f" (and {len(extra) - 1} more)" if len(extra) > 1 else "")
        )


def matrix_shape(shapes: Mapping[str, tuple[int, ...]], name: str) -> tuple[int, int]:
    """Shape of a matrix by its canonical name. KeyError if the model has none of that name, ValueError for a vector."""
    shape = shapes[name]
    if len(shape) != 2:
        raise ValueError(f"{name} is a vector: read it with vector()")
    return shape[0], shape[1]


def vector_size(shapes: Mapping[str, tuple[int, ...]], name: str) -> int:
    """Length of a vector by its canonical name. KeyError if absent, ValueError for a matrix."""
    shape = shapes[name]
    if len(shape) != 1:
        raise ValueError(f"{name} is a matrix: read it with matrix()")
    return shape[0]


def row_range(name: str, rows: int, start: int, stop: int | None) -> tuple[int, int]:
    """`start` and `stop` with the default filled in; ValueError unless 0 <= start <= stop <= rows."""
    stop = rows if stop is None else stop
    if not 0 <= start <= stop <= rows:
        raise ValueError(f"{name} has rows 0:{rows}, asked for {start}:{stop}")
    return start, stop
