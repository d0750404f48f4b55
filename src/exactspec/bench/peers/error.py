"""What goes wrong with a process that is measured."""

from __future__ import annotations


class PeerError(RuntimeError):
    """Another process cannot be run, or failed; one line that says what to do."""
