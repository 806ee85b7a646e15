"""`python -m retrievalkit`: the command line."""

from __future__ import annotations

from retrievalkit.cli import main

main(prog_name="rkit")
