"""``exactspec doctor``: what runs on this machine, how fast memory is, and what is wrong."""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed
from pathlib import Path

import typer

from exactspec import __version__
from exactspec.cli import options as opt
from exactspec.cli.services import Services
from exactspec.target.cache_types import CACHE_TYPES, DEFAULT_CACHE_DTYPE
from exactspec.target.cpu import ISA_VARIABLE, CpuInfo, describe_cpu, read_bandwidth
from exactspec.target.home import default_home

CORE = (
    "numpy", "numba", "llvmlite", "tokenizers", "jinja2", "safetensors", "gguf", "huggingface_hub", "typer", "rich",
)  # fmt: skip
EXTRA = ("torch", "triton", "transformers")
EXIT_PROBLEMS = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Folder:
    """`bytes`: of all files below `path`; 0 where it does not exist."""

    path: str
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedModel:
    """Weights packed by an earlier load. `intact`: every byte is as it was written; False for an unfinished one.
    `current`: this version would use them."""

    path: str
    bytes: int
    model: str
    current: bool
    intact: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ShippedLayer:
    """A trained draft layer that is part of the package. `weight_bytes`: shared by all requests; `request_bytes`: of
    one, by tokens of context."""

    model: str
    weight_bytes: int
    request_bytes: dict[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What `doctor` found. `read_gb_per_s`: memory read by `cpu.threads` threads together. `identity`: what equal bits
    are promised for, without the weights' part. `packages`: version, or None where a package is not installed.
    `problems`: one line each, with what to do; empty where all is well."""

    version: str
    python: str
    platform: str
    cpu: CpuInfo | None
    read_gb_per_s: float | None
    threading: str
    kernels_compiled: bool | None
    identity: str | None
    models: Folder
    kernels: Folder
    packed: tuple[PackedModel, ...]
    layers: tuple[ShippedLayer, ...]
    cache_dtypes: tuple[str, ...]
    packages: dict[str, str | None]
    problems: tuple[str, ...]


def doctor(context: typer.Context, json_output: opt.Json = False) -> None:
    """Show what runs on this machine, and how fast: instruction set, CPU, threads, memory bandwidth, cache folders,
    package versions. Exit code 1 if something is wrong."""
    services: Services = context.obj
    report = examine(services.environ)
    if json_output:
        services.stdout.write(json.dumps(asdict(report), indent=2) + "\n")
    else:
        for line in lines(report):
            print(line, file=services.stdout)
        services.stdout.flush()
        for problem in report.problems:
            services.note(f"problem: {problem}")
    raise typer.Exit(EXIT_PROBLEMS if report.problems else 0)


def examine(
    environ: Mapping[str, str],
    *,
    describe: Callable[[Mapping[str, str]], CpuInfo] = describe_cpu,
    bandwidth: Callable[[int], float] = read_bandwidth,
    shipped: Path | None = None,
) -> Report:
    """Look at everything; what cannot be found out becomes a problem, not an error. `shipped`: the folder of draft
    layers; None: the package's."""
    problems: list[str] = []
    packages = {name: _version(name) for name in CORE + EXTRA}
    problems += [
        f"the package {name} is not installed: pip install --force-reinstall exactspec"
        for name in CORE
        if packages[name] is None
    ]
    home = Path(os.devnull)  # which holds nothing
    try:
        home = default_home(environ)
        if not _writable(home):
            problems.append(
                f"{home} cannot be written: kernels compile at every start; set EXACTSPEC_HOME to another folder"
            )
    except ValueError as error:
        problems.append(str(error))
    compiler_off = environ.get("NUMBA_DISABLE_JIT", "0") not in ("", "0")
    if compiler_off:
        problems.append("NUMBA_DISABLE_JIT is set: unset it, the kernels exist only in compiled form")

    cpu, speed, compiled, identity = None, None, None, None
    try:
        cpu = describe(environ)
    except (ValueError, ImportError, OSError) as error:
        problems.append(str(error))
    if cpu is not None:
        try:
            speed = None if compiler_off else bandwidth(cpu.threads)
        except MemoryError:
            problems.append("too little memory is free to measure its bandwidth (256 MB are needed)")
        try:
            from exactspec.target.exact import default_accuracy, identity_of
            from exactspec.target.kernels.compile import are_compiled

            compiled = are_compiled(cpu, home)
            identity = identity_of("", cpu, DEFAULT_CACHE_DTYPE, default_accuracy(cpu)).rstrip("/")
        except ImportError as error:
            problems.append(f"the kernels cannot be loaded ({error}): pip install --force-reinstall exactspec")
    packed: tuple[PackedModel, ...] = ()
    try:
        packed = _packed(home)
    except (ImportError, OSError) as error:
        problems.append(f"packed models cannot be looked at ({error}): pip install --force-reinstall exactspec")
    layers: tuple[ShippedLayer, ...] = ()
    try:
        layers = _layers(shipped)
    except ImportError as error:
        problems.append(f"draft layers cannot be looked at ({error}): pip install --force-reinstall exactspec")
    return Report(
        version=__version__,
        python=f"{platform.python_version()} ({sys.executable})",
        platform=platform.platform(),
        cpu=cpu,
        read_gb_per_s=None if speed is None else round(speed, 1),
        threading="own threads, started with the model; no pool of numba or OpenMP is used",
        kernels_compiled=compiled,
        identity=identity,
        models=_folder(home / "models"),
        kernels=_folder(home / "kernels"),
        packed=packed,
        layers=layers,
        cache_dtypes=tuple(CACHE_TYPES),
        packages=packages,
        problems=tuple(problems),
    )


def lines(report: Report) -> list[str]:
    """The report for people."""
    cpu = report.cpu
    rows = [("exactspec", report.version), ("python", report.python), ("platform", report.platform)]
    if cpu is not None:
        others = [name for name in cpu.supported if name != cpu.instruction_set]
        also = f" (also possible, with {ISA_VARIABLE}: {', '.join(others)})" if others else ""
        rows += [
            ("CPU", f"{cpu.model} ({cpu.llvm_name})"),
            ("instruction set", cpu.instruction_set + also),
            ("threads", f"{cpu.threads} of {cpu.cores} usable {'core' if cpu.cores == 1 else 'cores'}"),
        ]
    rows += [("threading", report.threading), ("cache of keys", " or ".join(report.cache_dtypes))]
    if report.read_gb_per_s is not None:
        rows.append(("memory", f"{report.read_gb_per_s:.1f} GB/s read"))
    if report.kernels_compiled is not None:
        rows.append(("kernels", "compiled" if report.kernels_compiled else "not compiled yet: the first run will"))
    rows += [
        ("model cache", _describe(report.models)),
        ("kernel cache", _describe(report.kernels)),
        *(("packed model", _describe_packed(packed)) for packed in report.packed),
        *(("draft layer", _describe_layer(layer)) for layer in report.layers),
        ("packages", ", ".join(f"{name} {found}" for name, found in report.packages.items() if found)),
        ("not installed", ", ".join(name for name, found in report.packages.items() if not found)),
        ("identity", f"{report.identity}/(hash of the weights)" if report.identity else ""),
    ]
    return [f"{name + ':':<17}{value}" for name, value in rows if value]


def _version(name: str) -> str | None:
    try:
        return installed(name)
    except PackageNotFoundError:
        return None


def _folder(path: Path) -> Folder:
    size = 0
    for folder, _, names in os.walk(path):
        for name in names:
            try:
                size += os.lstat(os.path.join(folder, name)).st_size
            except OSError:  # gone in the meantime
                continue
    return Folder(path=str(path), bytes=size)


def _describe(folder: Folder) -> str:
    return f"{folder.path} ({folder.bytes / 1e6:.1f} MB)"


def _packed(home: Path) -> tuple[PackedModel, ...]:
    from exactspec.target.packed_store import PackedStore

    store = PackedStore(home)
    return tuple(
        PackedModel(path=str(use.path), bytes=use.bytes, model=use.origin, current=use.current, intact=store.check(use))
        for use in store.list()
    )


def _describe_packed(packed: PackedModel) -> str:
    state = "intact" if packed.intact else "damaged or unfinished: the next load makes it again"
    version = "" if packed.current else ", of another version"
    return f"{packed.model or packed.path} ({packed.bytes / 1e6:.1f} MB, {state}{version})"


def _layers(folder: Path | None) -> tuple[ShippedLayer, ...]:
    from exactspec.drafters.layer.footprint import state_bytes, weight_bytes
    from exactspec.drafters.layer.shipped import SHIPPED, cards

    return tuple(
        ShippedLayer(
            model=card.target.name,
            weight_bytes=weight_bytes(card),
            request_bytes=dict.fromkeys((1024, 4096, 8192), state_bytes(card)),
        )
        for card in cards(folder or SHIPPED).values()
    )


def _describe_layer(layer: ShippedLayer) -> str:
    sizes = ", ".join(f"{size / 1e6:.2f} MB at {tokens // 1024}k" for tokens, size in layer.request_bytes.items())
    return f"{layer.model} ({layer.weight_bytes / 1e6:.1f} MB; a request {sizes} tokens of context)"


def _writable(path: Path) -> bool:
    """Whether `path`, or the folder that it would be made in, can be written. Creates nothing."""
    while not os.path.exists(path) and path != path.parent:  # pathlib's raises where it may not look
        path = path.parent
    return os.path.isdir(path) and os.access(path, os.W_OK)
