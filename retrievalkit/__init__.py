"""retrievalkit: train, index, search and compare first-stage text retrievers; every method is a plugin."""

from __future__ import annotations

from pluggy import HookimplMarker

__version__ = "0.1.0"

hookimpl = HookimplMarker("retrievalkit")
"""Marks a function of a plugin as the implementation of a hook in `retrievalkit.hookspecs`."""

__all__ = ["__version__", "hookimpl"]
