"""Multi-layer representations (MLR) for retrievalkit: pooling across layers or tokens, the self-contrastive loss."""

from __future__ import annotations

from collections.abc import Callable

from retrievalkit import hookimpl

__version__ = "0.1.0"
retrievalkit_contract = "0.1"


@hookimpl
def register_poolers(register: Callable[[str, str], None]) -> None:
    """Register the four poolers, which differ in which of a document's vectors are indexed."""
    register("multi_layer", "retrievalkit_mlr.poolers:MultiLayer")
    register("self_contrastive", "retrievalkit_mlr.poolers:SelfContrastive")
    register("layer_average", "retrievalkit_mlr.poolers:LayerAverage")
    register("scalar_mix", "retrievalkit_mlr.poolers:ScalarMix")


@hookimpl
def register_losses(register: Callable[[str, str], None]) -> None:
    """Register the loss that trains self-contrastive pooling."""
    register("self_contrastive", "retrievalkit_mlr.losses:SelfContrastive")
