"""Pre-training for retrievalkit: `rkit pretrain`, its objectives MLM and RetroMAE, and parts of others."""

from __future__ import annotations

from retrievalkit import hookimpl
from retrievalkit.hookspecs import Register

__version__ = "0.1.0"
retrievalkit_contract = "0.1"


@hookimpl
def register_commands(register: Register) -> None:
    """Register `rkit pretrain`."""
    register(
        "pretrain",
        "retrievalkit_pretrain.pretrain:pretrain",
        help="Pre-train a model on documents, and write a Hugging Face folder.",
        group="train",
    )


@hookimpl
def register_pretrainers(register: Register) -> None:
    """Register the objectives that need a single span of text."""
    register("mlm", "retrievalkit_pretrain.mlm:MaskedLanguageModel")
    register("retromae", "retrievalkit_pretrain.retromae:RetroMAE")
