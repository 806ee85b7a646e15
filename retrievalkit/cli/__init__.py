"""The command line, a command a file: options and hand-off only, so that `--help` stays instant."""

from __future__ import annotations

from retrievalkit.cli.main import main

__all__ = ["main"]
