"""`rkit pretrain`: pre-trains a model on documents.

    rkit pretrain --pretrainer retromae --model bert-base-uncased --corpus DOCUMENTS --output DIR [--steps 50000]

`--resume` continues an interrupted pre-training; torchrun starts several processes. The output is an ordinary Hugging
Face folder with its vocabulary head, which `rkit train --model` accepts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Annotated, Any

from retrievalkit.contracts.declarations import Flag, Named, Reads, command
from retrievalkit.data import inputs
from retrievalkit.registry.modules import large_imports
from retrievalkit.reporting.counts import counted
from retrievalkit.storage import Folder
from retrievalkit.training.options import PretrainingOptions, RunOptions


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
def pretrain(options: PretrainOptions) -> Folder:
    """Pre-train a model on documents, and write a Hugging Face folder.

    Several GPUs share a training: torchrun --nproc-per-node 2 --no-python rkit pretrain ...
    """
    with large_imports():
        from retrievalkit.training.pretraining import Pretraining
        from retrievalkit.training.session import run_training

    manifest = run_training(lambda: Pretraining(options), options)
    counts = manifest["counts"]
    samples = f"{counted(counts['samples'], 'samples')} of {counted(counts['documents'], 'documents')}"
    dropped = f"; {counts['dropped']:,} without {manifest['wants']} were dropped" if counts["dropped"] else ""
    best = "" if options.dev is None else f"; held-out loss {manifest['selection']['value']:.4f}"
    summary = f"{options.output}: pre-trained on {samples} in {counted(counts['steps'], 'steps')}{dropped}{best}"
    return Folder(options.output, manifest, summary)
