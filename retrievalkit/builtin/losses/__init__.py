"""Losses: from the representations of a batch to a number to minimise."""

from __future__ import annotations

from retrievalkit import hookimpl
from retrievalkit.hookspecs import Register


@hookimpl
def register_losses(register: Register) -> None:
    """The built-in losses, through the same hook as any plugin's."""
    register("contrastive", "retrievalkit.builtin.losses.contrastive:Contrastive")
    register("distill_kl", "retrievalkit.builtin.losses.distill_kl:DistillKL")
    register("matryoshka", "retrievalkit.builtin.losses.matryoshka:Matryoshka")
    register("margin_mse", "retrievalkit.builtin.losses.margin_mse:MarginMSE")
