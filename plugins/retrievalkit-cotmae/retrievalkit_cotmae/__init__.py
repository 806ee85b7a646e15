"""CoT-MAE v2 for retrievalkit: a dense vector and sparse vocabulary weights of one encoder, and their losses."""

from __future__ import annotations

from collections.abc import Callable

from retrievalkit import hookimpl


@hookimpl
def register_poolers(register: Callable[[str, str], None]) -> None:
    """Register the pooler of both views, which SPLADE-max is a setting of."""
    register("dense_sparse", "retrievalkit_cotmae.poolers:DenseSparse")


@hookimpl
def register_losses(register: Callable[[str, str], None]) -> None:
    """Register the loss of both views, and its FLOPS regulariser to be added to any other loss."""
    register("dense_sparse", "retrievalkit_cotmae.losses:DenseSparse")
    register("flops", "retrievalkit_cotmae.losses:Flops")
