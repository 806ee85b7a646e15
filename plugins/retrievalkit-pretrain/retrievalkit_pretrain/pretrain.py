"""`rkit pretrain`: pre-trains a model on documents.

    rkit pretrain --pretrainer retromae --model bert-base-uncased --corpus DOCUMENTS --output DIR [--steps 50000]

`--resume` continues an interrupted pre-training; torchrun starts several processes. The output is an ordinary Hugging
Face folder with its vocabulary head, which `rkit train --model` accepts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from typing import Annotated, Any

from annotated_types import Ge, Le

import retrievalkit as rk
from retrievalkit.contracts.commands import Flag, LoopOptions, Named, Reads, RunOptions, command, counted
from retrievalkit.data import inputs


@dataclass(kw_only=True, frozen=True)
class PretrainingOptions(LoopOptions):
    """Options of pre-training a model on text.

    Args:
        steps: Optimizer steps; None = as many as `epochs` need.
        epochs: Passes over the samples, unless `steps` is set.
        max_length: Maximum number of tokens per text, special tokens included, and the target length of a span.
        short_spans: Fraction of the spans whose target length is drawn from 2 ... max_length.
        titles: Treat a title as the first sentence of its document.
        language: Language of the texts, for sentence splitting.
        seed: Seed of initialisation, dropout, spans, sample order and masks.
    """

    epochs: Annotated[float, Ge(0), Le(1_000_000)] = 1
    batch_size: Annotated[int, Ge(1)] = 256
    learning_rate: Annotated[float, Ge(0)] = 1e-4
    warmup_ratio: Annotated[float, Ge(0), Le(1)] = 0.1
    weight_decay: Annotated[float, Ge(0)] = 0.01
    max_gradient_norm: Annotated[float, Ge(0)] = 1.0
    save_steps: Annotated[int, Ge(1)] | None = 500
    steps: Annotated[int, Ge(1)] | None = None
    max_length: Annotated[int, Ge(3)] = 128
    short_spans: Annotated[float, Ge(0), Le(1)] = 0.15
    titles: bool = True
    language: str = "en"

    def total_steps(self, steps_per_epoch: int) -> int:
        """Return the number of optimiser steps of the whole training."""
        return self.steps or super().total_steps(steps_per_epoch)


@dataclass(frozen=True)
class PretrainOptions(PretrainingOptions, RunOptions):
    """Options of `pretrain`.

    Args:
        model: Model to start from: a hub name, a folder, package:NAME/FOLDER; a missing vocabulary head is initialised
            at random.
        corpus: The documents: a file, a folder, pydoc:PACKAGES; in Python also texts, dicts, a table.
        pretrainer: Objective (rkit plugins list).
        dev: Held-out documents: their loss is measured after each epoch, and the best state is kept.
        encoder: Encoder (rkit plugins list).
    """

    model: Annotated[Any, Flag(("--model",)), Reads(inputs.model)]
    corpus: Annotated[Any, Flag(("--corpus",)), Reads(inputs.passages)]
    _: KW_ONLY
    pretrainer: Annotated[str, Named("pretrainer")]
    dev: Annotated[Any, Reads(inputs.passages)] = None
    encoder: Annotated[str, Named("encoder")] = "transformer"
    pretrainer_options: Mapping[str, Any] = field(default_factory=dict)
    encoder_options: Mapping[str, Any] = field(default_factory=dict)


@command("pretrain", PretrainOptions)
def pretrain(options: PretrainOptions) -> rk.Folder:
    """Pre-train a model on documents, and write a Hugging Face folder.

    Several GPUs share a training: torchrun --nproc-per-node 2 --no-python rkit pretrain ...
    """
    from retrievalkit.training.public import run_training
    from retrievalkit_pretrain.pretraining import Pretraining

    manifest = run_training(partial(Pretraining, options), options)
    counts = manifest["counts"]
    samples = f"{counted(counts['samples'], 'samples')} of {counted(counts['documents'], 'documents')}"
    dropped = f"; {counts['dropped']:,} without {manifest['wants']} were dropped" if counts["dropped"] else ""
    best = "" if options.dev is None else f"; held-out loss {manifest['selection']['value']:.4f}"
    summary = f"{options.output}: pre-trained on {samples} in {counted(counts['steps'], 'steps')}{dropped}{best}"
    return rk.Folder(options.output, manifest, summary)
