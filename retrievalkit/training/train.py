"""`rkit train`: trains a retriever from a pretrained model or a checkpoint, on examples.

    rkit train --model bert-base-uncased --corpus CORPUS --examples TRAIN --output DIR [--dev DEV] [--pooler NAME]

`--resume` continues an interrupted training. Several GPUs, or processes on a CPU, share each step of `--batch-size`
queries, and train the same model as a single process:

    torchrun --nproc-per-node 2 --no-python rkit train ...
"""

from __future__ import annotations

from functools import partial

from retrievalkit.contracts.declarations import command
from retrievalkit.registry.modules import large_imports
from retrievalkit.reporting.terminal import counted
from retrievalkit.storage import Folder
from retrievalkit.training.options import TrainOptions


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
