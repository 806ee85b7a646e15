"""Losses: from the representations of a batch to a number to minimise."""

from __future__ import annotations

from retrievalkit import hookimpl
from retrievalkit.hookspecs import Register


@hookimpl
def register_losses(register: Register) -> None:
    """The built-in losses, through the same hook as everybody's."""
    register("contrastive", "retrievalkit.losses.contrastive:Contrastive")
    register("distill_kl", "retrievalkit.losses.distill_kl:DistillKL")
    register("margin_mse", "retrievalkit.losses.margin_mse:MarginMSE")
