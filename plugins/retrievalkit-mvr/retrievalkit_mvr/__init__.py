"""Multi-view document representations (MVR): viewer tokens, the global-local loss, and the analysis of views."""

from __future__ import annotations

from retrievalkit import hookimpl
from retrievalkit.hookspecs import Register

__version__ = "0.1.0"
retrievalkit_contract = "0.1"


@hookimpl
def register_poolers(register: Register) -> None:
    """Register the pooler of viewer tokens."""
    register("viewers", "retrievalkit_mvr.poolers:Viewers")


@hookimpl
def register_losses(register: Register) -> None:
    """Register the loss that trains the viewers."""
    register("global_local", "retrievalkit_mvr.losses:GlobalLocal")


@hookimpl
def register_commands(register: Register) -> None:
    """Register `rkit analyse-views`."""
    register(
        "analyse-views",
        "retrievalkit_mvr.analyse_views.command:analyse_views",
        help="Show which vector of a document (viewer, layer or token) matches which query.",
        group="judge",
    )
