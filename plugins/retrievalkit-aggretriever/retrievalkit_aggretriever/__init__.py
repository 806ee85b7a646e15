"""Aggretriever for retrievalkit: slice max pooling of word predictions joined to a projected [CLS], and its loss."""

from __future__ import annotations

from collections.abc import Callable

from retrievalkit import hookimpl

__version__ = "0.1.0"
retrievalkit_contract = "0.1"


@hookimpl
def register_poolers(register: Callable[[str, str], None]) -> None:
    """Register the pooler."""
    register("aggretriever", "retrievalkit_aggretriever.poolers:Aggretriever")


@hookimpl
def register_losses(register: Callable[[str, str], None]) -> None:
    """Register the loss of the whole vector and its parts."""
    register("aggretriever", "retrievalkit_aggretriever.losses:Aggretriever")
