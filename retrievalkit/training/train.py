"""`rkit train`: trains a retriever from a pretrained model or a checkpoint, on examples.

    rkit train --model bert-base-uncased --corpus CORPUS --examples TRAIN --output DIR [--dev DEV] [--pooler NAME]

`--resume` continues an interrupted training. Several GPUs, or processes on a CPU, share each step of `--batch-size`
queries, and train the same model as a single process:

    torchrun --nproc-per-node 2 --no-python rkit train ...
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from typing import Annotated, Any, Literal

from retrievalkit.contracts.declarations import Flag, Named, Reads, command
from retrievalkit.data import inputs
from retrievalkit.registry.modules import large_imports
from retrievalkit.reporting.counts import counted
from retrievalkit.storage import Folder
from retrievalkit.training.options import RunOptions, TrainingOptions


@dataclass(frozen=True)
class TrainOptions(TrainingOptions, RunOptions):
    """Options of `train`.

    Args:
        model: Pretrained model to start from: a hub name, a folder, package:NAME/FOLDER; or a checkpoint, whose pooler
            and options are kept.
        examples: Training examples: a file, a folder of files, a BEIR folder, pydoc:PACKAGES; in Python also rows.
        corpus: Passages that the examples refer to by id; not needed if the examples contain the texts.
        dev: Held-out examples for selecting the best state.
        encoder: Encoder (rkit plugins list); by default the checkpoint's, else transformer.
        pooler: Pooler (rkit plugins list); by default the checkpoint's or the model's own (modules.json), else cls.
        loss: Loss, a sum (contrastive+flops), or a wrapper around another loss ('matryoshka(contrastive)'); by default
            the pooler's.
        query_length: Maximum number of tokens per query.
        document_length: Maximum number of tokens per passage.
        separate_towers: Separate or shared encoders for queries and passages; by default the checkpoint's, else shared.
        refresh_negatives: Mine new negatives with the current model every N epochs; --set refresh.OPTION=VALUE sets an
            option of mine-negatives.
        sharding: "full" divides weights, gradients and optimizer states among several processes (FSDP).
    """

    model: Annotated[Any, Flag(("--model",)), Reads(inputs.model)]
    examples: Annotated[Any, Flag(("--examples",)), Reads(inputs.examples)]
    _: KW_ONLY
    corpus: Annotated[Any, Reads(inputs.passages)] = None
    dev: Annotated[Any, Reads(inputs.examples)] = None
    encoder: Annotated[str | None, Named("encoder", "transformer")] = None
    pooler: Annotated[str | None, Named("pooler", "cls")] = None
    loss: Annotated[str | None, Named("loss")] = None
    query_length: int | None = None
    document_length: int | None = None
    separate_towers: Annotated[bool | None, Flag(("--separate-towers/--shared-tower",))] = None
    refresh_negatives: Annotated[str | None, Flag(metavar="every=N")] = None
    sharding: Literal["none", "full"] = "none"
    encoder_options: Mapping[str, Any] = field(default_factory=dict)
    pooler_options: Mapping[str, Any] = field(default_factory=dict)
    loss_options: Mapping[str, Any] = field(default_factory=dict)
    refresh_options: Mapping[str, Any] = field(default_factory=dict)

    @staticmethod
    def adapted(values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments, with the components of an `rk.Retriever` as model, and the corpus of `rk.Examples`."""
        named = getattr(values.get("model"), "named", {})
        return inputs.with_corpus({**named, **values})


@command("train", TrainOptions)
def train(options: TrainOptions) -> Folder:
    """Train a retriever on examples, and write a checkpoint folder.

    Several GPUs share a training: torchrun --nproc-per-node 2 --no-python rkit train ...
    """
    with large_imports():
        from retrievalkit.training.retriever import RetrieverTraining
        from retrievalkit.training.selection import dev_summary
        from retrievalkit.training.session import run_training

    manifest = run_training(partial(RetrieverTraining, options), options)
    counts = manifest["counts"]
    pooling = f" ({manifest['options']['pooling']})" if "pooling" in manifest["options"] else ""
    read, steps = counted(counts["examples"], "examples"), counted(counts["steps"], "steps")
    summary = f"{options.output}: trained on {read} in {steps}{pooling}"
    return Folder(options.output, manifest, "; ".join(filter(None, (summary, dev_summary(manifest)))))
