"""What kinds of layers a model of transformers has, from its configuration: which can be rolled back, which cannot.

A rejected draft must leave no trace. Keys and values are per token, so they are cut off; the state of a recurrent
layer (Mamba, RWKV, linear attention, a short convolution) mixes all tokens seen, and going back would need a copy of it
per tree node. Such models are refused, with the layer's name. The kinds are taken from the cache that transformers
itself would make for the configuration, and from the model class's own word that it keeps a state.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from transformers import AutoModelForCausalLM
from transformers.cache_utils import DummyLayer, DynamicCache, DynamicLayer, DynamicSlidingWindowLayer

FULL, SLIDING = "full_attention", "sliding_attention"


@dataclass(frozen=True, slots=True)
class Layers:
    """`windows`: one a layer: its window, None for all keys, 0 for a layer that keeps no keys (they are another
    layer's, or it has no attention). `kinds`: the kinds that occur -> window, as `masks_for` takes them."""

    windows: tuple[int | None, ...]
    kinds: Mapping[str, int | None]


def read_layers(config: Any) -> Layers:
    """The layers of a model. Raises ValueError, naming layer and reason, if one cannot be rolled back or masked."""
    text = config.get_text_config(decoder=True)
    name = text.model_type
    if getattr(config, "is_encoder_decoder", False):
        raise ValueError(f"{name} is an encoder-decoder model; only decoders can be a target")
    stated = getattr(text, "layer_types", None) or ()
    try:
        layers = DynamicCache(config=config).layers
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"{name}: transformers makes no key-value cache for its layers ({error})") from None
    if not layers:  # a configuration that names no kinds at all
        layers = [DynamicLayer() for _ in range(text.num_hidden_layers)]
    for at, layer in enumerate(layers):
        if type(layer) not in (DynamicLayer, DynamicSlidingWindowLayer, DummyLayer):
            kind = stated[at] if at < len(stated) else type(layer).__name__
            raise ValueError(_cannot_go_back(name, f"{kind} layers ({type(layer).__name__}, the first is layer {at})"))
        if at < len(stated) and "chunked" in stated[at]:
            raise ValueError(f"{name} has {stated[at]} layers; attention in chunks is not supported")
    _refuse_state(config, name)
    if all(isinstance(layer, DummyLayer) for layer in layers):
        raise ValueError(f"{name} has no layer with keys and values")
    windows = tuple(_window(layer) for layer in layers)
    sizes = {window for window in windows if window}
    if len(sizes) > 1:
        raise ValueError(f"{name} has layers with windows of {len(sizes)} sizes; one size is supported")
    kinds: dict[str, int | None] = {FULL: None} if None in windows else {}
    if sizes:
        kinds[SLIDING] = sizes.pop()
    return Layers(windows, kinds)


def _window(layer: Any) -> int | None:
    if isinstance(layer, DummyLayer):
        return 0
    return int(layer.sliding_window) if isinstance(layer, DynamicSlidingWindowLayer) else None


def _refuse_state(config: Any, name: str) -> None:
    """Models that keep their state beside the cache (Mamba's own cache classes, RWKV's lists)."""
    model = AutoModelForCausalLM._model_mapping.get(type(config), None)
    model = model[0] if isinstance(model, (list, tuple)) else model
    if model is not None and getattr(model, "_is_stateful", False):
        raise ValueError(_cannot_go_back(name, f"recurrent layers ({model.__name__} keeps a state)"))


def _cannot_go_back(name: str, what: str) -> str:
    return f"{name} has {what}: going back after a rejected draft would need snapshots of their state; not supported"
