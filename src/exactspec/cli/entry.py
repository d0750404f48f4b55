"""Where the installed command begins: imports little, so that Ctrl-C during the imports is no traceback either."""

from __future__ import annotations

import sys


def main() -> int:
    """`exactspec.cli.main.main`, whose exit codes hold from here on."""
    try:
        from exactspec.cli.main import main as run

        return run()
    except KeyboardInterrupt:
        print("exactspec: interrupted", file=sys.stderr)
        return 130
