"""CITADEL for retrievalkit. Nothing heavy is imported here: this module is imported at every start of rkit."""

from __future__ import annotations

from retrievalkit import hookimpl
from retrievalkit.hookspecs import Register

__version__ = "0.1.0"


@hookimpl
def register_poolers(register: Register) -> None:
    """Register the pooler."""
    register("citadel", "retrievalkit_citadel.poolers:Citadel")


@hookimpl
def register_losses(register: Register) -> None:
    """Register the loss of vectors and router."""
    register("citadel", "retrievalkit_citadel.losses:Citadel")
