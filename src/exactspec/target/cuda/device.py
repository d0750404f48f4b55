"""The GPU: whether it can be used, what it is called, what it has. Importing this needs neither torch nor triton."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import Any

EXTRA = "pip install 'exactspec[gpu]'"


@dataclass(frozen=True, slots=True)
class Device:
    """`torch_device`: "cuda:0", or "cpu" under Triton's interpreter. `name`: what the identity calls it.
    `total_bytes`, `free_bytes`: of its memory; None under the interpreter."""

    torch_device: str
    name: str
    total_bytes: int | None
    free_bytes: int | None

    @property
    def interpreted(self) -> bool:
        return self.torch_device == "cpu"


def interpreter_chosen() -> bool:
    """Whether TRITON_INTERPRET=1 runs the kernels on the CPU, for tests; it must be set before triton is imported."""
    return os.environ.get("TRITON_INTERPRET", "0") == "1"


def open_device(name: str = "cuda") -> Device:
    """`name`: "cuda" (GPU 0), "cuda:N", or "cpu" with TRITON_INTERPRET=1. ValueError, one line that says what to do,
    where it cannot be used."""
    try:
        import torch
        import triton  # noqa: F401
    except ImportError as error:
        raise ValueError(f"device {name} needs torch and triton ({error}): {EXTRA}, or use device cpu") from None
    if name == "cpu":
        if not interpreter_chosen():
            raise ValueError("the GPU kernels run on a CPU only for tests: set TRITON_INTERPRET=1")
        return Device("cpu", "triton-interpreter", None, None)
    if interpreter_chosen():
        raise ValueError(f"device {name}: TRITON_INTERPRET=1 keeps kernels off the GPU; unset it")
    number = 0 if name == "cuda" else int(name[5:]) if name.startswith("cuda:") and name[5:].isdecimal() else -1
    if number < 0:
        raise ValueError(f"device must be cpu, cuda or cuda:N, got {name!r}")
    if not torch.cuda.is_available():
        built = "no GPU or driver was found" if torch.version.cuda else "the installed torch is built without CUDA"
        raise ValueError(f"device {name} cannot be used: {built}; use device cpu")
    if torch.version.hip:
        raise ValueError(f"device {name}: AMD GPUs are not supported; use device cpu")
    if number >= torch.cuda.device_count():
        raise ValueError(
            f"device {name} does not exist: this machine has {torch.cuda.device_count()} GPUs, from cuda:0"
        )
    major, minor = torch.cuda.get_device_capability(number)
    if major < 8:
        raise ValueError(f"device {name} has compute capability {major}.{minor}; 8.0 or newer is needed")
    free, total = torch.cuda.mem_get_info(number)
    kind = torch.cuda.get_device_name(number).replace(" ", "-").replace("/", "-")
    return Device(f"cuda:{number}", f"{kind}-sm{major}{minor}", total, free)


def identity_of(weights: str, device: Device, groups: tuple[int, ...]) -> str:
    """What equal bits are promised for. `weights`: SHA-256 of the weights file in hex, of which 16 digits are kept."""
    import numpy as np
    import torch
    import triton

    from exactspec import __version__

    parts = (
        f"exactspec-{__version__}",
        f"torch-{torch.__version__}",
        f"triton-{triton.__version__}",
        f"numpy-{np.__version__}",  # sampling takes its exponentials
        device.name,
        "cache-float32",
        "int8-groups-" + "-".join(map(str, groups)),
        weights[:16],
    )
    return "/".join(parts)


def read_bandwidth(device: Device, *, megabytes: int = 1024, rounds: int = 5) -> float:
    """Bytes per nanosecond (GB/s) read from the device's memory: best of `rounds` sums."""
    import torch

    if device.interpreted:
        megabytes = 64
    block = torch.ones(megabytes * 2**20 // 4, dtype=torch.float32, device=device.torch_device)
    best = 0.0
    for _ in range(rounds):
        synchronise(device)
        start = time.perf_counter()
        block.sum()
        synchronise(device)
        best = max(best, block.nbytes / (time.perf_counter() - start) / 1e9)
    return best


def synchronise(device: Device) -> None:
    """Wait for all work on the device."""
    import torch

    if not device.interpreted:
        torch.cuda.synchronize(device.torch_device)


def moved(array: Any, device: Device) -> Any:
    """A numpy array as a tensor of the device (never shared with the array)."""
    import torch

    return torch.from_numpy(array).to(device.torch_device, copy=True)
