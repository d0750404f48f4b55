"""Where numba looks for its files while a kept folder is in use (see numba_cache)."""

from __future__ import annotations

from numba import config
from numba.core.caching import UserProvidedCacheLocator


class FolderLocator(UserProvidedCacheLocator):  # type: ignore[misc]  # its name is Any here
    """``NUMBA_CACHE_DIR`` itself, whereas numba's own locator adds a folder named after the path of the source file, by
    which two checkouts of the same code would not find each other's files. Loaded by numba, by its name."""

    def get_cache_path(self) -> str:
        return str(config.CACHE_DIR)

    def ensure_cache_path(self) -> None:
        """Nothing: the folder is there, and one that is only read needs no permission to write."""
