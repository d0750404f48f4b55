"""Open a model's weights on a GPU, once it is known that they fit."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from exactspec.memory import require_memory
from exactspec.target.cache_types import DEFAULT_CACHE_DTYPE
from exactspec.target.cuda.device import open_device
from exactspec.target.weights import WeightSource

if TYPE_CHECKING:
    from exactspec.target.cuda.target import CudaTarget


def check_device(device: str | None, cache_dtype: str) -> None:
    """ValueError, one line, if `device` (None: the CPU) cannot be used with these options. Cheap: said before a
    download."""
    if device is None or device == "cpu":
        return
    open_device(device)
    if cache_dtype not in ("float32", DEFAULT_CACHE_DTYPE):
        raise ValueError(f"device {device}: keys and values are float32; leave cache_dtype as it is")


def open_cuda(
    source: WeightSource,
    *,
    device: str,
    context: int | None = None,
    progress: Callable[[str], None] | None = None,
) -> CudaTarget:
    """The GPU target of an open model file. Raises ValueError if the device cannot be used or, with the figures, if
    the model does not fit into its memory."""
    opened = open_device(device)
    from exactspec.target.cuda.target import CudaTarget

    if opened.free_bytes is not None:
        require_memory(source.config, context=context, cache_dtype="float32", available=opened.free_bytes)
    return CudaTarget(source, device=device, context=context, progress=progress)
