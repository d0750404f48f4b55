"""What a model needs, and what the machine has: estimated before anything is loaded."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

from exactspec.target.cache_types import DEFAULT_CACHE_DTYPE, cache_type
from exactspec.target.weights import ModelConfig

_ROWS = 256
"""Rows of the largest forward that scratch is counted for."""

_LOGIT_ROWS = 64
"""Rows whose full logits are held at once."""


@dataclass(frozen=True, slots=True)
class MemoryNeed:
    """Bytes. `weights`: int8 or four-bit matrices with their scales. `cache`: keys and values of one full context.
    `scratch`: activations and logits of one forward."""

    weights: int
    cache: int
    scratch: int

    @property
    def total(self) -> int:
        return self.weights + self.cache + self.scratch


def estimate(config: ModelConfig, *, context: int, cache_dtype: str = DEFAULT_CACHE_DTYPE) -> MemoryNeed:
    """What the exact target needs for one request of `context` tokens, with the padding its kernels want, if
    all weights are int8.

    Raises ValueError on a cache dtype it does not have.
    """
    token = cache_type(cache_dtype).token_bytes(
        config.num_layers, config.num_kv_heads, 2 * _padded(config.head_dim // 2, 16)
    )
    width, inner = _padded(config.hidden_size, 16), _padded(config.intermediate_size, 16)
    head = 2 * _padded(config.head_dim // 2, 16)
    q, kv = config.num_heads * head, config.num_kv_heads * head
    # One byte a weight, and a float32 scale per output channel. A tied head is the embedding itself.
    layer = (q + 2 * kv + 2 * inner) * (width + 4) + config.hidden_size * (q + inner + 8)
    tables = config.vocab_size * (1 if config.tied_head else 2)
    weights = config.num_layers * layer + tables * (width + 4)
    cache = _padded(context, 128) * token
    scratch = 4 * _ROWS * (3 * width + 2 * q + 2 * inner) + 4 * _LOGIT_ROWS * config.vocab_size
    return MemoryNeed(weights, cache, scratch)


def _padded(n: int, step: int) -> int:
    return -(-n // step) * step


def require_memory(
    config: ModelConfig,
    *,
    context: int | None = None,
    cache_dtype: str = DEFAULT_CACHE_DTYPE,
    available: int | None = None,
    beside: int = 0,
    weights: int | None = None,
) -> MemoryNeed:
    """The need, or ValueError with the figures if it exceeds what is available. `beside`: bytes that other models which
    are about to be loaded need. `weights`: bytes of the packed weights, where more is known than the configuration.

    `context` None: what the model states. `available` in bytes; None asks the machine, and an unknown answer refuses
    nothing.
    """
    tokens = config.max_position if context is None else min(context, config.max_position)
    need = estimate(config, context=tokens, cache_dtype=cache_dtype)
    if weights is not None:
        need = replace(need, weights=weights)
    have = available_memory() if available is None else available
    if have is None or need.total + beside <= have:
        return need
    if beside:
        raise ValueError(
            f"the draft model does not fit into memory: {_gb(need.total)} beside the {_gb(beside)} of the others,"
            f" available {_gb(have)}; set a shorter context, take a smaller model, or leave the draft model out"
        )
    fixed = need.weights + need.scratch
    fits = (have - fixed) * tokens // need.cache
    advice = f"set the context to at most {fits} tokens" if fits >= 512 else "take a smaller model or free memory"
    raise ValueError(
        f"the model does not fit into memory: {_gb(need.weights)} weights + {_gb(need.cache)} cache for {tokens} tokens"
        f" + {_gb(need.scratch)} scratch = {_gb(need.total)}, available {_gb(have)}; {advice}"
    )


def available_memory() -> int | None:
    """Bytes this process can still take: the least of the machine's free memory and its control group's limit;
    None where the system does not tell."""
    found = [n for n in (_machine(), _control_group()) if n is not None]
    return min(found) if found else None


def _machine() -> int | None:
    if sys.platform == "darwin":
        return _darwin()
    if sys.platform == "win32":
        return _windows()
    return _meminfo(_read(Path("/proc/meminfo")))


def _meminfo(text: str | None) -> int | None:
    """`MemAvailable` of /proc/meminfo, which counts page cache that can be dropped."""
    for line in (text or "").splitlines():
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            return int(value.split()[0]) * 1024
    return None


def _control_group(root: Path = Path("/sys/fs/cgroup"), membership: Path = Path("/proc/self/cgroup")) -> int | None:
    """Limit minus use of the tightest control group above this process (version 2, then version 1)."""
    left: list[int] = []
    for line in (_read(membership) or "").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            folders, limit, use = _upwards(root, path), "memory.max", "memory.current"
        elif "memory" in controllers.split(","):
            folders = _upwards(root / "memory", path)
            limit, use = "memory.limit_in_bytes", "memory.usage_in_bytes"
        else:
            continue
        for folder in folders:
            most, used = _number(folder / limit), _number(folder / use)
            if most is not None and used is not None:
                left.append(max(0, most - used + _reclaimable(folder / "memory.stat")))
    return min(left) if left else None


def _upwards(root: Path, path: str) -> list[Path]:
    """The group's folder and all above it; inside a container the path may not exist, then the root counts."""
    folder = root / path.lstrip("/")
    return [folder, *(p for p in folder.parents if p == root or root in p.parents)]


def _reclaimable(stat: Path) -> int:
    """Page cache counted as used that the system drops when memory is wanted."""
    for line in (_read(stat) or "").splitlines():
        if line.startswith(("inactive_file ", "total_inactive_file ")):
            return int(line.split()[1])
    return 0


def _darwin() -> int | None:
    """Free, inactive and speculative pages of `vm_stat`; else the half of all memory."""
    try:
        text = subprocess.run(["vm_stat"], capture_output=True, text=True, timeout=5, check=True).stdout
        page = int(text.split("page size of ")[1].split()[0])
        names = ("Pages free", "Pages inactive", "Pages speculative", "Pages purgeable")
        rows = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
        return page * sum(int(rows[name].strip().rstrip(".")) for name in names if name in rows)
    except (OSError, ValueError, IndexError, subprocess.SubprocessError):
        pass
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    except (OSError, ValueError):
        return None


def _windows() -> int | None:
    if sys.platform != "win32":
        return None
    import ctypes

    class Status(ctypes.Structure):
        _fields_ = [
            ("length", ctypes.c_ulong),
            ("load", ctypes.c_ulong),
            *((name, ctypes.c_ulonglong) for name in ("total", "free", "t1", "f1", "t2", "f2", "extra")),
        ]

    status = Status()
    status.length = ctypes.sizeof(status)
    return int(status.free) if ctypes.windll.kernel32.GlobalMemoryStatusEx(ctypes.byref(status)) else None


def _read(path: Path) -> str | None:
    try:
        return path.read_text()
    except OSError:
        return None


def _number(path: Path) -> int | None:
    """None for "max" and for version 1's huge stand-in for no limit."""
    text = (_read(path) or "").strip()
    return int(text) if text.isdigit() and int(text) < 1 << 60 else None


def _gb(n: int) -> str:
    return f"{n / 2**30:.2f} GiB"
