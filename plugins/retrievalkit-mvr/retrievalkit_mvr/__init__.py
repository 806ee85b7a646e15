"""Multi-view document representations (MVR) for retrievalkit: viewer tokens, and the global-local loss."""

from __future__ import annotations

from collections.abc import Callable

from retrievalkit import hookimpl

__version__ = "0.1.0"


@hookimpl
def register_poolers(register: Callable[[str, str], None]) -> None:
    """Register the vectors of viewer tokens."""
    register("viewers", "retrievalkit_mvr.poolers:Viewers")


@hookimpl
def register_losses(register: Callable[[str, str], None]) -> None:
    """Register the loss that viewers are trained with."""
    register("global_local", "retrievalkit_mvr.losses:GlobalLocal")
