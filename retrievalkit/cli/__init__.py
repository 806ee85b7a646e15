"""The command line `rkit`: options and dispatch only, a module per command, so that `--help` stays instant."""

from __future__ import annotations

import sys

try:
    from retrievalkit.cli.main import main
except KeyboardInterrupt:
    # A running command handles Ctrl-C itself: `cli.signals`.
    sys.stderr.write("Interrupted.\n")
    sys.exit(130)

__all__ = ["main"]
