"""Where a number comes from: the command, the code, the versions and the machine it was measured with."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

_PACKAGES = ("exactspec", "numpy", "numba", "llvmlite", "llama-cpp-python")
_FLAGS = ("sse4_2", "avx", "avx2", "fma", "f16c", "asimd", "asimddp", "i8mm", "sve", "bf16")
_FLAG_STARTS = ("avx512", "avx_", "amx")


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """`code`: hash of the package's Python files, so that results of different code are never mixed.
    `cpu_flags`: the vector instruction sets alone. `load_average`: over one minute, when it was taken."""

    command: str
    git_commit: str
    git_dirty: bool
    code: str
    versions: dict[str, str]
    cpu_model: str
    cpu_flags: tuple[str, ...]
    cpus: int
    threads: int
    load_average: float
    date: str

    @property
    def config(self) -> str:
        """Hash of all that may change a speed: results with unequal ones are not compared."""
        parts = (self.code, *(f"{k}={v}" for k, v in sorted(self.versions.items())), self.cpu_model, self.threads)
        return hashlib.sha256("\n".join(map(str, (*parts, *self.cpu_flags, self.cpus))).encode()).hexdigest()[:12]


def collect(*, threads: int, argv: Sequence[str] | None = None) -> Provenance:
    """Provenance of a run that starts now, with `threads` worker threads."""
    package = Path(__file__).resolve().parents[1]
    commit = _git(package, "rev-parse", "HEAD")
    model, flags = _cpu()
    return Provenance(
        command=" ".join(_without_folders(word) for word in (sys.argv if argv is None else argv)),
        git_commit=commit or "unknown",
        git_dirty=bool(commit) and bool(_git(package, "status", "--porcelain", "--", str(package))),
        code=_code_hash(package),
        versions={"python": platform.python_version()}
        | {name: found for name in _PACKAGES if (found := _version(name))},
        cpu_model=model,
        cpu_flags=flags,
        cpus=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        threads=threads,
        load_average=_load(),
        date=_date(),
    )


def now(start: Provenance) -> Provenance:
    """The same run at this moment: only date and load average move. Files may change under a run that goes on; what
    it measures is the code it started with."""
    return replace(start, load_average=_load(), date=_date())


def _load() -> float:
    return round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else 0.0


def _date() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _without_folders(word: str) -> str:
    """Where things lie on one machine means nothing on another."""
    return Path(word).name if Path(word).is_absolute() else word


def _git(folder: Path, *words: str) -> str:
    try:
        done = subprocess.run(
            ["git", *words],
            cwd=folder,
            capture_output=True,
            text=True,
            check=True,
            timeout=10,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.SubprocessError):
        return ""  # no git, or not a checkout
    return done.stdout.strip()


def _code_hash(package: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        digest.update(path.relative_to(package).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:12]


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def _cpu() -> tuple[str, tuple[str, ...]]:
    """Model name and vector flags; from /proc where there is one."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor() or platform.machine(), ()
    fields: dict[str, str] = {}
    for line in lines:
        key, _, value = line.partition(":")
        fields.setdefault(key.strip(), value.strip())
    family = "/".join(fields[key] for key in ("cpu family", "model", "stepping") if key in fields)
    name = fields.get("model name", platform.machine()) + (f" (family/model/stepping {family})" if family else "")
    words = fields.get("flags", fields.get("Features", "")).split()
    return name, tuple(sorted(word for word in words if word in _FLAGS or word.startswith(_FLAG_STARTS)))
