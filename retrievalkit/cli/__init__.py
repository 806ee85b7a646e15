"""The command line, a command a file: options and hand-off only, so that `--help` stays instant."""

from __future__ import annotations

import sys

try:
    from retrievalkit.cli.main import main
except KeyboardInterrupt:
    # A command that has begun answers Ctrl-C itself: `cli.signals`.
    sys.stderr.write("Interrupted.\n")
    sys.exit(130)

__all__ = ["main"]
