"""The folder on disk that belongs to exactspec: models, and anything else worth keeping between runs."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path


def default_home(env: Mapping[str, str] | None = None) -> Path:
    """``EXACTSPEC_HOME`` if set, else ``exactspec`` in the platform's user cache folder. Creates nothing.

    Linux and other Unix: ``$XDG_CACHE_HOME`` (XDG base directory specification: relative values are ignored) or
    ``~/.cache``; macOS: ``~/Library/Caches``; Windows: ``%LOCALAPPDATA%``.
    """
    env = os.environ if env is None else env
    if own := env.get("EXACTSPEC_HOME"):
        return Path(own).expanduser().absolute()
    if sys.platform == "win32":
        base = env.get("LOCALAPPDATA")
        return (Path(base) if base else Path.home() / "AppData" / "Local") / "exactspec"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "exactspec"
    xdg = env.get("XDG_CACHE_HOME", "")
    return (Path(xdg) if os.path.isabs(xdg) else Path.home() / ".cache") / "exactspec"
