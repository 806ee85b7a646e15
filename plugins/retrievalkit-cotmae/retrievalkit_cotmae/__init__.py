"""CoT-MAE v2 for retrievalkit: dense vectors and sparse vocabulary weights from one encoder, losses, pre-training."""

from __future__ import annotations

from collections.abc import Callable

from retrievalkit import hookimpl

__version__ = "0.1.0"
retrievalkit_contract = "0.1"


@hookimpl
def register_poolers(register: Callable[[str, str], None]) -> None:
    """Register the pooler of both views; SPLADE-max is one of its configurations."""
    register("dense_sparse", "retrievalkit_cotmae.poolers:DenseSparse")


@hookimpl
def register_losses(register: Callable[[str, str], None]) -> None:
    """Register the loss of both views, and its FLOPS regulariser as a loss to add to any other."""
    register("dense_sparse", "retrievalkit_cotmae.losses:DenseSparse")
    register("flops", "retrievalkit_cotmae.losses:Flops")


@hookimpl
def register_pretrainers(register: Callable[[str, str], None]) -> None:
    """Register the pre-training objective that trains both views through two decoders."""
    register("cot_mae_v2", "retrievalkit_cotmae.pretraining:CoTMAEv2")
