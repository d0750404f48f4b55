"""The folder on disk that belongs to exactspec: models, and anything else worth keeping between runs."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path


def default_home(env: Mapping[str, str] | None = None) -> Path:
    """``EXACTSPEC_HOME`` if set, else ``exactspec`` in the platform's user cache folder. Creates nothing.

    Linux and other Unix: ``$XDG_CACHE_HOME`` (XDG base directory specification: relative values are ignored) or
    ``~/.cache``; macOS: ``~/Library/Caches``; Windows: ``%LOCALAPPDATA%``. Raises ValueError where the user has no home
    folder, as in some containers.
    """
    env = os.environ if env is None else env
    try:
        if own := env.get("EXACTSPEC_HOME"):
            return Path(own).expanduser().absolute()
        return _caches(env) / "exactspec"
    except RuntimeError:  # of pathlib: neither HOME nor a password entry says where it is
        raise ValueError("this user has no home folder: set EXACTSPEC_HOME to a folder that can be written") from None


def _caches(env: Mapping[str, str]) -> Path:
    if sys.platform == "win32":
        base = env.get("LOCALAPPDATA")
        return Path(base) if base else Path.home() / "AppData" / "Local"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches"
    xdg = env.get("XDG_CACHE_HOME", "")
    return Path(xdg) if os.path.isabs(xdg) else Path.home() / ".cache"
