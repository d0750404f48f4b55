"""Large language models answer faster by drafting several tokens at once, and not one token changes.

>>> from exactspec import Engine, SamplingParams                                     # doctest: +SKIP
>>> engine = Engine.from_pretrained("smollm2-135m")                                   # doctest: +SKIP
>>> print(engine.generate([{"role": "user", "content": "Hello"}], SamplingParams(max_tokens=64)).text)  # doctest: +SKIP
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from exactspec.constraint import Constraint
    from exactspec.drafters import CopyDrafter, CopySpecDrafter
    from exactspec.engine import Engine
    from exactspec.params import SamplingParams, Speculation
    from exactspec.results import Chunk, Completion, Metrics, StepRecord, TokenInfo
    from exactspec.session import Session
    from exactspec.stream import Stream

__all__ = [
    "Chunk",
    "Completion",
    "Constraint",
    "CopyDrafter",
    "CopySpecDrafter",
    "Engine",
    "Metrics",
    "SamplingParams",
    "Session",
    "Speculation",
    "StepRecord",
    "Stream",
    "TokenInfo",
    "__version__",
]


def __getattr__(name: str) -> Any:
    """Imported on first use, so that `import exactspec` and the command line's --help stay quick."""
    from importlib import import_module, metadata

    homes = {
        "constraint": ("Constraint",),
        "params": ("SamplingParams", "Speculation"),
        "results": ("Chunk", "Completion", "Metrics", "StepRecord", "TokenInfo"),
        "drafters": ("CopyDrafter", "CopySpecDrafter"),
        "engine": ("Engine",),
        "session": ("Session",),
        "stream": ("Stream",),
    }
    if name == "__version__":
        try:
            return metadata.version("exactspec")
        except metadata.PackageNotFoundError:  # a source tree on the path, not installed
            return "0+source"
    for home, names in homes.items():
        if name in names:
            return getattr(import_module(f"exactspec.{home}"), name)
    raise AttributeError(f"module 'exactspec' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
