"""Opening models: the target, and those that draft for it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from exactspec.budget import Cost
from exactspec.draft_names import LAYER, layer_draft
from exactspec.drafters.layer.shipped import shipped_layer
from exactspec.drafters.layers import OpenLayer
from exactspec.drafters.model import ModelDrafter
from exactspec.target.base import Segment, Target, Want
from exactspec.target.cache_types import DEFAULT_CACHE_DTYPE
from exactspec.target.tokenizer import Tokenizer

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Opened:
    """A model that can run. `cost`: of its rows, measured; None where the built-in table counts."""

    target: Target
    tokenizer: Tokenizer
    cost: Cost | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """As for `Engine.from_pretrained`."""

    threads: int | None = None
    context: int | None = None
    cache_dtype: str = DEFAULT_CACHE_DTYPE
    dtype: str | None = None
    device: str | None = None
    progress: Tell | None = None


def open_models(
    name: str, drafting: Sequence[str], options: Options
) -> tuple[Opened, dict[str, ModelDrafter | OpenLayer]]:
    """The target, and a drafter by name for each of `drafting` (the target's own name is the target itself;
    ``longspec`` and ``longspec:FOLDER`` are layers). A layer that is shipped for the target is there in any case, and
    read when it is first wanted.

    Nothing is loaded before it is known that all fit into memory together. Raises ValueError, one line.
    """
    from exactspec.target.load import HF_PREFIX
    from exactspec.target.named import NAMED_MODELS

    layers = [other for other in dict.fromkeys(drafting) if layer_draft(other) is not None]
    others = [other for other in dict.fromkeys(drafting) if other != name and other not in layers]
    if options.dtype is not None and not any(one.startswith(HF_PREFIX) for one in (name, *others)):
        raise ValueError(f"dtype is for models run through transformers: hf:{name}")
    for one in (name, *others):
        if (named := NAMED_MODELS.get(one)) is not None and not named.runnable:
            raise ValueError(f"{one}: {named.note}")  # said before a download, not after it
    with ExitStack() as files:
        plans: list[_Plan] = []
        within = options
        for one in (name, *others):
            plan = _float_plan(one, within) if one.startswith(HF_PREFIX) else _exact_plan(one, within, files, plans)
            plans.append(plan)
            if len(plans) == 1 and plan.context is not None:
                within = replace(options, context=plan.context)  # a draft model needs no longer context than the target
        target = plans[0].load()
        loaded = {other: plan.load() for other, plan in zip(others, plans[1:], strict=True)}
        drafters: dict[str, ModelDrafter | OpenLayer] = {
            other: _drafter(other, model, target, options.progress) for other, model in loaded.items()
        }
    drafters |= open_layers(layers, target.target, options.progress)
    if name in drafting:
        drafters[name] = ModelDrafter(target.target, target.tokenizer, cost=target.cost)
    return target, drafters


@dataclass(frozen=True, slots=True)
class _Plan:
    """A model that is known to fit. `load` loads it; `bytes`: of memory it needs; `context`: its longest, if known."""

    load: Callable[[], Opened]
    bytes: int = 0
    context: int | None = None


def _float_plan(name: str, options: Options) -> _Plan:
    from exactspec.target.load import open_float

    if options.cache_dtype != DEFAULT_CACHE_DTYPE:
        raise ValueError(f"{name}: keys and values have the model's dtype; leave cache_dtype as it is")

    def load() -> Opened:
        chosen: dict[str, Any] = {"dtype": options.dtype, "device": options.device}
        chosen |= {"threads": options.threads, "context": options.context}
        return Opened(*open_float(name, **chosen, progress=options.progress), None)

    return _Plan(load)


def _exact_plan(name: str, options: Options, files: ExitStack, others: Sequence[_Plan]) -> _Plan:
    """Refused here if it needs more memory than there is beside the others."""
    from exactspec.memory import require_memory
    from exactspec.target.cuda.open import check_device, open_cuda
    from exactspec.target.hub import ModelStore
    from exactspec.target.load import open_model
    from exactspec.target.packed_source import PackedSource
    from exactspec.target.packed_store import PackedStore

    device, context, cache_dtype, progress = options.device, options.context, options.cache_dtype, options.progress
    check_device(device, cache_dtype)
    found = ModelStore().resolve(name, progress=None if progress is None else _Milestones(progress))
    on_gpu = device is not None and device != "cpu"
    store = None if on_gpu else PackedStore()  # packed for the CPU's kernels
    model = open_model(found.path, sha256=found.sha256, packed=store)
    source = model.source
    files.callback(source.close)
    longest = source.config.max_position if context is None else min(context, source.config.max_position)
    if on_gpu:
        # Checked against the GPU's memory, one after the other.
        return _Plan(
            lambda: Opened(
                open_cuda(source, device=device or "cuda", context=context, progress=progress), model.tokenizer, None
            ),
            context=longest,
        )
    beside = sum(plan.bytes for plan in others)
    weights = source.weight_bytes if isinstance(source, PackedSource) else None
    need = require_memory(source.config, context=context, cache_dtype=cache_dtype, beside=beside, weights=weights)

    def load() -> Opened:
        from exactspec.measured_cost import kept_cost
        from exactspec.target.exact import ExactTarget

        target = ExactTarget(
            source, threads=options.threads, context=context, cache_dtype=cache_dtype, progress=progress
        )
        return Opened(target, model.tokenizer, kept_cost(target, threads=target.threads, progress=progress))

    return _Plan(load, need.total, longest)


def open_layers(
    names: Sequence[str],
    target: Target,
    progress: Tell | None,
    *,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, OpenLayer]:
    """Those named, opened, and the one that is shipped for the target, if any. `clock`: by which they time themselves.
    Raises ValueError, one line."""
    found: dict[str, OpenLayer] = {}
    for name in dict.fromkeys((LAYER, *names)):
        asked = layer_draft(name)
        assert asked is not None
        try:
            folder = Path(asked.folder) if asked.folder else shipped_layer(_weights_hash(target))
        except ValueError:
            if name in names:
                raise
            continue
        found[name] = OpenLayer(folder, target, progress=progress, clock=clock)
        if name in names:
            found[name].drafter()
    return found


def _weights_hash(target: Target) -> str:
    from exactspec.target.exact import ExactTarget

    if not isinstance(target, ExactTarget):
        raise ValueError("longspec drafts for models run by the exact runtime on the CPU: leave out hf: and device")
    return target.sha256


def _drafter(name: str, model: Opened, target: Opened, progress: Tell | None) -> ModelDrafter:
    try:
        drafter = ModelDrafter(
            model.target,
            model.tokenizer,
            target_tokenizer=target.tokenizer,
            cost=model.cost,
            row_s=row_seconds(model.target),
        )
    except ValueError as error:
        raise ValueError(f"draft model {name}: {error}") from None
    if progress is not None and drafter.difference is not None:
        progress(f"draft model {name} has another vocabulary ({drafter.difference}): its text is encoded anew")
    return drafter


def row_seconds(target: Target, *, clock: Callable[[], float] = time.perf_counter) -> float:
    """Seconds of a forward of one row from an empty context: the median of three."""
    segment = Segment.chain(target.new_cache(), np.zeros(1, dtype=np.int64), Want.TOPK)
    times = []
    for _ in range(3):
        start = clock()
        target.forward([segment])
        times.append(clock() - start)
    return median(times)


class _Milestones:
    """Turns a byte count into a line of text per task and per tenth of it."""

    def __init__(self, tell: Tell) -> None:
        self._tell = tell
        self._last: tuple[str, int] | None = None

    def __call__(self, what: str, done: int, total: int) -> None:
        tenth = 10 * done // total if total > 0 else 0
        if (what, tenth) != self._last:
            self._last = (what, tenth)
            self._tell(f"{what}: {10 * tenth}% of {total / 1e6:.0f} MB" if total > 0 else what)
